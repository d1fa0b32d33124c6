/* A text that a model reads and goes on with. */
#ifndef ROSATUNE_GENERATE_RUN_H
#define ROSATUNE_GENERATE_RUN_H

#include "cli/models.h"
#include "model/sampler.h"
#include "model/stopping.h"
#include "cli/text_input.h"

/* A sequence as bytes in memory. */
struct snapshot {
	uint8_t *data;
	size_t size, room;
	size_t steps;
};

/*
 * The text so far is `tokens`, of which the sequence has read the first ones. The last one is read only when the one
 * after it is wanted: so what a model said last, and the last word of a prompt, are always still to be read, and a run
 * that is stopped anywhere goes on from its tokens and its sequence alone.
 */
struct run {
	struct model *model;
	tokenizer *tokenizer;
	struct sampler_options sampling;
	sampler *sampler;
	stopping *stopping;
	int64_t ends[16]; /* tokens that end an answer */
	size_t ends_count;

	sequence *sequence;
	struct tokens tokens;
	struct snapshot snapshot; /* an earlier state of the sequence, of the same tokens; size 0: none */
	float *logits;            /* [vocabulary] */

	bool warned;                        /* that the text is long */
	uint64_t read, made;                /* tokens */
	uint64_t reading_time, making_time; /* nanoseconds */
};

enum answer_end { ANSWER_LENGTH, ANSWER_END, ANSWER_STOP, ANSWER_INTERRUPTED };

extern const char *const answer_end_names[]; /* "length", "end", "stop", "interrupted" */

struct answer {
	struct text text;
	enum answer_end end;
	size_t made;  /* tokens, the last ones of the run; that which ended the answer is one of them */
	bool printed; /* to stdout, as it is made */
};

/* The model and its tokenizer must outlive the run. On failure nothing is left open. */
bool run_open(struct run *run, struct model *model, tokenizer *tokenizer, const struct sampler_options *sampling,
	      const struct arg_texts *stops, rosa_error *why);
void run_close(struct run *run); /* safe on a zeroed one */

/* One more token that ends an answer; -1 is passed over. */
void run_add_end(struct run *run, int64_t token);

/* Appends tokens, to be read later. */
bool run_append(struct run *run, const uint32_t *ids, size_t count, rosa_error *why);

/* Makes the text be these tokens and no others. What was read of them stays read: all that is there already, or what
 * the snapshot has, or nothing. */
bool run_become(struct run *run, const uint32_t *ids, size_t count, rosa_error *why);

/* The same from a saved state: the sequence, which the run takes over, has read the first tokens. */
bool run_resume(struct run *run, sequence *sequence, const struct tokens *tokens, uint64_t draws, rosa_error *why);

/* Reads up to the first `count` tokens. After Ctrl-C true as well: then less was read. */
bool run_read(struct run *run, size_t count, rosa_error *why);

/* Keeps the state of the sequence, in case the text has to go on from here in another way. */
bool run_remember(struct run *run, rosa_error *why);

/* Reads what is still to be read and makes up to `most` tokens. With most = 0 the last token stays unread. */
bool run_answer(struct run *run, size_t most, struct answer *answer, rosa_error *why);

/* A rate from a count and its time; 0 where no time has passed. */
double per_second(uint64_t count, uint64_t nanoseconds);

/* Says how much was read and made, how fast, and with how much memory, if stderr is a terminal. */
void run_report(const struct run *run);

/* model_warn_length, once in a run. */
void run_warn_length(struct run *run, size_t tokens, const char *command);

#endif
