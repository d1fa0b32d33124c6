/* The bytes of a file or of standard input, decompressed on the way. */
#pragma once

#include "base/file.h"
#include "train/decompress.h"

struct byte_source {
	const char *name; /* for messages */
	struct file_options options;
	int descriptor;
	struct decompressor *decompressor; /* NULL: the file is not compressed */
	uint8_t *block;
	size_t at, filled; /* of the block */
	bool begun, ended;
	uint64_t taken; /* bytes read so far, as they are on the disk */
};

/* "-" is standard input. A folder is refused. `hooks` may be NULL; it and `path` must stay. */
rosa_status source_open(struct byte_source *source, const char *path, const struct file_hooks *hooks, rosa_error *err);
/* Up to `room` bytes; *got is 0 at the end. */
rosa_status source_read(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *err);
void source_close(struct byte_source *source); /* safe on one that could not be opened */
