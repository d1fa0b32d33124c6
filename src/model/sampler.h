/* The choice of the next token from logits. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct sampler_options {
	float temperature;  /* 0: always the likeliest */
	size_t top_k;       /* 0: all */
	float top_p;        /* 1: all */
	float min_p;        /* 0: all; share of the likeliest token's probability below which tokens are dropped */
	float repetition;   /* 1: none; as in Hugging Face: logits of recent tokens are divided by it, or multiplied if
			       negative */
	size_t repeat_last; /* the penalty covers this many last tokens; 0: all */
	uint64_t seed;
};

#define SAMPLER_OPTIONS_INIT                                                                                           \
	{                                                                                                              \
		0, 0, 1, 0, 1, 64, 0                                                                                   \
	}

typedef struct sampler sampler;

rosa_status sampler_new(const struct sampler_options *options, size_t vocabulary, sampler **made, rosa_error *err);
void sampler_free(sampler *sampler); /* safe on NULL */

/* Records a token that was read or chosen, for the repetition penalty. Ids outside the vocabulary are ignored. */
void sampler_saw(sampler *sampler, uint32_t token);
/* Choose; `logits` [vocabulary] may be changed. Ties go to the lowest id. The same seed and logits give the same choice
 * everywhere: the n-th draw is a function of seed and n. NaN is never chosen; where all are NaN the choice is 0.
 *
 * In order: repetition penalty, temperature, top_k, top_p, min_p, draw. top_k keeps exactly that many. top_p keeps the
 * smallest set of likeliest tokens whose share of what top_k left reaches it. With temperature 0 nothing is drawn. */
uint32_t sampler_choose(sampler *sampler, float *logits);

/* Random draws so far. With the tokens, this is all that a session has to keep. */
uint64_t sampler_draws(const sampler *sampler);
void sampler_set_draws(sampler *sampler, uint64_t draws);
