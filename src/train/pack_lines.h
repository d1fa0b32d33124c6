/* The lines of a file of any size. */
#pragma once

#include "train/byte_source.h"

struct pack_lines {
	struct byte_source source;
	char *data;
	size_t at, used, room;
	bool ended;
	uint64_t number; /* of the line that was given last, from 1 */
};

rosa_status pack_lines_open(struct pack_lines *lines, const char *path, const struct file_hooks *hooks,
			    rosa_error *err);
/* The next line, with its newline if it has one, valid until the next call; NULL: there are no more. A byte order mark
 * at the beginning of the file is left out. */
rosa_status pack_lines_next(struct pack_lines *lines, const char **line, size_t *size, rosa_error *err);
/* Whether the file is not text: a NUL stands among its first bytes. Asked before the first line. */
rosa_status pack_lines_binary(struct pack_lines *lines, bool *binary, rosa_error *err);
void pack_lines_close(struct pack_lines *lines); /* safe on a zeroed one that could not be opened */

/* Whether a line has nothing but white space. */
bool pack_line_blank(const char *line, size_t size);
