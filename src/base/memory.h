/*
 * Memory through the caller's allocator.
 *
 * Arrays grow by an eighth. Doubling would leave an array up to half empty, and memory per run of history is what
 * limits the length of a text.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define MEMORY_LINE ((size_t)64)      /* bytes of a cache line */
#define MEMORY_HUGE ((size_t)2 << 20) /* of a huge page */

/* Large blocks are accessed at random. Pages of 2 MiB cost fewer page faults at first use and fewer TLB misses later.
 * Only huge pages that lie wholly within the block are requested, so no memory is wasted. */
static inline void memory_advise(void *pointer, size_t size)
{
#ifdef MADV_HUGEPAGE
	const uintptr_t huge = MEMORY_HUGE;
	uintptr_t begin = ((uintptr_t)pointer + huge - 1) / huge * huge,
		  end = ((uintptr_t)pointer + size) / huge * huge;

	if (pointer && begin < end)
		madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
	(void)pointer;
	(void)size;
#endif
}

#ifdef __GLIBC__
/* Resize to an address that is a multiple of `alignment`. */
static inline void *memory_align(void *pointer, size_t size, size_t alignment)
{
	size_t had = pointer ? malloc_usable_size(pointer) : 0;
	void *grown = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);

	if (!grown)
		return NULL;
	memory_advise(grown, size);
	if (pointer)
		memcpy(grown, pointer, had < size ? had : size);
	free(pointer);
	return grown;
}
#endif

static inline void *memory_resize(const rosa_allocator *allocator, void *pointer, size_t size)
{
	if (allocator->resize)
		return allocator->resize(allocator->context, pointer, size);
	if (!size) {
		free(pointer);
		return NULL;
	}
#ifdef __GLIBC__
	/* realloc would remap to an address that is not a multiple of a huge page. Copying is worth it. */
	if (size >= MEMORY_HUGE)
		return memory_align(pointer, size, MEMORY_HUGE);
#endif
	pointer = realloc(pointer, size);
	memory_advise(pointer, size);
	return pointer;
}

/* The same for arrays whose elements are cache lines, aligned to them. Only speed depends on it. */
static inline void *memory_resize_lines(const rosa_allocator *allocator, void *pointer, size_t size)
{
#ifdef __GLIBC__
	if (!allocator->resize && size && size < MEMORY_HUGE)
		return memory_align(pointer, size, MEMORY_LINE);
#endif
	return memory_resize(allocator, pointer, size);
}

/* A new block that is filled at once and freed soon. Page faults of 4 kB would cost as much as filling it, so it is
 * made of whole huge pages if the system has them. */
static inline void *memory_scratch(const rosa_allocator *allocator, size_t size)
{
	const size_t huge = MEMORY_HUGE;
	void *pointer;

	if (allocator->resize || size < huge / 4 || size > SIZE_MAX - huge)
		return memory_resize(allocator, NULL, size);
	size = (size + huge - 1) / huge * huge;
	pointer = aligned_alloc(huge, size);
	memory_advise(pointer, size);
	return pointer;
}

static inline void memory_free(const rosa_allocator *allocator, void *pointer)
{
	if (pointer)
		memory_resize(allocator, pointer, 0);
}

/* The new capacity if `need` elements do not fit into `have`. What is allocated for the first time may be all there
 * will be, and has no room to spare. */
static inline size_t memory_grown(size_t have, size_t need)
{
	size_t grown = have ? have + have / 8 + 16 : need;

	return need > grown ? need : grown;
}

/* Makes room for `need` elements in the array `all`, which has it for `room`; both are variables or members. Elements
 * that are whole cache lines are aligned to them; for others that would only cost copying. False if memory is short:
 * both are as they were then. */
#define MEMORY_RESERVE(allocator, all, room, need) memory_reserve((allocator), &(all), &(room), (need), sizeof(*(all)))

static inline bool memory_reserve(const rosa_allocator *allocator, void *all, size_t *room, size_t need, size_t size)
{
	const size_t grown = memory_grown(*room, need);
	void *array;

	memcpy(&array, all, sizeof(array)); /* `all` points to a pointer of another type */
	if (array && need <= *room)
		return true;
	array = size % MEMORY_LINE ? memory_resize(allocator, array, grown * size)
				   : memory_resize_lines(allocator, array, grown * size);
	if (!array)
		return false;
	memcpy(all, &array, sizeof(array));
	*room = grown;
	return true;
}
