/*
 * Memory through the caller's allocator.
 *
 * Arrays grow by an eighth: a doubling array is half empty on average at the worst moment, and the bytes a run of
 * history costs are what this library is judged by. Large blocks are remapped rather than copied by the C library's
 * realloc, so the extra growths are cheap.
 */
#ifndef ROSATUNE_MEMORY_H
#define ROSATUNE_MEMORY_H

#include "rosatune.h"

#include <stdlib.h>

static inline void *memory_resize(const rosa_allocator *allocator, void *pointer, size_t size)
{
	if (allocator->resize)
		return allocator->resize(allocator->context, pointer, size);
	if (size)
		return realloc(pointer, size);
	free(pointer);
	return NULL;
}

static inline void memory_free(const rosa_allocator *allocator, void *pointer)
{
	if (pointer)
		memory_resize(allocator, pointer, 0);
}

/* The capacity to ask for when `need` elements no longer fit into `have`. */
static inline size_t memory_grown(size_t have, size_t need)
{
	size_t grown = have + have / 8 + 16;

	return need > grown ? need : grown;
}

#endif
