/* Writing token shards. */
#pragma once

#include "base/checksum.h"
#include "model/tokenizer.h"
#include "train/tokens_file.h"

/* Takes the bytes of a shard, one piece after the other. */
typedef rosa_status tokens_sink(void *context, const void *data, size_t size, rosa_error *err);

struct tokens_writer {
	tokens_sink *sink;
	void *context;
	struct tokens_header header; /* as far as it is known */
	struct checksum sum;
	uint8_t *block; /* tokens not yet written */
	size_t filled;
	uint64_t *starts; /* of documents */
	size_t starts_room;
	uint8_t *counts; /* bits */
	size_t counts_room;
	bool open; /* the last document may still grow */
};

/* Begins a shard with a header of zeros, to be replaced at the end. `answers`: with one bit per token. */
rosa_status tokens_writer_begin(struct tokens_writer *writer, tokens_sink *sink, void *context, uint64_t vocabulary,
				uint64_t tokenizer, bool answers, rosa_error *err);

/* Appends to the document that is being written; the first tokens of one begin it. `counts` (one byte per token, 0 or
 * not; NULL: all count) is for shards with answers. A token beyond the vocabulary is refused. */
rosa_status tokens_writer_add(struct tokens_writer *writer, const uint32_t *tokens, const uint8_t *counts, size_t count,
			      rosa_error *err);
/* The document ends here, if it has begun. */
void tokens_writer_end_document(struct tokens_writer *writer);

/* Writes what is left. The header, which goes to the beginning of the file, is then in writer->header. A shard without
 * tokens is refused. */
rosa_status tokens_writer_finish(struct tokens_writer *writer, rosa_error *err);
void tokens_writer_free(struct tokens_writer *writer); /* safe on a zeroed one */

/* A number that differs for tokenizers that give different tokens: a checksum of the bytes of all their tokens, and of
 * the tokens of a text on which tokenizers differ. */
rosa_status tokens_fingerprint(const tokenizer *tokenizer, uint64_t *fingerprint, rosa_error *err);
