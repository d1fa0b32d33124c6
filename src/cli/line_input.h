/* Lines of standard input, for a program that also listens to Ctrl-C. */
#ifndef ROSATUNE_LINE_INPUT_H
#define ROSATUNE_LINE_INPUT_H

#include "cli/report.h"

#include <stddef.h>

/* Bytes that were read and not yet given out. A zeroed one is a beginning. */
struct line_input {
	char *data;
	size_t taken, used, room;
	bool ended;
};

enum line_result { LINE_READ, LINE_ENDED, LINE_INTERRUPTED, LINE_FAILED };

/* The next line, without its end, terminated, until the next call. `size` tells of bytes 0 in it. */
enum line_result line_read(struct line_input *input, char **line, size_t *size, rosa_error *why);
void line_input_free(struct line_input *input); /* safe on a zeroed one */

#endif
