/*
 * Far tokens: those that only a memory beyond the window can know.
 *
 * A token is far if it and the two before it stood in that order earlier in the text, the last time at a distance of a
 * window or more. So what followed there is out of attention's sight, and a perfect memory could repeat it.
 */
#pragma once

#include "rosatune.h"

/* distance[t] is how many tokens before t the three tokens t-2, t-1, t last stood in that order; 0 if they never did.
 * The token at t is far for a window W if distance[t] >= W. */
rosa_status far_distances(const uint32_t *tokens, size_t count, uint32_t *distance, rosa_error *err);

/* The first position of a text, read from an empty state, whose loss counts: before it there is too little to find
 * beyond the window. */
static inline size_t far_first(size_t window)
{
	return 4 * window;
}
