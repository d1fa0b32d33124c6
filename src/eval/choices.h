/* Choices between continuations: which one a model finds likeliest. */
#pragma once

#include "eval/scoring.h"
#include "eval/tasks.h"
#include "model/tokenizer.h"

/* Without the pointer, or with it. */
struct choice_result {
	double *logarithms; /* [continuations]: ln p(continuation | its context) */
	size_t picked;      /* the likeliest continuation; of equals the first */
	size_t picked_long; /* the same by logarithm per character, a space at the beginning not counted */
	bool written;       /* every token of the first continuation is the likeliest */
};

/* Scores the continuations of an example, all side by side after what they have in common, which is read once. Of
 * `scoring` the decoder, the workers and the pointer are used. A continuation's tokens are those of context and
 * continuation as one text, after as many as the context alone has without white space at its end; a begin-of-text
 * token is put before them where the tokenizer has one. `mixed` is filled in with a pointer only. */
rosa_status choice_score(const struct scoring *scoring, const tokenizer *tokenizer, const struct eval_example *example,
			 struct choice_result *plain, struct choice_result *mixed, rosa_progress progress,
			 void *context, rosa_error *err);

/* Context and continuation as one text, and which of its tokens is the continuation's first, by the same rule. On
 * failure there is nothing to free. */
rosa_status choice_encode(const tokenizer *tokenizer, const char *context, const char *continuation,
			  struct tokens *tokens, size_t *first, rosa_error *err);
/* Fills in what is picked, from the logarithms. */
void choice_pick(const struct eval_example *example, struct choice_result *result);

void choice_free(struct choice_result *result); /* safe on a zeroed one */
