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

/* Fail the running test, with the message, unless a call went well. */
static inline void must(rosa_status status, const rosa_error *error)
{
	if (status != ROSA_OK)
		fail_msg("%s", error->message);
}

static inline void must_say(const rosa_error *error, const char *words)
{
	if (!strstr(error->message, words))
		fail_msg("\"%s\" does not say \"%s\"", error->message, words);
}

/* Unless it failed, with this status and with a message that has these words. */
static inline void must_fail(rosa_status status, rosa_status wanted, const rosa_error *error, const char *words)
{
	assert_int_equal(status, wanted);
	must_say(error, words);
}

/* Memory that is there, or the test ends. */
static inline void *must_alloc(size_t size)
{
	void *memory = malloc(size ? size : 1);

	assert_non_null(memory);
	return memory;
}

#endif
