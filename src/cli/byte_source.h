/* The bytes of a file or of standard input, decompressed on the way. */
#ifndef ROSATUNE_BYTE_SOURCE_H
#define ROSATUNE_BYTE_SOURCE_H

#include "cli/decompress.h"

struct byte_source {
	const char *name; /* for messages */
	int descriptor;
	struct decompressor *decompressor; /* NULL: the bytes are what they are */
	uint8_t *block;
	size_t at, filled; /* of the block */
	bool begun, ended;
	uint64_t taken; /* bytes read so far, as they lie on the disk */
};

/* "-" is standard input. A folder is refused. */
bool source_open(struct byte_source *source, const char *path, rosa_error *why);
/* Up to `room` bytes; 0: there are no more. Fails after Ctrl-C, too. */
bool source_read(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *why);
void source_close(struct byte_source *source); /* safe on one that could not be opened */

#endif
