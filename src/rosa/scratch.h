/*
 * Memory that a call takes in many pieces and frees all at once.
 *
 * The pieces are chained, so neither their number nor their sizes have to be written down twice. A failed allocation is
 * remembered: a call takes everything and checks once.
 */
#pragma once

#include "base/memory.h"

#include <stdbool.h>

struct scratch {
	const rosa_allocator *allocator;
	struct scratch_piece {
		struct scratch_piece *next;
	} * pieces;
	bool short_of_memory;
};

#define SCRATCH_HEADER 64 /* a cache line: what follows is as aligned as the piece */

/* An array of `count` elements of `size` bytes, or NULL. */
static inline void *scratch_take(struct scratch *scratch, size_t count, size_t size)
{
	struct scratch_piece *piece = NULL;

	if (size == 0 || count <= (SIZE_MAX - SCRATCH_HEADER) / size)
		piece = memory_scratch(scratch->allocator, SCRATCH_HEADER + count * size);
	if (!piece) {
		scratch->short_of_memory = true;
		return NULL;
	}
	piece->next = scratch->pieces;
	scratch->pieces = piece;
	return (char *)piece + SCRATCH_HEADER;
}

static inline float *scratch_floats(struct scratch *scratch, size_t count)
{
	return scratch_take(scratch, count, sizeof(float));
}

static inline void scratch_free(struct scratch *scratch)
{
	while (scratch->pieces) {
		struct scratch_piece *next = scratch->pieces->next;

		memory_free(scratch->allocator, scratch->pieces);
		scratch->pieces = next;
	}
}
