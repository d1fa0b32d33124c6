/* The prompt cache: texts that were read, so that a prompt with the same prefix need not be read again, in memory and,
 * if there is a folder, on disk. The caller holds the engine's lock unless noted. */
#pragma once

#include "serve/session_folder.h"
#include "serve/task.h"

struct kept {
	uint64_t id;          /* unique while the server runs */
	struct tokens tokens; /* all read by the sequence; if `followed`, ids[count] is the next token */
	bool followed;
	bool silent;        /* read with memory off; such a text is not saved */
	size_t floor;       /* the sequence can be rewound to any number of tokens from this on */
	sequence *sequence; /* NULL: it is on disk only */
	pointer_past *past; /* NULL: none */
	uint64_t bytes;     /* of memory */
	uint64_t used;      /* time of the last use, by sessions.clock */
	uint64_t number;    /* of its file; 0: it has none */
	size_t saved;       /* the first so many tokens are in the file */
	uint64_t file_bytes;
	bool unwanted;   /* not to be saved: it does not fit on disk, or there is no folder */
	bool busy;       /* being written or loaded: it may be read but not changed */
	bool wanted;     /* a task waits for it to be loaded */
	bool leaving;    /* to be evicted from memory once it is written */
	bool doomed;     /* to be dropped when it is no longer busy */
	uint64_t failed; /* when it could not be loaded, by the clock of `used`; 0: never */
};

/* A zeroed one is empty. `most` and `memory` limit the number and bytes of sessions in memory; sessions that are
 * `leaving` do not count. `window` is that of attention. */
struct sessions {
	struct kept *all;
	size_t window;
	size_t count;      /* in memory or on disk */
	size_t held, most; /* in memory */
	uint64_t bytes, memory;
	uint64_t leaving;    /* bytes */
	uint64_t file_bytes; /* of all files */
	uint64_t changes;    /* count of sessions added, dropped or whose file was removed */
	bool hurry;          /* a task waits for a session that is busy or must be loaded */
	uint64_t clock;
	session_folder *folder; /* NULL: none */
};

/* Lists what is in the folder, and takes ownership of it. */
rosa_status sessions_recall(struct sessions *sessions, session_folder *folder, rosa_error *err);

/* The session that saves most: it has read `steps` of the first `count` tokens; 0: none is usable. A session that has
 * to be loaded must save more time than loading takes, and its loading must not have just failed. Sessions read with
 * memory off serve only requests with memory off, which use no others. */
struct session_choice {
	size_t index, steps;
};
struct session_choice sessions_choose(const struct sessions *sessions, bool silent, const uint32_t *ids, size_t count);

/* Gives a task a sequence that has read as much of its prompt as possible. If the session must be loaded first, or is
 * busy, the task gets none yet (task->sequence is NULL): call again after a disk job, or when `changes` has changed. */
rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err);
/* Takes what a task has read. What does not fit is dropped, the oldest first. Returns the id of the session that has
 * the text now, or 0. */
uint64_t sessions_keep(struct sessions *sessions, struct serve_task *task);
/* Keeps a copy of what a task has read so far, if there is memory and no other session could be truncated to it. */
void sessions_remember(struct sessions *sessions, struct serve_task *task);
/* Evicts the oldest sessions until those in memory take at most `bytes` and are at most `most`. Those not yet on disk
 * become `leaving`. */
void sessions_shrink(struct sessions *sessions, uint64_t bytes);
void sessions_free(struct sessions *sessions); /* closes the folder, whose files stay */

/* The session with this id; NULL: it is gone. */
struct kept *sessions_find(const struct sessions *sessions, uint64_t id);
/* Drops a session from memory and disk, together with the sessions that are beginnings of it (such as
 * sessions_remember makes), except those whose ids are in `spared` and those that also begin another session. */
void sessions_erase(struct sessions *sessions, struct kept *kept, const uint64_t *spared, size_t count);
/* Takes a session that was loaded, and its sequence; returns its id, or 0 if it could not be kept. */
uint64_t sessions_restore(struct sessions *sessions, struct session *session, sequence *sequence);

/* Whether a session can be saved at all: not if it was read with memory off, or its file is damaged. */
bool sessions_can_save(const struct kept *kept);
/* Whether loading it has just failed, so that another attempt now would fail too. */
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
