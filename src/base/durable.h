/* Files that are on the disk once they are closed. */
#ifndef ROSATUNE_DURABLE_H
#define ROSATUNE_DURABLE_H

#include "rosatune.h"

#include <stdbool.h>

struct durable_file {
	char *path;
	int descriptor;
	bool open;
	uint8_t *buffer;
	size_t used;
	uint64_t bytes, checksum; /* of all that was written; of checksum.h's kind, and whole once closed */
};

/* A new file; one that is there is written over. On failure nothing is left open. */
rosa_status durable_open(struct durable_file *file, const char *path, rosa_error *err);
rosa_status durable_write(struct durable_file *file, const void *data, size_t size, rosa_error *err);
/* Writes what is left and waits until the disk has it. Closed in any case. */
rosa_status durable_close(struct durable_file *file, rosa_error *err);
void durable_abandon(struct durable_file *file); /* safe on a zeroed or closed one */

/* A whole file at once. */
rosa_status durable_save(const char *path, const void *data, size_t size, rosa_error *err);

/* Waits until the disk has the names in a folder. */
rosa_status durable_sync_folder(const char *path, rosa_error *err);

/* Removes a file, or a folder with all that is in it. Says nothing if it cannot. */
void durable_remove(const char *path);

#endif
