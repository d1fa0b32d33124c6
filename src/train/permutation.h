/*
 * A shuffle without a table.
 *
 * Ten billion samples would take 80 GB to shuffle, and a run that is resumed would have to do it again. Here the place
 * of a sample is computed from its number alone. In each round a number draws a partner by a reflection that pairs all
 * numbers below n, and the two swap or not by a bit that both of them agree on; a round is its own inverse, so all
 * rounds together are a permutation, for every n, and rounds in proportion to the bits of n make it as good as random.
 * A Feistel network would need fewer rounds, but it permutes a power of four; other n would need extra steps for the
 * numbers that it sends beyond n.
 */
#pragma once

#include "base/draw.h"

/* Where number i < n goes, in the permutation that `key` names. n < 2^63. */
static inline uint64_t permutation_place(uint64_t key, uint64_t n, uint64_t i)
{
	unsigned rounds = 16;

	for (uint64_t left = n; left > 1; left >>= 1)
		rounds += 6;
	for (unsigned round = 0; round < rounds; round++) {
		uint64_t sum = draw_long(key, 0, round) % n, partner = (sum + n - i) % n;
		uint64_t greater = partner > i ? partner : i;
		if (draw_long(key, round + 1, greater) >> 63)
			i = partner;
	}
	return i;
}
