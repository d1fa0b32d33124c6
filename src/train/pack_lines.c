/* Lines are found in a buffer as long as the longest line. When more is read, the lines given out before are dropped
 * and the rest moves to the front. */
#include "train/pack_lines.h"

#include "base/array.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_ROOM ((size_t)1 << 17) /* bytes that are read at a time, at least */
#define LOOKED_AT  ((size_t)8000)    /* bytes that tell a binary file, as git does it */

rosa_status pack_lines_open(struct pack_lines *lines, const char *path, const struct file_hooks *hooks, rosa_error *err)
{
	memset(lines, 0, sizeof(*lines));
	return source_open(&lines->source, path, hooks, err);
}

void pack_lines_close(struct pack_lines *lines)
{
	source_close(&lines->source);
	free(lines->data);
	lines->data = NULL;
}

static rosa_status read_more(struct pack_lines *lines, rosa_error *err)
{
	size_t got = 0;
	rosa_status status;

	if (lines->at) {
		memmove(lines->data, lines->data + lines->at, lines->used - lines->at);
		lines->used -= lines->at;
		lines->at = 0;
	}
	if (!ARRAY_RESERVE(lines->data, lines->room, lines->used + LEAST_ROOM))
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for a line of %s (%zu bytes)", lines->source.name,
				 lines->used + LEAST_ROOM);
	status = source_read(&lines->source, lines->data + lines->used, lines->room - lines->used, &got, err);
	lines->used += got;
	lines->ended = status == ROSA_OK && got == 0;
	return status;
}

rosa_status pack_lines_binary(struct pack_lines *lines, bool *binary, rosa_error *err)
{
	const rosa_status status = read_more(lines, err);

	*binary = status == ROSA_OK && memchr(lines->data, '\0', lines->used < LOOKED_AT ? lines->used : LOOKED_AT);
	return status;
}

static void skip_mark(const char **line, size_t *size)
{
	if (*size >= 3 && memcmp(*line, "\xef\xbb\xbf", 3) == 0) {
		*line += 3;
		*size -= 3;
	}
}

rosa_status pack_lines_next(struct pack_lines *lines, const char **line, size_t *size, rosa_error *err)
{
	const char *end = NULL;
	size_t searched = 0; /* bytes of this line in which there is no end */
	rosa_status status = ROSA_OK;

	while (!end && !lines->ended && status == ROSA_OK) {
		size_t left = lines->used - lines->at;
		if (left > searched)
			end = memchr(lines->data + lines->at + searched, '\n', left - searched);
		searched = left;
		if (!end)
			status = read_more(lines, err);
	}
	*line = NULL;
	if (status != ROSA_OK)
		return status;
	*size = end ? (size_t)(end - lines->data) + 1 - lines->at : lines->used - lines->at;
	if (*size == 0)
		return ROSA_OK;
	*line = lines->data + lines->at;
	lines->at += *size;
	if (lines->number++ == 0)
		skip_mark(line, size);
	if (*size == 0) /* a file of nothing but the mark */
		*line = NULL;
	return ROSA_OK;
}

bool pack_line_blank(const char *line, size_t size)
{
	while (size > 0 && (line[size - 1] == ' ' || (line[size - 1] >= '\t' && line[size - 1] <= '\r')))
		size--;
	return size == 0;
}
