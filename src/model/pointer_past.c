/*
 * The growing look-up of a pointer.
 *
 * Two streams over the same token ids. One finds, with the pointer's delay, the first place of each chain. The other
 * has no delay; what it finds at every position is kept, five bytes per token, and is where a chain goes on: the place
 * before the one found, and what that had itself found. So a chain of any length costs two searches per token.
 */
#include "model/pointer_past.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)1024) /* tokens searched at a time */
#define BITS  20             /* of an id; symbols of more than 16 bits are uint32_t */

struct pointer_past {
	size_t links, vocabulary;
	rosa_stream *late, *now; /* with and without the delay */
	size_t steps, room;
	uint32_t *tokens; /* [room] */
	int32_t *tau;     /* [room]: found without delay; -1: nothing */
	uint8_t *length;  /* [room]: of that match, cut at 255 */
	int32_t late_tau[BLOCK], late_length[BLOCK], now_length[BLOCK];
};

static uint8_t cut(int32_t length)
{
	return length > UINT8_MAX ? UINT8_MAX : (uint8_t)length;
}

rosa_status pointer_past_new(const struct pointer *pointer, size_t vocabulary, pointer_past **made, rosa_error *err)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	pointer_past *past = NULL;
	rosa_status status = ROSA_OK;

	*made = NULL;
	options.fold = 0;
	options.bits = BITS;
	if (vocabulary > (size_t)1 << BITS)
		return rosa_fail(err, ROSA_EINVAL, "a pointer finds token ids below %zu; the vocabulary has %zu",
				 (size_t)1 << BITS, vocabulary);
	past = calloc(1, sizeof(*past));
	if (!past)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a pointer");
	past->links = pointer->links;
	past->vocabulary = vocabulary;
	status = rosa_stream_new(&options, 1, &past->now, err);
	options.delay = (uint32_t)pointer->delay;
	if (status == ROSA_OK)
		status = rosa_stream_new(&options, 1, &past->late, err);
	if (status == ROSA_OK)
		*made = past;
	else
		pointer_past_free(past);
	return status;
}

void pointer_past_free(pointer_past *past)
{
	if (!past)
		return;
	rosa_stream_free(past->late);
	rosa_stream_free(past->now);
	free(past->tokens);
	free(past->tau);
	free(past->length);
	free(past);
}

static rosa_status make_room(pointer_past *past, size_t count, rosa_error *err)
{
	size_t room = past->room;
	void *bigger;

	if (count > ROSA_MAX_STEPS - past->steps)
		return rosa_fail(err, ROSA_EINVAL, "a text has at most %zu tokens", ROSA_MAX_STEPS);
	if (past->steps + count <= room)
		return ROSA_OK;
	room = past->steps + count + room / 2;
	bigger = realloc(past->tokens, room * sizeof(*past->tokens));
	past->tokens = bigger ? bigger : past->tokens;
	if (bigger && (bigger = realloc(past->tau, room * sizeof(*past->tau))))
		past->tau = bigger;
	if (bigger && (bigger = realloc(past->length, room)))
		past->length = bigger;
	if (!bigger)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a pointer into %zu tokens", past->steps + count);
	past->room = room;
	return ROSA_OK;
}

/* Searches both streams for the `count` tokens after the first `steps`, at most a block. */
static rosa_status search(pointer_past *past, size_t count, rosa_error *err)
{
	const size_t first = past->steps;
	const uint32_t *tokens = past->tokens + first;
	rosa_status status =
	    rosa_stream_push(past->late, count, tokens, tokens, 0, past->late_tau, past->late_length, NULL, err);

	if (status == ROSA_OK)
		status = rosa_stream_push(past->now, count, tokens, tokens, 0, past->tau + first, past->now_length,
					  NULL, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++)
		past->length[first + i] = cut(past->now_length[i]);
	return status;
}

/* The links of the chain that begins at place `tau` with a match of this length. */
static void follow(const pointer_past *past, int32_t tau, uint8_t length, struct pointer_links *found)
{
	found->count = 0;
	while (tau > 0 && found->count < past->links) { /* a place has one before it: it is never 0 */
		found->token[found->count] = past->tokens[tau];
		found->length[found->count++] = length;
		if (past->length[tau - 1] < length)
			length = past->length[tau - 1];
		tau = past->tau[tau - 1];
	}
}

rosa_status pointer_past_add(pointer_past *past, const uint32_t *tokens, size_t count, struct pointer_links *found,
			     rosa_error *err)
{
	rosa_status status = make_room(past, count, err);

	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		if (tokens[i] >= past->vocabulary)
			return rosa_fail(err, ROSA_EINVAL, "token %zu is %u; the vocabulary has %zu", past->steps + i,
					 (unsigned)tokens[i], past->vocabulary);
	}
	if (status == ROSA_OK && count)
		memcpy(past->tokens + past->steps, tokens, count * sizeof(*tokens));
	for (size_t done = 0; done < count && status == ROSA_OK;) {
		const size_t some = count - done < BLOCK ? count - done : BLOCK;

		status = search(past, some, err);
		for (size_t i = 0; i < some && status == ROSA_OK && found; i++)
			follow(past, past->late_tau[i], cut(past->late_length[i]), &found[done + i]);
		past->steps += some;
		done += some;
	}
	return status;
}

rosa_status pointer_past_rewind(pointer_past *past, size_t steps, rosa_error *err)
{
	rosa_status status = rosa_stream_rewind(past->late, steps, err);

	if (status == ROSA_OK)
		status = rosa_stream_rewind(past->now, steps, err);
	if (status == ROSA_OK)
		past->steps = steps;
	return status;
}

size_t pointer_past_steps(const pointer_past *past)
{
	return past->steps;
}

uint64_t pointer_past_bytes(const pointer_past *past)
{
	const rosa_stream *const streams[] = {past->late, past->now};
	uint64_t bytes =
	    sizeof(*past) + past->room * (sizeof(*past->tokens) + sizeof(*past->tau) + sizeof(*past->length));

	for (size_t i = 0; i < 2; i++) {
		rosa_stream_info info = {.size = sizeof(info)};

		if (rosa_stream_describe(streams[i], &info, NULL) == ROSA_OK)
			bytes += info.bytes;
	}
	return bytes;
}
