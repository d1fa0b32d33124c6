/* The shards that are being written: none of them has its name before all are whole. */
#ifndef ROSATUNE_PACK_SHARDS_H
#define ROSATUNE_PACK_SHARDS_H

#include "cli/file.h"
#include "train/tokens_writer.h"

struct pack_shard {
	char *path;
	struct file_writer file;
};

struct pack_shards {
	const char *out; /* a folder, or one file if it ends in .tokens */
	bool single, made_folder, replace;
	uint64_t most; /* tokens a shard */
	uint64_t vocabulary, tokenizer;
	bool answers;
	struct pack_shard *all;
	size_t count, room;
	struct tokens_writer writer; /* of the last one */
	bool open;
	uint64_t tokens; /* of all */
};

/* Whether shards may be written there; the folder is made. With `replace`, a folder may have shards already. */
bool pack_shards_begin(struct pack_shards *shards, const char *out, bool replace, uint64_t most, rosa_error *why);

/* Appends to the document that is being written. One that does not fit goes on in the next shard, as a document of its
 * own; or, if it must stay `whole`, begins there. */
bool pack_shards_add(struct pack_shards *shards, const uint32_t *tokens, const uint8_t *counts, size_t count,
		     bool whole, rosa_error *why);
void pack_shards_end_document(struct pack_shards *shards);

/* Gives all of them their names, and takes older shards away if they are replaced. */
bool pack_shards_commit(struct pack_shards *shards, rosa_error *why);
/* Takes back what is not committed. Safe on a zeroed one. */
void pack_shards_free(struct pack_shards *shards);

#endif
