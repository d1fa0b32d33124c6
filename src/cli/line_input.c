/*
 * Lines of standard input.
 *
 * getline has one fault here: a signal that arrives just before it blocks goes unnoticed until the next line. So this
 * waits for input in short intervals and checks for an interrupt in between.
 */
#include "cli/line_input.h"

#include "base/array.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_WAIT 100 /* milliseconds between two checks for an interrupt */
#define BLOCK        ((size_t)4096)

/* Makes room for one more block and a terminator, which a last line without a newline needs. */
static bool make_room(struct line_input *input, rosa_error *why)
{
	if (input->taken > 0) {
		memmove(input->data, input->data + input->taken, input->used - input->taken);
		input->used -= input->taken;
		input->taken = 0;
	}
	return ARRAY_RESERVE(input->data, input->room, input->used + BLOCK + 1) ||
	       refuse(why, "not enough memory for a line of %zu bytes", input->used);
}

/* Waits for more bytes or the end of input. */
static enum line_result read_more(struct line_input *input, rosa_error *why)
{
	struct pollfd wait = {STDIN_FILENO, POLLIN, 0};

	if (!make_room(input, why))
		return LINE_FAILED;
	for (;;) {
		if (interrupted())
			return LINE_INTERRUPTED;
		if (poll(&wait, 1, LONGEST_WAIT) <= 0)
			continue;
		ssize_t got = read(STDIN_FILENO, input->data + input->used, BLOCK);
		if (got >= 0) {
			input->used += (size_t)got;
			input->ended = got == 0;
			return LINE_READ;
		}
		if (errno != EINTR && errno != EAGAIN) {
			refuse(why, "error while reading standard input: %s", strerror(errno));
			return LINE_FAILED;
		}
	}
}

enum line_result line_read(struct line_input *input, char **line, size_t *size, rosa_error *why)
{
	for (;;) {
		size_t left = input->used - input->taken;
		char *from = left ? input->data + input->taken : NULL;
		char *end = left ? memchr(from, '\n', left) : NULL;
		if (end || (input->ended && left > 0)) {
			*size = end ? (size_t)(end - from) : left;
			*line = from;
			from[*size] = '\0';
			input->taken += *size + (end != NULL);
			return LINE_READ;
		}
		if (input->ended)
			return LINE_ENDED;
		enum line_result result = read_more(input, why);
		if (result != LINE_READ)
			return result;
	}
}

void line_input_free(struct line_input *input)
{
	free(input->data);
	memset(input, 0, sizeof(*input));
}
