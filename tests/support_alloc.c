/* What the running test holds: a list. A test that fails leaves it at any place, and the next one closes it all. */
#include "support_alloc.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held {
	void (*close)(void *thing);
	void *thing;
} * all;
static size_t held, room;

void test_later(void (*close)(void *thing), void *thing)
{
	pthread_mutex_lock(&lock);
	if (held == room) {
		room = 2 * room + 64;
		all = realloc(all, room * sizeof(*all));
	}
	if (!all)
		abort();
	all[held++] = (struct held){close, thing};
	pthread_mutex_unlock(&lock);
}

static void *keep(void *memory)
{
	if (!memory)
		abort();
	test_later(free, memory);
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
	return held;
}

void test_release(size_t mark)
{
	while (held > mark) {
		const struct held last = all[--held];

		last.close(last.thing);
	}
	if (!held) {
		free(all);
		all = NULL;
		room = 0;
	}
}
