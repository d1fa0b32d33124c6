/*
 * The allocator of the tests.
 *
 * Each block carries its size before it, so that live bytes can be told exactly. New bytes are filled with a pattern,
 * freed ones too: code that relies on zeroed memory, or on a block staying readable, does not pass by luck. A resize
 * always moves the block, as realloc is allowed to and rarely does.
 */
#include "support_memory.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define RUBBISH 0xa5

/* Before each block; as large as the alignment malloc promises. */
struct head {
	alignas(max_align_t) size_t size;
};

static void *resize(void *context, void *pointer, size_t size)
{
	struct test_memory *memory = context;
	struct head *old = pointer ? (struct head *)pointer - 1 : NULL;
	struct head *new = NULL;

	if (size) {
		long call = atomic_fetch_add(&memory->calls, 1);

		if (memory->refuse_from >= 0 && call >= memory->refuse_from &&
		    (memory->refuse_count < 0 || call < memory->refuse_from + memory->refuse_count)) {
			atomic_fetch_add(&memory->refused, 1);
			return NULL;
		}
		new = malloc(sizeof(*new) + size);
		if (!new)
			return NULL;
		new->size = size;
		memset(new + 1, RUBBISH, size);
		if (old)
			memcpy(new + 1, old + 1, old->size < size ? old->size : size);
		atomic_fetch_add(&memory->blocks, 1);
		atomic_fetch_add(&memory->bytes, size);
	}
	if (old) {
		atomic_fetch_sub(&memory->blocks, 1);
		atomic_fetch_sub(&memory->bytes, old->size);
		memset(old + 1, RUBBISH, old->size);
		free(old);
	}
	return new ? new + 1 : NULL;
}

void test_memory_init(struct test_memory *memory)
{
	atomic_init(&memory->blocks, 0);
	atomic_init(&memory->bytes, 0);
	atomic_init(&memory->calls, 0);
	atomic_init(&memory->refused, 0);
	memory->refuse_from = -1;
	memory->refuse_count = -1;
}

void test_memory_arm(struct test_memory *memory, long from, long count)
{
	atomic_store(&memory->calls, 0);
	atomic_store(&memory->refused, 0);
	memory->refuse_from = from;
	memory->refuse_count = count;
}

rosa_allocator test_memory_allocator(struct test_memory *memory)
{
	return (rosa_allocator){resize, memory};
}
