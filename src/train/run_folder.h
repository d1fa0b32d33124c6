/* A run on disk: a folder of checkpoints, each of which is a folder that is either complete or not there. */
#pragma once

#include "base/file.h"
#include "base/paths.h"

/* How far a run is: together with the configuration and the parameters this is all of its state. */
struct run_state {
	uint64_t step;       /* steps taken in all stages */
	uint64_t stage;      /* from 0 */
	uint64_t stage_step; /* steps taken of it */
	uint64_t tokens;     /* read so far */
	double seconds;      /* of training */
	uint64_t model;      /* the fingerprint of the model begun from */
	uint64_t data;       /* the checksum of the stage's data (dataset_checksum); 0: not known */
	uint64_t data_time;  /* when it was last written (dataset_changed) */
};

struct run_folder {
	struct path path, checkpoints;
	int lock;
	bool locked;
};

/* Makes the folder if it is missing and locks it: two runs in one folder would remove each other's checkpoints. Removes
 * what a killed run left half-written. */
rosa_status run_folder_open(const char *path, struct run_folder *folder, rosa_error *err);
void run_folder_close(struct run_folder *folder); /* safe on a zeroed one */

/* The same without changing anything: nothing is made, kept locked, renamed or removed. Fails if the folder could not
 * be made, or another run has it. */
rosa_status run_folder_look(const char *path, struct run_folder *folder, rosa_error *err);

/* Where the checkpoint of a step is. */
struct path run_folder_checkpoint(const struct run_folder *folder, uint64_t step);

/* The step of the newest checkpoint, whole or not; UINT64_MAX: there is none. */
uint64_t run_folder_newest(const struct run_folder *folder);
/* Fails if there is any checkpoint: a new run may not begin here. */
rosa_status run_folder_check_new(const struct run_folder *folder, rosa_error *err);

/* Removes all checkpoints but the newest `keep` (0: none is removed). */
rosa_status run_folder_keep(struct run_folder *folder, size_t keep, rosa_error *err);

/* ------------------------------------------------------------------------------------------------------ writing -- */

#define CHECKPOINT_FILES 24

struct checkpoint_file {
	char name[64];
	uint64_t bytes, checksum;
};

/* A checkpoint being written. It gets its name when it is committed. */
struct checkpoint_writer {
	struct run_folder *folder;
	uint64_t step;
	struct path path; /* while it is written; else empty */
	struct checkpoint_file files[CHECKPOINT_FILES];
	size_t count;
	struct checksum sum; /* of the file that is being written */
};

rosa_status checkpoint_begin(struct checkpoint_writer *writer, struct run_folder *folder, uint64_t step,
			     rosa_error *err);
/* Files are written one after the other: open, file_write, done; `written` is as in file_finish. */
rosa_status checkpoint_file_open(struct checkpoint_writer *writer, const char *name, struct file_writer *file,
				 rosa_error *err);
rosa_status checkpoint_file_done(struct checkpoint_writer *writer, struct file_writer *file, rosa_status written,
				 rosa_error *err);
/* The same for a file that is in memory. */
rosa_status checkpoint_file_save(struct checkpoint_writer *writer, const char *name, const void *data, size_t size,
				 rosa_error *err);
/* Writes state.json, gives the folder its name, and removes older ones as run_folder_keep does. The writer must
 * not be used afterwards, even if this fails. */
rosa_status checkpoint_commit(struct checkpoint_writer *writer, const struct run_state *state, size_t keep,
			      rosa_error *err);
void checkpoint_abandon(struct checkpoint_writer *writer); /* safe on a zeroed or committed one */

/* ------------------------------------------------------------------------------------------------------ reading -- */

struct checkpoint_found {
	struct path path; /* empty: there is none */
	struct run_state state;
	struct checkpoint_file files[CHECKPOINT_FILES];
	size_t count;
};

/* The newest checkpoint whose files are all there and have their checksums. `note` (NULL: none) is called with a
 * message about each damaged one, which is renamed to "damaged-...", so that it is reported once. It is an error if
 * there are checkpoints but none is whole, and if one cannot be opened: that one may be whole. */
rosa_status run_folder_latest(struct run_folder *folder, void (*note)(void *context, const char *message),
			      void *context, struct checkpoint_found *found, rosa_error *err);
bool checkpoint_has(const struct checkpoint_found *found, const char *name);
