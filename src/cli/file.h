/* Whole files: read at once, replaced at once. */
#ifndef ROSATUNE_FILE_H
#define ROSATUNE_FILE_H

#include "cli/report.h"

#include <stddef.h>
#include <stdint.h>

/* Reads all of a file, or of a pipe, into memory from malloc. An empty file gives a pointer to free, too. */
bool file_read(const char *path, uint8_t **data, size_t *size, rosa_error *why);

/* Whether file_create is likely to succeed later. Asked before long work, so that its result is not lost to a typing
 * mistake in a name. */
bool file_can_create(const char *path, rosa_error *why);

/* A file being written. The name shows the old content, or nothing, until file_commit; file_discard takes everything
 * back. A name that is not a regular file (a pipe, /dev/stdout) cannot be replaced and is written to directly. */
struct file_writer {
	const char *path; /* as the user gave it, for messages */
	char *target;     /* what is replaced: path with symbolic links followed; NULL: it is written to directly */
	char *temporary;  /* its name until then; NULL: it has none */
	int descriptor;   /* -1: closed */
	bool nameless;    /* until it is committed, and it stays open as long */
	bool held;        /* signals are */
};

/* A zeroed writer with descriptor -1 may be discarded safely. */
#define FILE_WRITER_INIT                                                                                               \
	{                                                                                                              \
		NULL, NULL, NULL, -1, false, false                                                                     \
	}

bool file_create(struct file_writer *writer, const char *path, rosa_error *why);
bool file_write(struct file_writer *writer, const void *data, size_t size, rosa_error *why);

/* All is written: checks that everything was taken. Until then a full disk may still be unknown. */
bool file_close(struct file_writer *writer, rosa_error *why);

/* Gives the file its name. */
bool file_commit(struct file_writer *writer, rosa_error *why);
void file_discard(struct file_writer *writer);

#endif
