/*
 * The search of CUDA devices by teams of 32 threads (support_team.h): what the threads of a block do together, on
 * machines without a device. Streams are short, for the threads wait for each other all the time; the rules are tried
 * in full by test_cuda_search.c.
 */
#define TEAM_OPERATIONS "support_team.h"

#include "retrieval/cuda/search.h"
#include "oracle.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

struct member {
	pthread_t thread;
	const struct search_plan *plan;
	struct team team;
	char *memory, *near;
};

static void *take_part(void *context)
{
	struct member *member = context;

	team_warp = member->team.warp;
	for (size_t r = 0; r < member->plan->routes; r++) {
		if (member->plan->narrow)
			search16_search(member->plan, &member->team, r, member->memory, member->near);
		else
			search32_search(member->plan, &member->team, r, member->memory, member->near);
	}
	return NULL;
}

/* All routes of a plan, by one team. */
static void search(struct search_plan *plan, bool wide)
{
	struct member members[TEAM_THREADS];
	struct team_board board;
	char *memory, *near;

	plan->narrow = !wide;
	plan_lay_out(plan);
	memory = must_alloc(plan->bytes);
	near = wide ? NULL : must_alloc(plan->index_bytes);
	pthread_barrier_init(&team_barrier, NULL, TEAM_THREADS);
	for (unsigned w = 0; w < TEAM_THREADS / TEAM_LANES; w++)
		pthread_barrier_init(&team_warp_barrier[w], NULL, TEAM_LANES);
	for (unsigned i = 0; i < TEAM_THREADS; i++) {
		members[i] = (struct member){
		    .plan = plan,
		    .team = {i, TEAM_THREADS, i / TEAM_LANES, TEAM_THREADS / TEAM_LANES, i % TEAM_LANES, &board},
		    .memory = memory,
		    .near = near};
		assert_int_equal(pthread_create(&members[i].thread, NULL, take_part, &members[i]), 0);
	}
	for (unsigned i = 0; i < TEAM_THREADS; i++)
		pthread_join(members[i].thread, NULL);
	pthread_barrier_destroy(&team_barrier);
	for (unsigned w = 0; w < TEAM_THREADS / TEAM_LANES; w++)
		pthread_barrier_destroy(&team_warp_barrier[w]);
	free(near);
	free(memory);
}

/* A kind of stream, by the team and by the oracle. */
static void check_kind(int kind, int bits, int fold, rosa_policy policy, uint32_t delay, bool wide)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 5, .routes = 2, .steps = 530};
	const size_t cells = trial.routes * trial.steps;
	unsigned long long bad_query = UINT64_MAX, bad_key = UINT64_MAX;
	uint8_t given_up[2];
	struct search_plan plan = {.bits = (uint32_t)bits,
				   .policy = (int)policy,
				   .fold = fold != 0,
				   .max_match = UINT32_MAX,
				   .delay = delay,
				   .routes = trial.routes,
				   .steps = trial.steps,
				   .given_up = given_up,
				   .bad_query = &bad_query,
				   .bad_key = &bad_key,
				   .effort = PLAN_EFFORT};

	trial.options.bits = bits;
	trial.options.fold = fold;
	trial.options.policy = policy;
	trial.options.delay = delay;
	trial_make(&trial);
	trial_solve(&trial);
	plan.query = trial.query;
	plan.key = trial.key;
	plan.tau = must_alloc(cells * sizeof(int32_t));
	plan.length = must_alloc(cells * sizeof(int32_t));
	plan.flips = must_alloc(cells * (size_t)bits * sizeof(int32_t));
	search(&plan, wide);
	assert_true(bad_query == UINT64_MAX && bad_key == UINT64_MAX);
	for (size_t r = 0; r < trial.routes; r++) {
		const size_t at = r * trial.steps;

		if (given_up[r])
			continue;
		expect_same(&trial, "a team", "tau", r, 0, trial.steps, 1, plan.tau + at, trial.tau + at);
		expect_same(&trial, "a team", "length", r, 0, trial.steps, 1, plan.length + at, trial.length + at);
		expect_same(&trial, "a team", "flip", r, 0, trial.steps, (size_t)bits, plan.flips + at * (size_t)bits,
			    trial.flips + at * (size_t)bits);
	}
	free(plan.tau);
	free(plan.length);
	free(plan.flips);
	trial_free(&trial);
}

static void test_teams(void **state)
{
	static const char *const kinds[] = {"uniform", "sticky", "period7", "fibonacci-alternating",
					    "halves",  "skewed"};
	static const int bits[] = {4, 1, 16, 2, 8, 3};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++)
		check_kind(stream_find(kinds[i]), bits[i], i % 2 == 0, (rosa_policy)(i % 3), i == 4 ? 9 : 0, i % 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_teams)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
