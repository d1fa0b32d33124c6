/* What was read and is kept, so that a prompt that begins alike need not be read again: in memory, and where there is a
 * folder for it, on disk. Whoever calls holds the engine's lock, unless said otherwise. */
#pragma once

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
	bool unwanted;   /* on disk: it does not fit there, or there is no folder */
	bool busy;       /* the disk has it: it is being written or loaded, and may be looked at but not changed */
	bool wanted;     /* a task waits for it to be loaded */
	bool leaving;    /* it leaves memory once it is written */
	bool doomed;     /* it goes once the disk has let go of it */
	uint64_t failed; /* when it could not be loaded, by the clock of `used`; 0: never */
};

/* A zeroed one is empty; `most` and `memory` are its limits in memory, `window` that of attention. Those that leave are
 * not held: they come on top until they are written. */
struct sessions {
	struct kept *all;
	size_t window;
	size_t count;      /* in memory or on disk */
	size_t held, most; /* in memory */
	uint64_t bytes, memory;
	uint64_t leaving;    /* bytes */
	uint64_t file_bytes; /* of all files */
	uint64_t changes;    /* so far: texts that came, went or lost their file */
	bool hurry;          /* somebody waits for the disk to let go of what it has */
	uint64_t clock;
	session_folder *folder; /* NULL: none */
};

/* Learns what is in the folder, which is the sessions' from now on. */
rosa_status sessions_recall(struct sessions *sessions, session_folder *folder, rosa_error *err);

/* The kept session that saves most: `steps` of the first `count` tokens are known to it. 0: none is of use. One that
 * has to be loaded must save more than the loading takes, and be one whose loading has not just failed. What was read
 * with an adapter that was off serves only those who want it off, and they nothing else. */
struct session_choice {
	size_t index, steps;
};
struct session_choice sessions_choose(const struct sessions *sessions, bool silent, const uint32_t *ids, size_t count);

/* Gives a task a sequence that has read as much of its prompt as is known. Where the disk must first load that or let
 * go of it, the task gets none yet (task->sequence is NULL): ask again when the disk has done something, or another
 * text has come or gone. */
rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err);
/* Takes what a task has read. What does not fit is dropped, the oldest first. Returns the id of the session that has
 * the text now, or 0. */
uint64_t sessions_keep(struct sessions *sessions, struct serve_task *task);
/* Keeps a copy of what a task has read so far, if it can be made and another sequence could not go back to here. */
void sessions_remember(struct sessions *sessions, struct serve_task *task);
/* Drops the oldest from memory until no more than this, and no more than `most`, is held. Those not yet on disk are
 * leaving then. */
void sessions_shrink(struct sessions *sessions, uint64_t bytes);
void sessions_free(struct sessions *sessions); /* closes the folder, whose files stay */

/* The session with this id; NULL: it is gone. */
struct kept *sessions_find(const struct sessions *sessions, uint64_t id);
/* Drops it, from memory and from disk, and with it the beginnings of it, such as sessions_remember makes, that neither
 * are spared (by their ids) nor begin a text that stays. */
void sessions_erase(struct sessions *sessions, struct kept *kept, const uint64_t *spared, size_t count);
/* Takes a session that was loaded, and its sequence; returns its id, or 0 if it could not be kept. */
uint64_t sessions_restore(struct sessions *sessions, struct session *session, sequence *sequence);

/* Drops the oldest files until all are within the limit. */
void sessions_fit(struct sessions *sessions);

/* Whether a session can be saved at all: not if it was read with an adapter that was off, or its file is damaged. */
bool sessions_can_save(const struct kept *kept);
/* Whether loading it has just failed; to try again at once would be in vain. */
bool sessions_failed(const struct sessions *sessions, const struct kept *kept);
/* Whether some session is still to be written. */
bool sessions_unsaved(const struct sessions *sessions);

/* Work for the disk, which takes time and is done without the lock, one piece after another. */
struct session_job {
	bool saves;              /* else it loads */
	uint64_t id;             /* of the session; 0: none */
	char name[SESSION_NAME]; /* of the file */
	uint64_t number;         /* of the file; 0: it has a name of its own */
	struct tokens tokens;    /* saved, and still the session's; one more than it has read */
	sequence *sequence;      /* saved, and still the session's; or loaded */
	struct session session;  /* loaded */
	uint64_t bytes;          /* of the file, before and after */
	rosa_status status;
	rosa_error error;
};
/* The next piece of work for kept texts: loading what tasks wait for, writing what leaves memory, writing whatever is
 * not yet written, in this order, the oldest first, and up to this kind. False: there is none. */
enum session_work { WORK_WANTED, WORK_LEAVING, WORK_ALL };
bool sessions_next_job(struct sessions *sessions, enum session_work most, struct session_job *job);
/* The saving of a session, under a name of its own where `name` is not NULL. It is in memory. */
struct session_job sessions_save_job(struct sessions *sessions, struct kept *kept, const char *name);
void session_job_do(const session_folder *folder, struct session_job *job, const struct file_hooks *hooks);
/* Notes how it went. What was loaded from a file with a name of its own stays with the job. */
void sessions_job_done(struct sessions *sessions, struct session_job *job);

/* Bytes that a task's reading takes. */
uint64_t serve_task_bytes(const struct serve_task *task);
