/* What was read and is kept, so that a prompt that begins alike need not be read again. */
#ifndef ROSATUNE_SESSIONS_H
#define ROSATUNE_SESSIONS_H

#include "serve/task.h"

struct kept {
	struct tokens tokens; /* all read by the sequence */
	size_t floor;         /* the sequence can go back to any number of tokens from here on */
	sequence *sequence;
	pointer_past *past; /* NULL: none */
	uint64_t bytes;
	uint64_t used; /* when: a greater number is later */
};

/* A zeroed one is empty; `most` and `memory` are its limits. */
struct sessions {
	struct kept *all;
	size_t count, most;
	uint64_t bytes, memory; /* in use, and at most */
	uint64_t clock;
};

/* The kept session that saves most: `steps` of the first `count` tokens are known to it. 0: none is of use. */
struct session_choice {
	size_t index, steps;
};
struct session_choice sessions_choose(const struct sessions *sessions, const uint32_t *ids, size_t count);

/* Gives a task a sequence that has read as much of its prompt as is known. */
rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err);
/* Takes what a task has read. What does not fit is dropped, the oldest first. */
void sessions_keep(struct sessions *sessions, struct serve_task *task);
/* Keeps a copy of what a task has read so far, if it can be made and another sequence could not go back to here. */
void sessions_remember(struct sessions *sessions, struct serve_task *task);
/* Drops the oldest until no more than this is in use. */
void sessions_shrink(struct sessions *sessions, uint64_t bytes);
void sessions_free(struct sessions *sessions);

/* Bytes that a task's reading takes. */
uint64_t serve_task_bytes(const struct serve_task *task);

#endif
