/* What was read and is kept, so that a prompt that begins alike need not be read again: in memory, and where there is a
 * folder for it, on disk. */
#ifndef ROSATUNE_SESSIONS_H
#define ROSATUNE_SESSIONS_H

#include "serve/session_folder.h"
#include "serve/task.h"

struct kept {
	uint64_t id;          /* its own while the server runs */
	struct tokens tokens; /* all read by the sequence; where `followed`, one more lies behind them */
	bool followed;
	bool silent;        /* read with an adapter that was off; such a text is not saved */
	size_t floor;       /* the sequence can go back to any number of tokens from here on */
	sequence *sequence; /* NULL: it is on disk only */
	pointer_past *past; /* NULL: none */
	uint64_t bytes;     /* of memory */
	uint64_t used;      /* when: a greater number is later */
	uint64_t number;    /* of its file; 0: it has none */
	size_t saved;       /* the first so many tokens are in the file */
	uint64_t file_bytes;
	bool unwanted; /* on disk: it does not fit there */
};

/* A zeroed one is empty; `most` and `memory` are its limits in memory, `window` that of attention. */
struct sessions {
	struct kept *all;
	size_t window;
	size_t count;      /* in memory or on disk */
	size_t held, most; /* in memory */
	uint64_t bytes, memory;
	uint64_t file_bytes; /* of all files */
	uint64_t clock;
	session_folder *folder; /* NULL: none */
};

/* Learns what is in the folder, which is the sessions' from now on. */
rosa_status sessions_recall(struct sessions *sessions, session_folder *folder, rosa_error *err);

/* The kept session that saves most: `steps` of the first `count` tokens are known to it. 0: none is of use. What was
 * read with an adapter that was off serves only those who want it off, and they nothing else. */
struct session_choice {
	size_t index, steps;
};
struct session_choice sessions_choose(const struct sessions *sessions, bool silent, const uint32_t *ids, size_t count);

/* Gives a task a sequence that has read as much of its prompt as is known. */
rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err);
/* Takes what a task has read. What does not fit is dropped, the oldest first. Returns the id of the session that has
 * the text now, or 0. */
uint64_t sessions_keep(struct sessions *sessions, struct serve_task *task);
/* Keeps a copy of what a task has read so far, if it can be made and another sequence could not go back to here. */
void sessions_remember(struct sessions *sessions, struct serve_task *task);
/* Drops the oldest from memory until no more than this is in use. Those not yet on disk are written first. */
void sessions_shrink(struct sessions *sessions, uint64_t bytes);
void sessions_free(struct sessions *sessions); /* closes the folder, whose files stay */

/* The oldest session that is to be written; NULL: none. Writing it is in two parts, since it takes time: the first
 * changes nothing but the file, the second notes how it went. Of a cancelled attempt nothing is noted. */
struct kept *sessions_unsaved(const struct sessions *sessions);
struct session_write {
	uint64_t number, bytes;
	rosa_status status;
	rosa_error error;
};
struct session_write sessions_write(const struct sessions *sessions, const struct kept *kept,
				    const struct file_hooks *hooks);
void sessions_wrote(struct sessions *sessions, struct kept *kept, const struct session_write *write);

/* The session with this id, in memory if `held`; NULL: it is gone. */
struct kept *sessions_find(struct sessions *sessions, uint64_t id, bool held);
/* Drops it, from memory and from disk. */
void sessions_erase(struct sessions *sessions, struct kept *kept);
/* Takes a session that was loaded, and its sequence; returns its id, or 0 if it could not be kept. */
uint64_t sessions_restore(struct sessions *sessions, struct session *session, sequence *sequence);

/* Drops the oldest files until all are within the limit. */
void sessions_fit(struct sessions *sessions);

/* Bytes that a task's reading takes. */
uint64_t serve_task_bytes(const struct serve_task *task);

#endif
