/* Whole files: read at once, replaced at once. Everything in the project that writes a file does it with this. */
#pragma once

#include "base/checksum.h"
#include "rosatune.h"

#include <stdbool.h>
#include <sys/types.h>

/* How a program takes part in long reading and writing. The library has no signal handlers, so it asks. Each function
 * may be NULL. */
struct file_hooks {
	int (*cancelled)(
	    void *context);             /* not 0: give up, with ROSA_ECANCELLED; asked between blocks and short waits */
	void (*hold)(void *context);    /* from here on there is a temporary file that must be removed */
	void (*release)(void *context); /* and from here on there is not */
	void *context;
};

/* All zeros, or a NULL pointer to this, is the plain case. */
struct file_options {
	bool durable;                    /* file_commit returns when the disk has content and name */
	struct checksum *sum;            /* every byte that file_write takes is added to it; NULL: none is kept */
	const struct file_hooks *hooks;  /* NULL: none */
	const rosa_allocator *allocator; /* NULL: malloc */
};

/* Reads all of a file, or of a pipe, into memory from options->allocator. Even an empty file gives memory to free. */
rosa_status file_read(const char *path, const struct file_options *options, uint8_t **data, size_t *size,
		      rosa_error *err);

/* Whether file_create is likely to succeed later. Asked before long work, so that its result is not lost to a mistyped
 * name. */
rosa_status file_can_create(const char *path, rosa_error *err);

/*
 * A file being written. Until file_commit the name shows the old content, or nothing; file_discard undoes everything.
 *
 * Symbolic links are followed, and the file at their end is replaced; it keeps its permissions. What is not a regular
 * file (a pipe, a device) cannot be replaced and is written to directly.
 */
struct file_writer {
	char *path;      /* as the caller gave it, for messages */
	char *target;    /* the file that is replaced, with links followed; NULL: the path is written to directly */
	char *temporary; /* the name until it is committed; NULL: there is none */
	int descriptor;  /* -1: closed */
	bool nameless;   /* it has no name until it is committed, and must stay open until then */
	bool held;       /* hooks->hold was called */
	uint8_t *buffer; /* for small pieces */
	size_t used;
	struct file_options options;
};

/* A writer that may be discarded safely. */
#define FILE_WRITER_INIT                                                                                               \
	{                                                                                                              \
		.descriptor = -1                                                                                       \
	}

/* On failure there is nothing to discard. What `options` points to must stay until the end. */
rosa_status file_create(struct file_writer *writer, const char *path, const struct file_options *options,
			rosa_error *err);
rosa_status file_write(struct file_writer *writer, const void *data, size_t size, rosa_error *err);
/* Writes over bytes that have been written already; options->sum does not see them. */
rosa_status file_write_at(struct file_writer *writer, off_t offset, const void *data, size_t size, rosa_error *err);

/* Everything has been written: checks that the system took all of it. A full disk may show only here. */
rosa_status file_close(struct file_writer *writer, rosa_error *err);

/* Gives the file its name. Only after file_close; a command with several outputs closes them all first. */
rosa_status file_commit(struct file_writer *writer, rosa_error *err);
void file_discard(struct file_writer *writer); /* safe on a committed one, and on one of all zeros but -1 */

/* Ends a file by how its writing went: closes and commits what was written well, and discards it if that or anything
 * before it failed. Returns `written`, or what closing and committing gave. */
rosa_status file_finish(struct file_writer *writer, rosa_status written, rosa_error *err);

/* A whole file at once. */
rosa_status file_save(const char *path, const void *data, size_t size, const struct file_options *options,
		      rosa_error *err);
