/*
 * The growing look-up of a pointer: a finder over the token ids and the ids themselves, or the contexts of the text.
 *
 * What has been seen is counted for the last token alone. Who needs it at every token adds them one at a time.
 */
#include "model/pointer_past.h"

#include "base/status.h"
#include "rosa/finder.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)1024) /* tokens searched at a time */

struct pointer_past {
	size_t vocabulary;
	rosa_contexts *contexts; /* NULL: a chain, which has what follows */
	struct finder finder;
	struct places places; /* of a block */
	bool keeping;         /* the next has tokens: those of a chain, or where there is a table, which counts them */
	struct seen seen;
};

rosa_status pointer_past_new(const struct pointer *pointer, size_t vocabulary, pointer_past **made, rosa_error *err)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	pointer_past *past = NULL;
	rosa_status status = ROSA_OK;

	*made = NULL;
	options.fold = 0;
	options.bits = ROSA_MAX_SYMBOL_BITS; /* of more than 16 bits, so symbols are uint32_t as ids are */
	options.delay = (uint32_t)pointer->delay;
	if (vocabulary > (size_t)1 << ROSA_MAX_SYMBOL_BITS)
		return rosa_fail(err, ROSA_EINVAL, "a pointer finds token ids below %zu; the vocabulary has %zu",
				 (size_t)1 << ROSA_MAX_SYMBOL_BITS, vocabulary);
	past = calloc(1, sizeof(*past));
	if (!past)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a pointer");
	past->vocabulary = vocabulary;
	past->keeping = !pointer->contexts || pointer->seeing;
	if (pointer->contexts)
		status = rosa_contexts_new(&options, &past->contexts, err);
	else
		status = finder_new(&past->finder, &options, 1, pointer->links, err);
	if (status == ROSA_OK)
		status = seen_new(&past->seen, vocabulary, pointer->delay, pointer->seeing, err);
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
	rosa_contexts_free(past->contexts);
	finder_free(&past->finder);
	places_free(&past->places);
	seen_free(&past->seen);
	free(past);
}

/* The links of step `step` of the block. */
static void take_links(const pointer_past *past, size_t step, struct pointer_links *found)
{
	const struct places *places = &past->places;

	memset(found, 0, sizeof(*found));
	for (size_t at = step; found->count < places->links && places->tau[at] >= 0; at += places->steps) {
		found->token[found->count] = past->seen.tokens[places->tau[at]];
		found->place[found->count] = places->tau[at];
		found->length[found->count++] = places->length[at];
	}
}

static void take_continuation(const rosa_continuation *from, struct pointer_links *found)
{
	found->count = from->count;
	found->places = from->places;
	found->different = from->different;
	found->success = from->success;
	memcpy(found->token, from->token, sizeof(found->token));
	memcpy(found->place, from->place, sizeof(found->place));
	memcpy(found->length, from->length, sizeof(found->length));
	memcpy(found->alignment, from->alignment, sizeof(found->alignment));
	memcpy(found->as_long, from->as_long, sizeof(found->as_long));
	memcpy(found->followed_by, from->followed_by, sizeof(found->followed_by));
}

static rosa_status add_contexts(pointer_past *past, const uint32_t *tokens, size_t count, struct pointer_links *found,
				rosa_error *err)
{
	rosa_continuation block[32];
	const size_t most = sizeof(block) / sizeof(block[0]);
	rosa_status status = ROSA_OK;

	for (size_t done = 0, some; done < count && status == ROSA_OK; done += some) {
		some = count - done < most ? count - done : most;
		status = rosa_contexts_push(past->contexts, some, tokens + done, block, err);
		for (size_t i = 0; i < some && status == ROSA_OK && found; i++)
			take_continuation(&block[i], &found[done + i]);
	}
	return status;
}

/* The tokens must have been kept. */
static rosa_status add_chain(pointer_past *past, const uint32_t *tokens, size_t count, struct pointer_links *found,
			     rosa_error *err)
{
	const struct past_control control = {READS_FOUND, 0};
	rosa_status status = ROSA_OK;

	for (size_t done = 0, some; done < count && status == ROSA_OK; done += some) {
		some = count - done < BLOCK ? count - done : BLOCK;
		status = places_reserve(&past->places, past->finder.links, 1, some, err);
		if (status == ROSA_OK)
			status =
			    finder_find(&past->finder, some, tokens + done, tokens + done, control, &past->places, err);
		for (size_t i = 0; i < some && status == ROSA_OK && found; i++)
			take_links(past, i, &found[done + i]);
	}
	return status;
}

rosa_status pointer_past_add(pointer_past *past, const uint32_t *tokens, size_t count, struct pointer_links *found,
			     rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < count; i++) {
		if (tokens[i] >= past->vocabulary)
			return rosa_fail(err, ROSA_EINVAL, "token %zu is %u; the vocabulary has %zu",
					 pointer_past_steps(past) + i, (unsigned)tokens[i], past->vocabulary);
	}
	if (past->keeping)
		status = seen_add(&past->seen, tokens, count, err);
	if (status == ROSA_OK)
		status = (past->contexts ? add_contexts : add_chain)(past, tokens, count, found, err);
	if (status == ROSA_OK)
		seen_count(&past->seen, past->seen.steps);
	return status;
}

rosa_status pointer_past_rewind(pointer_past *past, size_t steps, rosa_error *err)
{
	const rosa_status status = past->contexts ? rosa_contexts_rewind(past->contexts, steps, err)
						  : finder_rewind(&past->finder, steps, err);

	if (status == ROSA_OK && past->keeping)
		seen_rewind(&past->seen, steps);
	return status;
}

rosa_status pointer_past_mix(pointer_past *past, const struct pointer *pointer, const uint32_t *tokens, size_t last,
			     float *logits, struct pointer_links *found, double shares[POINTER_LINKS], rosa_error *err)
{
	struct pointer_links own;
	struct pointer_links *links = found ? found : &own;
	rosa_status status = ROSA_OK;

	if (pointer_past_steps(past) > last)
		status = pointer_past_rewind(past, last, err);
	const size_t steps = pointer_past_steps(past);
	if (status == ROSA_OK)
		status = pointer_past_add(past, tokens + steps, last - steps, NULL, err);
	if (status == ROSA_OK)
		status = pointer_past_add(past, tokens + last, 1, links, err);
	if (status != ROSA_OK)
		return status;
	if (shares)
		pointer_shares(pointer, links, logits, past->vocabulary, shares);
	pointer_mix(pointer, links, pointer_past_seen(past), logits, past->vocabulary);
	return ROSA_OK;
}

const uint8_t *pointer_past_seen(const pointer_past *past)
{
	return past->seen.counted ? past->seen.classes : NULL;
}

size_t pointer_past_steps(const pointer_past *past)
{
	return past->contexts ? rosa_contexts_steps(past->contexts) : past->finder.steps;
}

uint64_t pointer_past_bytes(const pointer_past *past)
{
	return sizeof(*past) + seen_bytes(&past->seen) +
	       (past->contexts ? rosa_contexts_bytes(past->contexts) : finder_bytes(&past->finder));
}
