/* What every test uses: cmocka after the headers that it needs, and the words that most of them share. */
#pragma once

#include "rosatune.h"
#include "support_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Where calls leave what went wrong, unless a test has one of its own. */
static _Thread_local __attribute__((unused)) rosa_error err;

/*
 * A test, which main() of support_test.c runs without being told its name:
 *
 *	TEST(adds)
 *	{
 *		assert_int_equal(1 + 1, 2);
 *	}
 *
 * The tests of a file run in the order in which they stand there. TEST_WITH names what runs before and after the test,
 * TEST_GROUP what runs before and after all of them; NULL: nothing.
 */
#define TEST(name_) TEST_WITH(name_, NULL, NULL)
#define TEST_WITH(name_, set_up_, tear_down_)                                                                          \
	static void name_(void **state);                                                                               \
	static void run_##name_(void **state)                                                                          \
	{                                                                                                              \
		err = (rosa_error){ROSA_OK, ""};                                                                       \
		name_(state);                                                                                          \
		test_release(0);                                                                                       \
	}                                                                                                              \
	__attribute__((constructor)) static void register_##name_(void)                                                \
	{                                                                                                              \
		test_register(__LINE__, (struct CMUnitTest){#name_, run_##name_, set_up_, tear_down_, NULL});          \
	}                                                                                                              \
	static void name_(void **state)
#define TEST_GROUP(set_up_, tear_down_)                                                                                \
	__attribute__((constructor)) static void register_group(void)                                                  \
	{                                                                                                              \
		test_register_group(set_up_, tear_down_);                                                              \
	}

void test_register(int line, struct CMUnitTest test);
void test_register_group(CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* A list in a row of a table, or a row. (For braces alone clang-format gives each field a line.) */
#define LIST(...)                                                                                                      \
	{                                                                                                              \
		__VA_ARGS__                                                                                            \
	}

/* Fail the running test, with the message in `err`, unless a call went well. Macros, so that a failure names the line.
 */
#define must(status_)                                                                                                  \
	do {                                                                                                           \
		if ((status_) != ROSA_OK)                                                                              \
			fail_msg("%s", err.message);                                                                   \
	} while (0)

#define must_say(words_)                                                                                               \
	do {                                                                                                           \
		if (!strstr(err.message, (words_)))                                                                    \
			fail_msg("\"%s\" does not say \"%s\"", err.message, (words_));                                 \
	} while (0)

/* Unless it failed, with this status and with a message, which has these words. */
#define must_fail(status_, wanted_, words_)                                                                            \
	do {                                                                                                           \
		assert_int_equal((status_), (wanted_));                                                                \
		assert_int_equal(err.status, (wanted_));                                                               \
		assert_true(err.message[0] != 0);                                                                      \
		must_say(words_);                                                                                      \
	} while (0)
#define must_refuse(status_, wanted_) must_fail(status_, wanted_, "")

/* Memory that is there, or the test ends. For the caller to free. */
static inline void *must_alloc(size_t size)
{
	void *memory = malloc(size ? size : 1);

	assert_non_null(memory);
	return memory;
}
