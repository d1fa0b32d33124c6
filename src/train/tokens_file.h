/* Token shards: what `rosatune data pack` writes and training reads. */
#pragma once

#include "base/mapping.h"

#include <stdbool.h>

/*
 * A shard is a file, little endian, of four parts, each filled up with zeros to a whole number of 8 bytes:
 *
 *     the header, as below
 *     the tokens of all documents, end to end
 *     the documents' first tokens, 64 bits each, and the total
 *     in shards of conversations, one bit per token (the first token has the lowest): does it count in the loss?
 *
 * Every document has at least one token. The checksum (XXH64, base/checksum.h) is that of all that follows the header
 * and then of the header with a checksum of 0.
 */
#define TOKENS_MAGIC      "rosatok\n"
#define TOKENS_VERSION    2           /* 1 had another checksum */
#define TOKENS_ANSWERS    UINT64_C(1) /* a flag: the last part is there */
#define TOKENS_VOCABULARY (UINT64_C(1) << 32)

struct tokens_header {
	char magic[8];
	uint32_t version;
	uint32_t width; /* bytes per token, 2 or 4 */
	uint64_t tokens, documents;
	uint64_t vocabulary; /* every token is below */
	uint64_t tokenizer;  /* its fingerprint: see tokens_fingerprint */
	uint64_t flags;
	uint64_t checksum;
};

/* Where the parts lie. */
struct tokens_places {
	uint64_t data, starts, counts, end;
};

/* False if there are more tokens or documents than 2^56, or a width that is none. */
bool tokens_places(const struct tokens_header *header, struct tokens_places *places);

/* The least width for a vocabulary. */
int tokens_width(uint64_t vocabulary);

struct tokens_file {
	struct mapping mapping;
	char *path;
	size_t tokens, documents;
	int width;              /* bytes per token, 2 or 4 */
	const void *data;       /* [tokens] */
	const uint64_t *starts; /* [documents + 1] */
	const uint8_t *counts;  /* bits, or NULL: all count */
	uint64_t tokenizer;     /* fingerprint */
	uint64_t checksum;      /* of all of it, as its header has it */
	uint64_t changed;       /* when the file was last written, in nanoseconds; 0: not known */
	size_t vocabulary;
};

/* Checks what can be known without reading everything: header, sizes and documents. `thorough`: the rest as well, which
 * is the range of the tokens, the marks of answers, the zeros between the parts, and the checksum. */
rosa_status tokens_file_open(const char *path, bool thorough, struct tokens_file *file, rosa_error *err);
/* The same from memory, aligned to 8 bytes, which must stay. */
rosa_status tokens_file_parse(const void *data, size_t size, const char *name, bool thorough, struct tokens_file *file,
			      rosa_error *err);
/* What a thorough look does, for a file that is open. */
rosa_status tokens_file_verify(const struct tokens_file *file, rosa_error *err);
void tokens_file_close(struct tokens_file *file); /* safe on a zeroed one */

/* Whether the loss of a token counts. */
bool tokens_file_counts(const struct tokens_file *file, size_t at);

/* Tokens first .. first + count - 1, which must be there, and the weight of each as a target, 0 or 1 (NULL: not
 * wanted). A token that is not below the vocabulary, in a file that was damaged after it was written, is read as token
 * 0 of weight 0, so that it has no effect. */
void tokens_file_read(const struct tokens_file *file, size_t first, size_t count, uint32_t *tokens, float *weight);
