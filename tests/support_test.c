/* The program of every test: runs what TEST registered. */
#include "support_test.h"

#define TESTS_MOST 64

struct registered {
	int line; /* constructors run in any order */
	struct CMUnitTest test;
};

static struct registered registered[TESTS_MOST];
static size_t count;
static CMFixtureFunction group_set_up, group_tear_down;

void test_register(int line, struct CMUnitTest test)
{
	if (count == TESTS_MOST)
		abort();
	registered[count++] = (struct registered){line, test};
}

void test_register_group(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
	group_set_up = set_up;
	group_tear_down = tear_down;
}

static int by_line(const void *a, const void *b)
{
	return ((const struct registered *)a)->line - ((const struct registered *)b)->line;
}

int main(void)
{
	struct CMUnitTest tests[TESTS_MOST];

	qsort(registered, count, sizeof(*registered), by_line);
	for (size_t i = 0; i < count; i++)
		tests[i] = registered[i].test;
	return _cmocka_run_group_tests("tests", tests, count, group_set_up, group_tear_down);
}
