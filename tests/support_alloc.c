/* Memory of the running test: a list of blocks. A test that fails leaves it at any place, and the next one frees it. */
#include "support_alloc.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void **blocks;
static size_t kept, room;

static void *keep(void *memory)
{
	pthread_mutex_lock(&lock);
	if (kept == room) {
		room = 2 * room + 64;
		blocks = realloc(blocks, room * sizeof(*blocks));
	}
	if (!memory || !blocks)
		abort();
	blocks[kept++] = memory;
	pthread_mutex_unlock(&lock);
	return memory;
}

void *test_alloc(size_t size)
{
	return keep(malloc(size ? size : 1));
}

void *test_zeros(size_t count, size_t size)
{
	return keep(calloc(count ? count : 1, size));
}

size_t test_mark(void)
{
	return kept;
}

void test_release(size_t mark)
{
	while (kept > mark)
		free(blocks[--kept]);
	if (!kept) {
		free(blocks);
		blocks = NULL;
		room = 0;
	}
}
