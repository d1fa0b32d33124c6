/* A text that a model reads and continues. */
#pragma once

#include "cli/models.h"
#include "model/answer.h"
#include "model/pointer_past.h"

/*
 * The text so far is `tokens`, and the sequence has read the first of them. The last token is read only when the one
 * after it is needed. So the last token of a prompt or of an answer is always unread, and a run that was stopped at any
 * point can be resumed from its tokens and its sequence alone.
 */
struct run {
	struct model *model;
	struct answer answer; /* the last one: the last tokens of `tokens` */
	bool printed;         /* it is written to stdout as it is generated */

	sequence *sequence;
	struct tokens tokens;
	struct kept_sequence kept; /* the sequence after fewer of the same tokens; size 0: none */
	float *logits;             /* [vocabulary] */
	pointer_past *past;        /* of the model's pointer, over a beginning of `tokens`; NULL: there is no pointer */

	const char *label;                  /* of the progress bar while reading */
	bool warned;                        /* the notice of a long text was printed */
	uint64_t read, made;                /* tokens */
	uint64_t reading_time, making_time; /* nanoseconds */
};

/* The model and its tokenizer must outlive the run. On failure nothing is left open. */
bool run_open(struct run *run, struct model *model, const tokenizer *tokenizer, const struct sampler_options *sampling,
	      const struct arg_texts *stops, rosa_error *why);
void run_close(struct run *run); /* safe on a zeroed one */

/* Appends tokens, which are read later. */
bool run_append(struct run *run, const uint32_t *ids, size_t count, rosa_error *why);

/* Replaces the text by these tokens. As much as possible of what was read is kept: all of it if the sequence has read
 * only tokens that both texts begin with, else what the kept state has read, else nothing. */
bool run_become(struct run *run, const uint32_t *ids, size_t count, rosa_error *why);

/* Replaces the text by that of a saved state. The sequence, which has read the first of the tokens, becomes the run's.
 */
bool run_resume(struct run *run, sequence *sequence, const struct tokens *tokens, uint64_t draws, rosa_error *why);

/* Reads until the first `count` tokens are read. Also true after Ctrl-C: then fewer are. */
bool run_read(struct run *run, size_t count, rosa_error *why);

/* Keeps the state of the sequence, so that the text can be continued from here in another way. */
bool run_remember(struct run *run, rosa_error *why);

/* Reads the unread tokens and generates up to `most` tokens. With most = 0 the last token stays unread. */
bool run_answer(struct run *run, size_t most, rosa_error *why);

/* A rate from a count and its time; 0 where no time has passed. */
double per_second(uint64_t count, uint64_t nanoseconds);

/* Prints how many tokens were read and generated, how fast, and with how much memory, if stderr is a terminal. */
void run_report(const struct run *run);

/* model_warn_length, once in a run. */
void run_warn_length(struct run *run, size_t tokens, const char *command);
