/* Memory that nobody has to free. */
#pragma once

#include <stddef.h>

/* Memory of the running test, freed when it ends, or before that from a mark on: for tests that take much of it again
 * and again. test_zeros gives zeros. */
void *test_alloc(size_t size);
void *test_zeros(size_t count, size_t size);
size_t test_mark(void);
void test_release(size_t mark);
