/* The thread that writes and reads the files of kept sessions, so that no other thread waits for the disk. */
#pragma once

#include "serve/sessions.h"

#include <pthread.h>

/* A request to save the session of a slot in a file, or to load it. The thread that submits it waits for it. */
struct slot_transfer {
	const char *name;
	uint64_t id;          /* of the session to save; 0: the file is loaded */
	const uint64_t *last; /* when saving: *last equals id as long as the slot has not been used again */

	bool done;
	struct api_error error; /* status 0: none */
	size_t tokens;          /* of the text */
	uint64_t bytes;         /* of the file */
	struct session session; /* loaded */
	sequence *sequence;     /* likewise */
	struct slot_transfer *next;
};

struct session_disk {
	struct sessions *sessions;
	pthread_mutex_t *lock;       /* the engine's, which guards all of this */
	pthread_cond_t *work, *news; /* the engine's, for its own thread and for those of clients */
	pthread_cond_t mine;         /* this thread's */
	pthread_t thread;
	struct slot_transfer *transfers; /* in the order of arrival */
	double saved; /* the last time that something was written, or that there was nothing to write */
	bool started, ended;
	bool time;     /* the engine is idle */
	bool pressing; /* the session being written has waited so long that writing is not interrupted */
};

/* The sessions have a folder. The lock is not held. */
rosa_status session_disk_start(struct session_disk *disk, struct sessions *sessions, pthread_mutex_t *lock,
			       pthread_cond_t *work, pthread_cond_t *news, rosa_error *err);
/* Writes all remaining sessions and ends. Safe on one that was not started. The lock is not held. */
void session_disk_end(struct session_disk *disk);

/* Called by the engine after each turn: `time` says whether it is idle, so that there is time to write. */
void session_disk_tell(struct session_disk *disk, bool time);
/* Submits a transfer. */
void session_disk_ask(struct session_disk *disk, struct slot_transfer *transfer);
