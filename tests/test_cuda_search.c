/*
 * The search of CUDA devices, executed by the processor: a team of one thread (retrieval/cuda/team.h).
 *
 * What the threads of a block do together is not seen here, that takes a device (cuda_retrieve.c). The rest of the
 * search is the same code, and it is held against the oracle wherever the tests run.
 */
#include "rosatune.h"

#include "retrieval/cuda/search.h"
#include "support_grid.h"
#include "support_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct team_of_one {
	uint32_t effort;
	bool wide; /* numbers of 32 bits for short streams too */
	bool near; /* a rung in other memory */
};

/* What the caller of the device does with a route that a team gave up. */
static rosa_status by_engine(const rosa_options *options, size_t steps, const void *query, const void *key,
			     int32_t *tau, int32_t *length, int32_t *flips, rosa_error *err)
{
	rosa_flips tables = {0};
	rosa_status status = rosa_retrieve(options, 1, steps, query, key, tau, length, flips ? &tables : NULL, err);

	if (!status && flips)
		status = rosa_flips_expand(&tables, 0, steps, flips, err);
	rosa_flips_free(&tables);
	return status;
}

static rosa_status search(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			  const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed,
			  rosa_error *err)
{
	const struct team_of_one *how = context;
	unsigned long long bad_query = UINT64_MAX, bad_key = UINT64_MAX;
	uint8_t *given_up = must_alloc(routes);
	struct search_plan plan = {.bits = (uint32_t)options->bits,
				   .policy = (int)options->policy,
				   .fold = options->fold != 0,
				   .max_match = options->max_match ? options->max_match : UINT32_MAX,
				   .delay = options->delay,
				   .routes = routes,
				   .steps = steps,
				   .query = query,
				   .key = key,
				   .tau = tau,
				   .length = length,
				   .flips = flips,
				   .given_up = given_up,
				   .bad_query = &bad_query,
				   .bad_key = &bad_key,
				   .effort = how->effort};
	struct team_board board;
	const struct team team = {.size = 1, .warps = 1, .board = &board};
	rosa_status status = ROSA_OK;
	char *memory, *near;

	plan.narrow = steps < 65536 && !how->wide;
	plan_lay_out(&plan);
	memory = must_alloc(plan.bytes);
	near = how->near ? must_alloc(plan.index_bytes) : NULL;
	for (size_t r = 0; r < routes && !status; r++) {
		const size_t at = r * steps, width = options->bits > 16 ? 4 : 2;

		if (plan.narrow)
			search16_search(&plan, &team, r, memory, near);
		else
			search32_search(&plan, &team, r, memory, near);
		if (!given_up[r])
			continue;
		++*handed;
		status = by_engine(options, steps, (const char *)query + at * width, (const char *)key + at * width,
				   tau + at, length ? length + at : NULL,
				   flips ? flips + at * (size_t)options->bits : NULL, err);
	}
	assert_true(bad_query == UINT64_MAX && bad_key == UINT64_MAX);
	free(near);
	free(memory);
	free(given_up);
	return status;
}

static void test_grid(void **state)
{
	struct team_of_one how = {PLAN_EFFORT, false, true};

	(void)state;
	assert_int_equal(grid_run(search, &how, 1, test_rounds(4), 5000), 0);
}

/* Wide numbers, and the highest rung beside the others. */
static void test_wide(void **state)
{
	struct team_of_one how = {PLAN_EFFORT, true, false};

	(void)state;
	assert_int_equal(grid_run(search, &how, 2, test_rounds(1), 2000), 0);
}

/* Teams that give up early: what they leave must be taken over as it is. */
static void test_giving_up(void **state)
{
	struct team_of_one how = {0, false, false};

	(void)state;
	assert_int_equal(grid_run(search, &how, 3, test_rounds(1), 2000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_grid),
	    cmocka_unit_test(test_wide),
	    cmocka_unit_test(test_giving_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
