/* Logarithms of probabilities of tokens, and of the likeliest ones at their places. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct likely_token {
	uint32_t id;
	double logprob;
};

struct token_score {
	uint32_t id;
	bool known; /* false: the first token of a text, which has no prediction */
	double logprob;
	size_t offset; /* characters of the text before it */
};

/* A zeroed one is empty. */
struct scores {
	struct token_score *all;
	struct likely_token *top; /* [room][width], the likeliest first; ties go to the lower id */
	size_t count, room, top_room, width;
};

/* Appends a token whose place had these logits (NULL: none). `width` is the same in all calls and at most
 * `vocabulary`. */
rosa_status scores_add(struct scores *scores, uint32_t id, size_t offset, const float *logits, size_t vocabulary,
		       size_t width, rosa_error *err);
void scores_free(struct scores *scores); /* safe on a zeroed one */
