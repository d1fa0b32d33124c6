/* Memory that nobody has to free, and other things that nobody has to close. */
#pragma once

#include <stddef.h>

/* Memory of the running test, freed when it ends, or before that from a mark on: for tests that take much of it again
 * and again. test_zeros gives zeros. */
void *test_alloc(size_t size);
void *test_zeros(size_t count, size_t size);
size_t test_mark(void);
void test_release(size_t mark);

/* Has close(thing) called when the test's memory is released, the last first: what is opened later is closed before. */
void test_later(void (*close)(void *thing), void *thing);

/* A function for test_later. */
#define TEST_CLOSER(name_, close_)                                                                                     \
	static void name_(void *thing)                                                                                 \
	{                                                                                                              \
		close_(thing);                                                                                         \
	}
