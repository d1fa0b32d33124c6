/* What every test uses: cmocka after the headers that it needs, and the words that most of them share. */
#ifndef ROSATUNE_SUPPORT_TEST_H
#define ROSATUNE_SUPPORT_TEST_H

#include "rosatune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* Fail the running test, with the message, unless a call went well. Macros, so that a failure names the line. */
#define must(status_, error_)                                                                                          \
	do {                                                                                                           \
		if ((status_) != ROSA_OK)                                                                              \
			fail_msg("%s", (error_)->message);                                                             \
	} while (0)

#define must_say(error_, words_)                                                                                       \
	do {                                                                                                           \
		if (!strstr((error_)->message, (words_)))                                                              \
			fail_msg("\"%s\" does not say \"%s\"", (error_)->message, (words_));                           \
	} while (0)

/* Unless it failed, with this status and with a message that has these words. */
#define must_fail(status_, wanted_, error_, words_)                                                                    \
	do {                                                                                                           \
		assert_int_equal((status_), (wanted_));                                                                \
		must_say((error_), (words_));                                                                          \
	} while (0)

/* Memory that is there, or the test ends. */
static inline void *must_alloc(size_t size)
{
	void *memory = malloc(size ? size : 1);

	assert_non_null(memory);
	return memory;
}

#endif
