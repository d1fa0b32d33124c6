/* Scores are computed in double precision, from the logits before any sampling option changes them. */
#include "serve/scores.h"

#include "base/array.h"
#include "base/status.h"
#include "model/pointer.h"

#include <math.h>
#include <stdlib.h>

static rosa_status make_room(struct scores *scores, rosa_error *err)
{
	if (ARRAY_RESERVE(scores->all, scores->room, scores->count + 1) &&
	    ARRAY_RESERVE(scores->top, scores->top_room, (scores->count + 1) * scores->width))
		return ROSA_OK;
	return rosa_fail(err, ROSA_ENOMEM, "not enough memory for the scores of %zu tokens", scores->count + 1);
}

/* The `width` greatest, by insertion: width is small, and most logits are below the least of them. */
static void find_top(const float *logits, size_t vocabulary, double sum, struct likely_token *top, size_t width)
{
	size_t found = 0;

	for (size_t i = 0; i < vocabulary; i++) {
		const double logprob = (double)logits[i] - sum;
		size_t at = found < width ? found : width - 1;

		if (found == width && !(logprob > top[at].logprob))
			continue;
		for (; at > 0 && logprob > top[at - 1].logprob; at--)
			top[at] = top[at - 1];
		top[at] = (struct likely_token){(uint32_t)i, logprob};
		found += found < width;
	}
}

rosa_status scores_add(struct scores *scores, uint32_t id, size_t offset, const float *logits, size_t vocabulary,
		       size_t width, rosa_error *err)
{
	struct token_score score = {.id = id, .known = logits != NULL, .offset = offset};
	rosa_status status;

	scores->width = width;
	status = make_room(scores, err);
	if (status != ROSA_OK)
		return status;
	if (logits) {
		const double sum = logits_summary(logits, vocabulary).sum;

		score.logprob = (double)logits[id] - sum;
		if (width)
			find_top(logits, vocabulary, sum, scores->top + scores->count * width, width);
	}
	scores->all[scores->count++] = score;
	return ROSA_OK;
}

void scores_free(struct scores *scores)
{
	free(scores->all);
	free(scores->top);
	*scores = (struct scores){0};
}
