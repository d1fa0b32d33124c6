/* The thread that writes and reads the files of kept texts, so that nobody else waits for a disk. */
#pragma once

#include "serve/sessions.h"

#include <pthread.h>

/* A text that somebody wants under a name, or back from there. Whoever hands it in waits until it is done. */
struct disk_errand {
	const char *name;
	uint64_t id;          /* of the session to save; 0: the file is loaded */
	const uint64_t *last; /* of a session to save: has this id as long as its slot is not used again */

	bool done;
	struct api_error error; /* status 0: none */
	size_t tokens;          /* of the text */
	uint64_t bytes;         /* of the file */
	struct session session; /* loaded */
	sequence *sequence;     /* likewise */
	struct disk_errand *next;
};

struct session_disk {
	struct sessions *sessions;
	pthread_mutex_t *lock;       /* the engine's, which guards all of this */
	pthread_cond_t *work, *news; /* the engine's, for its own thread and for those of clients */
	pthread_cond_t mine;         /* this thread's */
	pthread_t thread;
	struct disk_errand *errands; /* the first to come is the first */
	double saved;                /* when nothing was left to write, or something was written */
	bool started, ended;
	bool time;     /* nobody asks for anything */
	bool pressing; /* what is being written has waited long enough */
};

/* The sessions have a folder. The lock is not held. */
rosa_status session_disk_start(struct session_disk *disk, struct sessions *sessions, pthread_mutex_t *lock,
			       pthread_cond_t *work, pthread_cond_t *news, rosa_error *err);
/* Writes all that is left and ends. Safe on one that was not started. The lock is not held. */
void session_disk_end(struct session_disk *disk);

/* To be told after every look at what is to be done: whether there is time to write, since nobody asks for anything. */
void session_disk_tell(struct session_disk *disk, bool time);
/* Hands in an errand. */
void session_disk_ask(struct session_disk *disk, struct disk_errand *errand);
