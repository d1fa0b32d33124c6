/* The answer of a model: tokens that are chosen from logits one at a time, and the text that they become. */
#pragma once

#include "base/text.h"
#include "model/checkpoint.h"
#include "model/sampler.h"
#include "model/stopping.h"
#include "model/tokenizer.h"

/* Why an answer ended; ANSWER_OPEN: it goes on. */
enum answer_end { ANSWER_OPEN, ANSWER_LENGTH, ANSWER_END, ANSWER_STOP, ANSWER_INTERRUPTED };

extern const char *const answer_end_names[]; /* "open", "length", "end", "stop", "interrupted" */

struct answer_options {
	const tokenizer *tokenizer;
	const struct model_config *config; /* its vocabulary, and the tokens that end an answer */
	int64_t end;                       /* another token that ends one; -1: none */
	const char *const *stops;          /* texts that end one */
	size_t stop_count;
	struct sampler_options sampling;
};

/* One answer, or several, one after the other. A zeroed one is closed. */
struct answer {
	struct answer_options options;
	sampler *sampler;
	stopping *stopping;
	struct decoding decoding;
	char *decoded, *passed; /* the text of a token, before and after the stop strings */

	struct text text;
	size_t made;       /* tokens, with the one that ended it */
	size_t characters; /* of all tokens decoded; the text may lack some, which are held back */
	enum answer_end end;
};

/* What the options point to must outlive it, but for the stop strings. On failure nothing is left open. */
rosa_status answer_open(struct answer *answer, const struct answer_options *options, rosa_error *err);
/* Releases all but the text and the numbers. Safe on a closed one. */
void answer_strip(struct answer *answer);
void answer_close(struct answer *answer);

/* Begins the next answer: no text, no tokens. */
void answer_begin(struct answer *answer);
/* A sampler that has seen no token, and continues with draw number `draws`. */
rosa_status answer_restart(struct answer *answer, uint64_t draws, rosa_error *err);

/* Appends tokens to those that are continued: the sampler sees them. */
rosa_status answer_read(struct answer *answer, struct tokens *tokens, const uint32_t *ids, size_t count,
			rosa_error *err);
/* A token of the prompt as a part of the text, special ones spelled out; for before the first step. */
rosa_status answer_echo(struct answer *answer, uint32_t token, rosa_error *err);

/* Whether a token ends an answer. */
bool answer_is_end(const struct answer *answer, uint32_t token);

/* Chooses the next token from logits [vocabulary], which may be changed, and appends it to the tokens and to the
 * answer. `end` says whether that goes on. */
rosa_status answer_step(struct answer *answer, float *logits, struct tokens *tokens, rosa_error *err);
/* The part of it after the choice, for tokens that were chosen elsewhere. */
rosa_status answer_take(struct answer *answer, uint32_t token, rosa_error *err);
/* Ends an answer that goes on: what was held back belongs to it, unless that completes a stop string. */
rosa_status answer_finish(struct answer *answer, enum answer_end end, rosa_error *err);
