/* The tokens of a byte-level vocabulary: bytes by id, and id by bytes. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

#define NO_TOKEN UINT32_MAX
/* Ids are below this, so that a hostile file cannot make us allocate a table for an id of four billion. */
#define TOKEN_ID_LIMIT ((uint32_t)1 << 24)

enum token_flags {
	TOKEN_THERE = 1,
	TOKEN_ADDED = 2,  /* recognised in a text before any other step */
	TOKEN_SPECIAL = 4 /* an added one that controls the model and is not part of the text */
};

struct token {
	uint32_t start, length;   /* what decoding writes: in `bytes` */
	uint32_t key, key_length; /* what it is found by; the same, except for some added tokens */
	uint8_t flags;
};

/* Keys lie at most this far from where their hash puts them, and are looked for no further. In real vocabularies it is
 * less than 20. A file could choose its tokens so that all have the same hash, and make every search go through all of
 * them; such a file is refused. */
#define MOST_PROBES 512

struct vocabulary {
	char *bytes;
	size_t used, room;
	struct token *tokens; /* by id */
	size_t size, tokens_room;
	uint32_t *slots; /* id + 1; 0: free */
	size_t slots_room, taken;
	size_t longest;
};

void vocabulary_free(struct vocabulary *vocabulary); /* safe on a zeroed one */

/* Makes room in an empty one for about as many tokens. Without it, room is made as needed, which takes longer. */
rosa_status vocabulary_expect(struct vocabulary *vocabulary, size_t tokens, rosa_error *err);

/* A token as tokenizer files spell it: bytes written in the printable alphabet of byte-level models. One that has other
 * characters is kept as it stands, since decoding needs it, but no text can lead to it. */
rosa_status vocabulary_add_spelled(struct vocabulary *vocabulary, uint32_t id, const char *spelling, size_t size,
				   rosa_error *err);
/* A token by its own bytes, which replace those the id may already have; `flags` are added to it. It is not found by
 * vocabulary_find, unless its spelling was added before. */
rosa_status vocabulary_add_raw(struct vocabulary *vocabulary, uint32_t id, const char *bytes, size_t size, int flags,
			       rosa_error *err);

/* By bytes; NO_TOKEN. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t size);
/* By spelling. */
uint32_t vocabulary_find_spelled(const struct vocabulary *vocabulary, const char *spelling, size_t size);

static inline const char *vocabulary_bytes(const struct vocabulary *vocabulary, uint32_t id)
{
	return vocabulary->bytes + vocabulary->tokens[id].start;
}

/* The bytes that a spelling stands for, into `to` (room for `size`): false if a character is not of the alphabet. */
bool spelling_bytes(const char *spelling, size_t size, char *to, size_t *length);

/* A hash for short keys. */
uint64_t hash_bytes(const char *bytes, size_t size);
