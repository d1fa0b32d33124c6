/*
 * The symbols of the source `embeddings`: signs of a fixed random projection of a token's embedding.
 *
 * With x the embedding in float32, m = max |x_i|, k_i = rint(x_i / m * 32767) and P[c][i] = +1 or -1 by bit i % 64 of
 * draw_long(seed, c, i / 64), the bit of channel c is 1 where the sum over i of P[c][i] k_i is above 0. The sum is one
 * of whole numbers, so its order does not matter: every implementation computes the same symbols. Tokens whose
 * embeddings are near to each other share most bits.
 */
#pragma once

#include "model/tensors.h"

struct token_symbols {
	const struct tensor *embedding; /* [vocabulary][width] */
	size_t vocabulary, width, routes;
	int bits;
	uint64_t *signs; /* [width][words]: where P is +1 */
	uint16_t *table; /* [vocabulary][routes], of the tokens that were seen */
	bool *known;     /* [vocabulary] */
	float *row;      /* [width] */
	int32_t *whole;  /* [width]: k */
};

/* `bits` divides the embedding's width. The tensor must outlive it. */
rosa_status token_symbols_new(struct token_symbols *symbols, const struct tensor *embedding, int bits, uint64_t seed,
			      rosa_error *err);
void token_symbols_free(struct token_symbols *symbols); /* safe on a zeroed one */

/* The embeddings have changed: make all symbols again. */
void token_symbols_forget(struct token_symbols *symbols);

/* Symbols [routes][steps] of tokens, which are below the vocabulary. */
void token_symbols_get(struct token_symbols *symbols, size_t steps, const uint32_t *tokens, uint16_t *to);
