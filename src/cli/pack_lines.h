/* The lines of a file of any size. */
#ifndef ROSATUNE_PACK_LINES_H
#define ROSATUNE_PACK_LINES_H

#include "cli/byte_source.h"

struct pack_lines {
	struct byte_source source;
	char *data;
	size_t at, used, room;
	bool ended;
	uint64_t number; /* of the line that was given last, from 1 */
};

bool pack_lines_open(struct pack_lines *lines, const char *path, rosa_error *why);
/* The next line, with its end where it has one, until the next call; NULL: there are no more. A byte order mark at the
 * beginning of the file is left out. */
bool pack_lines_next(struct pack_lines *lines, const char **line, size_t *size, rosa_error *why);
void pack_lines_close(struct pack_lines *lines); /* safe on a zeroed one that could not be opened */

#endif
