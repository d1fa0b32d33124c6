/* What people type and read: misspelt names, numbers with units, lines of help texts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name nearest to a misspelt word, or NULL if none is near. `names` ends with NULL. */
const char *words_nearest(const char *word, const char *const *names);

/* A number from digits; with `units` k, M and G (powers of 1024) may follow. False if it is not a number, or too large.
 */
bool words_number(const char *text, bool units, uint64_t *number);

/* Where to break a help text (ASCII) whose line begins in column `indent`: how many bytes go on this line. If not all
 * of it fits, it is broken at a space, which the next line leaves out. */
#define SCREEN_COLUMNS 110
size_t words_line(const char *text, size_t indent);
