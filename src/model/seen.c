/*
 * How often tokens have been seen.
 *
 * With each token of a text one more is old enough to count, and going back takes those away again. So counts move from
 * one place of the text to another by as many steps as lie between them. Nobody needs those of all places at once.
 *
 * Tokens are taken away in the reverse order. So the list of those that count is a stack: one whose count falls to 0 is
 * the last of it.
 */
#include "model/seen.h"

#include "base/array.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* floor(log2(x)) of x > 0. */
static unsigned log2_of(uint32_t x)
{
	return 31 - (unsigned)__builtin_clz(x);
}

static unsigned rank_of(uint32_t token)
{
	return log2_of(token + 64) - 6;
}

uint8_t seen_class(uint32_t token, uint32_t count)
{
	if (!count)
		return 0;
	const unsigned often = count < 8 ? log2_of(count) : 3;

	return (uint8_t)(1 + often * SEEN_RANKS + rank_of(token));
}

uint32_t seen_moved(uint32_t token, size_t vocabulary)
{
	const unsigned rank = rank_of(token);
	const size_t low = ((size_t)64 << rank) - 64, above = ((size_t)128 << rank) - 64,
		     size = (above < vocabulary ? above : vocabulary) - low;

	return (uint32_t)(low + (token - low + size - size / 2) % size);
}

rosa_status seen_new(struct seen *seen, size_t vocabulary, size_t delay, bool counting, rosa_error *err)
{
	*seen = (struct seen){.vocabulary = vocabulary, .delay = delay};
	if (!counting)
		return ROSA_OK;
	seen->counts = calloc(vocabulary, sizeof(*seen->counts));
	seen->classes = calloc(vocabulary, sizeof(*seen->classes));
	seen->list = calloc(vocabulary, sizeof(*seen->list));
	if (seen->counts && seen->classes && seen->list)
		return ROSA_OK;
	seen_free(seen);
	return rosa_fail(err, ROSA_ENOMEM, "no memory to count %zu tokens", vocabulary);
}

void seen_free(struct seen *seen)
{
	free(seen->tokens);
	free(seen->counts);
	free(seen->classes);
	free(seen->list);
	*seen = (struct seen){0};
}

rosa_status seen_add(struct seen *seen, const uint32_t *tokens, size_t count, rosa_error *err)
{
	if (count > ROSA_MAX_STEPS - seen->steps)
		return rosa_fail(err, ROSA_EINVAL, "a text has at most %zu tokens", ROSA_MAX_STEPS);
	if (!ARRAY_RESERVE(seen->tokens, seen->room, seen->steps + count))
		return rosa_fail(err, ROSA_ENOMEM, "no memory to keep %zu tokens", seen->steps + count);
	if (count)
		memcpy(seen->tokens + seen->steps, tokens, count * sizeof(*tokens));
	seen->steps += count;
	return ROSA_OK;
}

uint32_t seen_counted(const struct seen *seen, size_t i)
{
	return seen->moved ? seen_moved(seen->tokens[i], seen->vocabulary) : seen->tokens[i];
}

/* Counts token number i, or no longer. */
static void change(struct seen *seen, size_t i, uint32_t by)
{
	const uint32_t token = seen_counted(seen, i);

	if (!seen->counts[token])
		seen->list[seen->listed++] = token;
	seen->counts[token] += by;
	if (!seen->counts[token])
		seen->listed--;
	seen->classes[token] = seen_class(token, seen->counts[token]);
}

/* How many tokens are old enough after the first `steps`. */
static size_t old_ones(const struct seen *seen, size_t steps)
{
	return steps > seen->delay ? steps - 1 - seen->delay : 0;
}

void seen_count(struct seen *seen, size_t steps)
{
	const size_t old = old_ones(seen, steps);

	if (!seen->counts)
		return;
	while (seen->counted < old)
		change(seen, seen->counted++, 1);
	while (seen->counted > old)
		change(seen, --seen->counted, UINT32_MAX);
}

void seen_rewind(struct seen *seen, size_t steps)
{
	if (seen->counted > old_ones(seen, steps))
		seen_count(seen, steps);
	seen->steps = steps;
}

rosa_status seen_fork(const struct seen *from, size_t steps, struct seen *to, rosa_error *err)
{
	rosa_status status = seen_new(to, from->vocabulary, from->delay, from->counts != NULL, err);

	if (status == ROSA_OK)
		status = seen_add(to, from->tokens, from->steps, err);
	if (status != ROSA_OK)
		return status;
	to->moved = from->moved;
	to->counted = from->counted;
	to->listed = from->listed;
	if (from->counts) {
		memcpy(to->counts, from->counts, from->vocabulary * sizeof(*to->counts));
		memcpy(to->classes, from->classes, from->vocabulary * sizeof(*to->classes));
		memcpy(to->list, from->list, from->listed * sizeof(*to->list));
	}
	seen_rewind(to, steps);
	return ROSA_OK;
}

uint64_t seen_bytes(const struct seen *seen)
{
	const uint64_t each = sizeof(*seen->counts) + sizeof(*seen->classes) + sizeof(*seen->list);

	return seen->room * sizeof(*seen->tokens) + (seen->counts ? seen->vocabulary * each : 0);
}
