/* The shards of a packing: none of them gets its name before all are complete. */
#pragma once

#include "base/file.h"
#include "base/paths.h"
#include "train/tokens_writer.h"

struct pack_shard {
	char *path;
	struct file_writer file;
};

struct pack_shards {
	const char *out;    /* a folder, or one file if it ends in .tokens */
	bool single;        /* one file */
	bool replace;       /* what is there may be replaced */
	struct path folder; /* of the shards */
	size_t existed;     /* that many bytes of `folder` name a folder that was there before */
	uint64_t most;      /* tokens per shard */
	uint64_t vocabulary, tokenizer;
	bool answers;
	const struct file_hooks *hooks;
	struct pack_shard *all;
	size_t count, room;
	struct tokens_writer writer; /* of the last one */
	bool open;
	uint64_t tokens; /* of all */
};

/* Whether shards may be written there; missing folders are made. Shards that are there are refused unless `replace` is
 * set. `out` and `hooks`, which may be NULL, must stay. */
rosa_status pack_shards_begin(struct pack_shards *shards, const char *out, bool replace, uint64_t most,
			      const struct file_hooks *hooks, rosa_error *err);

/* Appends to the document that is being written. If it does not fit, it continues in the next shard as a document of
 * its own or, if it must stay `whole`, begins there. */
rosa_status pack_shards_add(struct pack_shards *shards, const uint32_t *tokens, const uint8_t *counts, size_t count,
			    bool whole, rosa_error *err);
void pack_shards_end_document(struct pack_shards *shards);

/* Gives all of them their names, and removes older shards of the folder if they are replaced. */
rosa_status pack_shards_commit(struct pack_shards *shards, rosa_error *err);
/* Undoes what is not committed. Safe on a zeroed one. */
void pack_shards_free(struct pack_shards *shards);
