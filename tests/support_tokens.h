/* Token shards in memory, for tests of what reads them. */
#pragma once

#include "support_weights.h"
#include "train/tokens_writer.h"

/* Token number i of the shard is `first` + i, and its loss counts where shard_counts says so. */
struct shard_plan {
	size_t documents;
	const size_t *lengths; /* of the documents */
	uint32_t first;
	uint64_t vocabulary, tokenizer;
	bool answers;
};

bool shard_counts(size_t i);

/* A whole file, header and all. */
struct bytes shard_make(const struct shard_plan *plan);

/* The right checksum for a file that was altered. */
void shard_seal(uint8_t *data, size_t size);

/* A tokens_sink that appends to a struct bytes. */
rosa_status shard_sink(void *bytes, const void *data, size_t size, rosa_error *err);
