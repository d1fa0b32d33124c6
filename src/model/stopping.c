/*
 * Stop strings.
 *
 * A stop string may come in several tokens, and end in the middle of one. So text that could be the beginning of a stop
 * string is held back until this is decided. The stop string that is complete first ends the text; of those that are
 * complete at the same byte, the longest. The result is the same as if the text came byte by byte, and so does not
 * depend on how it was cut into tokens.
 *
 * Strings are few and short, and text comes at the speed of a model, so each string is simply compared at each byte.
 */
#include "model/stopping.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

struct stopping {
	char **strings;
	size_t *lengths;
	size_t count;
	size_t longest; /* most bytes that are held back: those of the longest string, without its last */
	char *held;
	size_t used;
	bool done;
};

rosa_status stopping_new(const char *const *strings, size_t count, stopping **made, rosa_error *err)
{
	stopping *stopping = calloc(1, sizeof(*stopping));
	bool enough = stopping != NULL;

	*made = NULL;
	if (enough) {
		stopping->strings = calloc(count + 1, sizeof(char *));
		stopping->lengths = calloc(count + 1, sizeof(size_t));
		enough = stopping->strings && stopping->lengths;
	}
	for (size_t i = 0; i < count && enough; i++) {
		size_t length = strlen(strings[i]);
		if (length == 0) {
			stopping_free(stopping);
			return rosa_fail(err, ROSA_EINVAL, "a stop string is empty; every text would end at once");
		}
		stopping->strings[i] = strdup(strings[i]);
		stopping->lengths[i] = length;
		stopping->count++;
		if (length - 1 > stopping->longest)
			stopping->longest = length - 1;
		enough = stopping->strings[i] != NULL;
	}
	if (enough)
		stopping->held = malloc(stopping->longest + 1);
	if (!enough || !stopping->held) {
		stopping_free(stopping);
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for %zu stop strings", count);
	}
	*made = stopping;
	return ROSA_OK;
}

void stopping_free(stopping *stopping)
{
	if (!stopping)
		return;
	for (size_t i = 0; i < stopping->count; i++)
		free(stopping->strings[i]);
	free(stopping->strings);
	free(stopping->lengths);
	free(stopping->held);
	free(stopping);
}

size_t stopping_longest(const stopping *stopping)
{
	return stopping->longest;
}

bool stopping_done(const stopping *stopping)
{
	return stopping->done;
}

/* The length of the longest stop string that ends the bytes held and `byte`, 0 if none does. */
static size_t completed(const stopping *stopping, char byte)
{
	size_t longest = 0;

	for (size_t i = 0; i < stopping->count; i++) {
		size_t before = stopping->lengths[i] - 1;
		if (before + 1 > longest && before <= stopping->used && stopping->strings[i][before] == byte &&
		    memcmp(stopping->held + stopping->used - before, stopping->strings[i], before) == 0)
			longest = before + 1;
	}
	return longest;
}

/* How many of the bytes held are the beginning of a stop string that is not complete. */
static size_t hopeful(const stopping *stopping)
{
	size_t most = stopping->used < stopping->longest ? stopping->used : stopping->longest;

	for (size_t size = most; size > 0; size--) {
		for (size_t i = 0; i < stopping->count; i++) {
			if (stopping->lengths[i] > size &&
			    memcmp(stopping->held + stopping->used - size, stopping->strings[i], size) == 0)
				return size;
		}
	}
	return 0;
}

/* Writes the first `size` bytes held. */
static size_t let_go(stopping *stopping, size_t size, char *out)
{
	memcpy(out, stopping->held, size);
	stopping->used -= size;
	memmove(stopping->held, stopping->held + size, stopping->used);
	return size;
}

size_t stopping_take(stopping *stopping, const char *text, size_t size, char *out)
{
	size_t written = 0;

	for (size_t i = 0; i < size && !stopping->done; i++) {
		size_t complete = completed(stopping, text[i]);
		if (complete > 0) {
			stopping->done = true;
			written += let_go(stopping, stopping->used + 1 - complete, out + written);
			stopping->used = 0;
			break;
		}
		stopping->held[stopping->used++] = text[i];
		written += let_go(stopping, stopping->used - hopeful(stopping), out + written);
	}
	return written;
}

size_t stopping_finish(stopping *stopping, char *out)
{
	size_t written = stopping->done ? 0 : let_go(stopping, stopping->used, out);

	stopping->used = 0;
	stopping->done = false;
	return written;
}
