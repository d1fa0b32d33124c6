/* Lines of standard input; waiting for one ends at Ctrl-C. */
#pragma once

#include "cli/report.h"

#include <stddef.h>

/* Bytes that were read and not yet returned. Starts zeroed. */
struct line_input {
	char *data;
	size_t taken, used, room;
	bool ended;
};

enum line_result { LINE_READ, LINE_ENDED, LINE_INTERRUPTED, LINE_FAILED };

/* The next line, without its newline, valid until the next call. It is terminated; `size` is its length, which differs
 * from strlen if the line contains zero bytes. */
enum line_result line_read(struct line_input *input, char **line, size_t *size, rosa_error *why);
void line_input_free(struct line_input *input); /* safe on a zeroed one */
