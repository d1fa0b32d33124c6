/* Text that a user gives (a file, standard input, an argument, a line) and gets. */
#ifndef ROSATUNE_TEXT_INPUT_H
#define ROSATUNE_TEXT_INPUT_H

#include "cli/report.h"

#include <stddef.h>

/* Valid UTF-8, terminated besides. A zeroed one is empty. */
struct text {
	char *data;
	size_t size, room;
};

/* Adds bytes that must be UTF-8: others are refused with `name` and the place, or become U+FFFD if `lossy`. */
bool text_add(struct text *text, const char *name, const char *bytes, size_t size, bool lossy, rosa_error *why);

/* Adds all of a file; "-" is standard input. */
bool text_add_file(struct text *text, const char *path, bool lossy, rosa_error *why);

void text_free(struct text *text); /* safe on a zeroed one */

/* Writes to standard output at once and whole, whatever signals come. */
bool text_print(const char *data, size_t size, rosa_error *why);

/* Prints a text as JSON has it, with its quotes. */
void text_print_json(const char *data, size_t size);

#endif
