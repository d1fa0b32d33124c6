/*
 * Text in and out.
 *
 * A file is read whole before it is checked, since a character may be cut by the end of a block. Text goes out without
 * stdio, which takes a signal in the middle of a write for an error and forgets the rest.
 */
#include "cli/text_input.h"

#include "base/array.h"
#include "cli/interrupt.h"
#include "train/byte_source.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAST_ROOM ((size_t)1 << 17) /* bytes that are read at a time, at least */

bool text_add(struct text *text, const char *name, const char *bytes, size_t size, bool lossy, rosa_error *why)
{
	return text_append(text, name, bytes, size, lossy, why) == ROSA_OK;
}

/* All bytes of a source, from malloc. */
static bool read_source(struct byte_source *source, char **data, size_t *size, rosa_error *why)
{
	size_t room = 0, got = 1;

	*data = NULL;
	*size = 0;
	while (got > 0) {
		if (!ARRAY_RESERVE(*data, room, *size + LEAST_ROOM))
			return refuse(why, "not enough memory to read %s (%zu bytes wanted)", source->name,
				      *size + LEAST_ROOM);
		if (source_read(source, *data + *size, room - *size, &got, why) != ROSA_OK)
			return false;
		*size += got;
	}
	return true;
}

bool text_add_file(struct text *text, const char *path, bool lossy, rosa_error *why)
{
	struct byte_source source;
	char *data = NULL;
	size_t size;
	bool good;

	if (source_open(&source, path, &interrupt_hooks, why) != ROSA_OK)
		return false;
	good = read_source(&source, &data, &size, why) && text_add(text, source.name, data, size, lossy, why);
	source_close(&source);
	free(data);
	return good;
}

bool text_print(const char *data, size_t size, rosa_error *why)
{
	struct pollfd wait = {STDOUT_FILENO, POLLOUT, 0};

	fflush(stdout);
	while (size > 0) {
		ssize_t put = write(STDOUT_FILENO, data, size);
		if (put >= 0) {
			data += put;
			size -= (size_t)put;
		} else if (errno == EAGAIN) {
			poll(&wait, 1, -1);
		} else if (errno != EINTR) {
			return refuse(why, "cannot write to standard output: %s", strerror(errno));
		}
	}
	return true;
}

bool json_print(struct json_text *text, rosa_error *why)
{
	const bool good =
	    text->failed ? refuse(why, "not enough memory for the result") : text_print(text->data, text->size, why);

	json_text_free(text);
	return good;
}
