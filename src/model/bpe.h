/* Byte pair encoding of one piece of text. */
#pragma once

#include "model/bpe_vocabulary.h"
#include "model/tokenizer.h"

struct merge {
	uint64_t pair; /* left id, right id; NO_PAIR: free */
	uint32_t rank, id;
};

struct bpe {
	struct vocabulary vocabulary;
	struct merge *merges; /* by hash of the pair */
	size_t merges_room, merges_count;
	uint32_t next_rank, last_joined; /* while merges are added */
	uint32_t letters[256];           /* the tokens of single bytes; NO_TOKEN */
	uint32_t unknown;   /* for bytes without a token; NO_TOKEN: they are dropped, as Hugging Face does */
	bool fuse_unknown;  /* one for a row of them */
	bool ignore_merges; /* a piece that is a token is that token */
};

void bpe_free(struct bpe *bpe); /* safe on a zeroed one */

/* A hash of two ids in one number. */
static inline uint64_t hash_pair(uint64_t pair)
{
	return pair * 0x9e3779b97f4a7c15u >> 32;
}

/* The next merge, by the spellings of its two sides; a side or result that is no token is refused. */
rosa_status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_size, const char *right, size_t right_size,
			  rosa_error *err);
/* After all tokens are there. */
void bpe_find_letters(struct bpe *bpe);

/* Memory of one call of encoding, used for all of its pieces. */
struct bpe_scratch {
	struct bpe_symbol *symbols;
	uint64_t *heap;
	size_t room;
	struct bpe_word *words; /* pieces seen, by hash */
	size_t words_room;
};

/* `size` of the whole text decides how many pieces are cached. */
rosa_status bpe_scratch_new(struct bpe_scratch *scratch, size_t size, rosa_error *err);
void bpe_scratch_free(struct bpe_scratch *scratch); /* safe on a zeroed one */

/* Appends the tokens of a piece of less than 2^31 bytes. */
rosa_status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t size,
		       struct tokens *tokens, rosa_error *err);
