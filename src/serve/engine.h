/* The thread that owns the decoder, and processes the tasks that other threads submit, in turns. */
#pragma once

#include "serve/sessions.h"
#include "serve/slot_request.h"

struct engine_options {
	size_t parallel;                             /* tasks that run at the same time */
	size_t queue;                                /* maximum number of requests, running or waiting */
	size_t sessions;                             /* maximum number in memory */
	uint64_t memory;                             /* bytes of all sequences, running and kept */
	const struct session_folder_options *folder; /* for kept ones on disk; NULL: none */
};

typedef struct engine engine;

/* `model` must outlive the engine. */
rosa_status engine_new(const struct served *model, const struct engine_options *options, engine **made,
		       rosa_error *err);
/* No task may be left. Cached texts are written to disk, if there is a folder for them. Safe on NULL. */
void engine_free(engine *engine);

/* Submits the tasks of one request. Fails with 429 if there are too many, or 503 if the engine is ending. */
bool engine_submit(engine *engine, struct serve_task **tasks, size_t count, struct api_error *error);

/* The engine's lock guards the fields of a task that other threads read. engine_wait releases it until something may
 * have changed, for at most a quarter of a second. */
void engine_lock(engine *engine);
void engine_unlock(engine *engine);
void engine_wait(engine *engine);

/* The end of a request's work: cancels the tasks that are not over and returns when the engine uses none of them any
 * more. Its place in the queue is then free, and its tasks can be read without the lock. */
void engine_leave(engine *engine, struct serve_task **tasks, size_t count);
/* The end of a request: its answer has been sent, or its client has gone. */
void engine_answered(engine *engine);

/* Saves, restores or erases the text that was last read in a slot, and returns when that is done. A slot that is in use
 * is refused (409). */
struct slot_result {
	size_t tokens;
	uint64_t bytes; /* of the file */
	double seconds;
};
bool engine_slot_do(engine *engine, const struct slot_request *request, struct slot_result *result,
		    struct api_error *error);

/* From now on no new requests are accepted. */
void engine_close(engine *engine);
/* Whether there is a request, or an answer is still being sent. */
bool engine_busy(engine *engine);
/* Ends all tasks at once, with an error. */
void engine_abort(engine *engine);

/* The totals and the current state of the engine. */
struct engine_slot {
	bool busy;
	size_t prompt, cached, read, made; /* tokens */
	size_t kept;                       /* tokens of the text that was last read here */
};
struct engine_report {
	size_t running, waiting, requests; /* tasks, tasks, requests */
	size_t sessions;                   /* in memory; files: on disk */
	uint64_t session_bytes, running_bytes;
	size_t files;
	uint64_t file_bytes;
	uint64_t finished, refused, failed, cancelled;    /* tasks; refused: requests */
	uint64_t prompt_tokens, cached_tokens, generated; /* tokens */
	uint64_t turns, slots_in_turns;                   /* slots_in_turns: the sum of those in use */
	double reading_seconds, writing_seconds;          /* of turns that read prompts, and of those that only wrote */
};
/* `slots` (may be NULL) has room for options.parallel. */
void engine_report(engine *engine, struct engine_report *report, struct engine_slot *slots);
const struct engine_options *engine_options(const engine *engine);
