/* One prompt that is read and continued. A task does not run the decoder itself: serve_task_plan says what to read
 * next, and serve_task_take takes the logits of it, so that many tasks can share a decoder. */
#pragma once

#include "model/answer.h"
#include "model/pointer_past.h"
#include "serve/answer_places.h"
#include "serve/scores.h"
#include "serve/served.h"

enum serve_task_state { SERVE_WAITING, SERVE_RUNNING, SERVE_OVER };

struct serve_task {
	const struct served *model;
	const struct request *request; /* what is asked for */
	struct tokens tokens;          /* the prompt, then what was generated */
	size_t prompt;                 /* tokens of the prompt */

	/* What the thread that owns the decoder works with. */
	sequence *sequence;      /* has read a beginning of the tokens; NULL: not begun */
	pointer_past *past;      /* of the model's pointer, over a beginning of them; NULL: there is none */
	uint64_t file;           /* of the session that was taken over (sessions.h); 0: none */
	struct step_places step; /* what the last token read has found */
	/* Only from serve_task_begin to serve_task_strip. */
	float *logits;    /* [1 or SCORED_ROWS][vocabulary] */
	float *unaltered; /* [vocabulary], while scored */

	/* What others look at, under the engine's lock. */
	uint64_t number; /* of the request: its tasks have the same */
	size_t slot;     /* while it runs */
	enum serve_task_state state;
	bool cancelled;
	bool begun;             /* it has left the queue once: `cached` is known */
	size_t cached;          /* tokens of the prompt that did not have to be read */
	size_t read;            /* tokens read so far */
	struct api_error error; /* status 0: none */
	struct answer answer;
	struct scores scores;
	struct answer_places places;
	struct sequence_memory memory; /* once over, where places are told */
};

#define SCORED_ROWS ((size_t)32) /* tokens of a prompt that are scored at a time: a vocabulary is wide */

/* A task for a prompt of the request, which must outlive it; the tokens are taken over. */
bool serve_task_new(const struct served *model, const struct request *request, struct tokens *tokens,
		    struct serve_task **made, struct api_error *error);
void serve_task_free(struct serve_task *task); /* safe on NULL */

/* How many of the prompt's tokens need not be read if they are known: those whose logits are not asked for. */
size_t serve_task_reusable(const struct serve_task *task);

/* Whether its sequence must be one whose adapter is off. */
bool serve_task_silent(const struct serve_task *task);

/* To be called when it has a sequence. The task may be over at once. */
bool serve_task_begin(struct serve_task *task);
/* Releases what serve_task_begin has made to read and write with, and no answer needs: a request may have hundreds of
 * tasks, of which a few run at a time, and a vocabulary is wide. */
void serve_task_strip(struct serve_task *task);

/* Tokens that are to be read before the next one can be chosen. 1: it is writing. */
size_t serve_task_due(const struct serve_task *task);
/* The next tokens to read, at most `most` of them. */
struct piece serve_task_plan(const struct serve_task *task, size_t most);
/* Takes the logits of what was read. False after a failure, which `error` has; the task is over then, too. */
bool serve_task_take(struct serve_task *task, const struct piece *piece);
