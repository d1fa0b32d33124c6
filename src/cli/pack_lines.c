/* Lines are found in a buffer that is as long as the longest line: what was given out is moved over when more is read.
 */
#include "cli/pack_lines.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM ((size_t)1 << 18)

bool pack_lines_open(struct pack_lines *lines, const char *path, rosa_error *why)
{
	memset(lines, 0, sizeof(*lines));
	return source_open(&lines->source, path, why);
}

void pack_lines_close(struct pack_lines *lines)
{
	source_close(&lines->source);
	free(lines->data);
	lines->data = NULL;
}

static bool read_more(struct pack_lines *lines, rosa_error *why)
{
	size_t got;

	if (lines->at) {
		memmove(lines->data, lines->data + lines->at, lines->used - lines->at);
		lines->used -= lines->at;
		lines->at = 0;
	}
	if (lines->room - lines->used < FIRST_ROOM / 2) {
		size_t room = 2 * lines->room + FIRST_ROOM;
		char *larger = realloc(lines->data, room);
		if (!larger)
			return refuse(why, "not enough memory for a line of %s (%zu bytes)", lines->source.name, room);
		lines->data = larger;
		lines->room = room;
	}
	if (!source_read(&lines->source, lines->data + lines->used, lines->room - lines->used, &got, why))
		return false;
	lines->used += got;
	lines->ended = got == 0;
	return true;
}

static void skip_mark(const char **line, size_t *size)
{
	if (*size >= 3 && memcmp(*line, "\xef\xbb\xbf", 3) == 0) {
		*line += 3;
		*size -= 3;
	}
}

bool pack_lines_next(struct pack_lines *lines, const char **line, size_t *size, rosa_error *why)
{
	const char *end = NULL;
	size_t looked = 0; /* at bytes of this line without finding its end */

	while (!end && !lines->ended) {
		size_t left = lines->used - lines->at;
		if (left > looked)
			end = memchr(lines->data + lines->at + looked, '\n', left - looked);
		looked = left;
		if (!end && !read_more(lines, why))
			return false;
	}
	*line = NULL;
	*size = end ? (size_t)(end - lines->data) + 1 - lines->at : lines->used - lines->at;
	if (*size == 0)
		return true;
	*line = lines->data + lines->at;
	lines->at += *size;
	if (lines->number++ == 0)
		skip_mark(line, size);
	return true;
}
