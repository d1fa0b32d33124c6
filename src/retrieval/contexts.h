/*
 * Contexts, and how many symbols two of them share.
 *
 * A context is what precedes and includes a key run, read backwards from that run. Context c ends with key run c - 1,
 * so it has c symbols; 0 means "no context". The query up to its last run is a context of the query stream.
 *
 * Both streams are kept packed (packed.h), so that one comparison of two 64-bit words covers many symbols. Longer
 * matches are compared word by word. A long match usually continues the one of the step before: both ends have moved by
 * one, so their distance, the diagonal, is the same. The length found last on each of a few diagonals is remembered,
 * and only what is new is compared.
 */
#pragma once

#include "base/compiler.h"
#include "retrieval/packed.h"

#define CONTEXTS_DIAGONALS 8
#define MAX_LANES          17 /* a query and its 16 flips */

/* The last comparison on a diagonal: a context of the key of a symbols and one of the query of b share `length`. */
struct diagonal {
	uint32_t a, b, length;
};

/* Both streams, and what comparing them has cost. */
struct contexts {
	struct packed key, query;
	unsigned bits;      /* of a symbol as it is packed here */
	uint32_t max_match; /* UINT32_MAX: no cut */
	bool folded;        /* no symbol follows itself */
	uint64_t mask;      /* the part of a word that takes part in comparisons */
	unsigned word;      /* symbols in it */
	uint64_t work;      /* words compared beyond the first, and entries of chains visited */
	struct diagonal diagonal[CONTEXTS_DIAGONALS];
};

struct match {
	uint32_t context; /* 0: none */
	uint32_t length;
};

/* Two empty streams; no memory yet. */
struct contexts contexts_for(unsigned bits, uint32_t max_match, bool folded);

/* How many symbols context a of the key and context b of the query share, knowing that they share `from`; at most
 * max_match. The result is remembered if `remember`. */
uint32_t contexts_shared_long(struct contexts *ctx, uint32_t a, uint32_t b, uint32_t from, bool remember);

/* Forget remembered comparisons: symbols were taken back. */
void contexts_forget(struct contexts *ctx);

static inline unsigned leading_zeros(uint64_t x)
{
	return (unsigned)__builtin_clzll(x);
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

ALWAYS_INLINE uint32_t first_bits(unsigned n)
{
	return (uint32_t)((UINT64_C(1) << n) - 1);
}

/* The same, from the difference of their words. The word of a short context is padded with zeros, which can equal real
 * symbols. So the result is clamped to the context's length here; the caller must clamp it to the query's length. */
ALWAYS_INLINE uint32_t contexts_shared(struct contexts *ctx, unsigned bits, uint64_t difference, uint32_t a, uint32_t b,
				       bool remember)
{
	if (UNLIKELY(!difference))
		return contexts_shared_long(ctx, a, b, ctx->word, remember);
	return least(leading_zeros(difference) / bits, a);
}
