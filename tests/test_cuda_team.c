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
	void (*work)(const struct member *member, size_t r);
	char *memory, *near;
};

static void search_route(const struct member *member, size_t r)
{
	if (member->plan->narrow)
		search16_search(member->plan, &member->team, r, member->memory, member->near);
	else
		search32_search(member->plan, &member->team, r, member->memory, member->near);
}

static void take_route(const struct member *member, size_t r)
{
	search_take(member->plan, &member->team, r);
}

static void serve_route(const struct member *member, size_t r)
{
	search_serve(member->plan, &member->team, r);
}

static void *take_part(void *context)
{
	const struct member *member = context;

	team_warp = member->team.warp;
	for (size_t r = 0; r < member->plan->routes; r++)
		member->work(member, r);
	return NULL;
}

/* Something for all routes of a plan, by one team. */
static void run_team(const struct search_plan *plan, void (*work)(const struct member *member, size_t r), char *memory,
		     char *near)
{
	struct member members[TEAM_THREADS];
	struct team_board board;

	pthread_barrier_init(&team_barrier, NULL, TEAM_THREADS);
	for (unsigned w = 0; w < TEAM_THREADS / TEAM_LANES; w++)
		pthread_barrier_init(&team_warp_barrier[w], NULL, TEAM_LANES);
	for (unsigned i = 0; i < TEAM_THREADS; i++) {
		members[i] = (struct member){
		    .plan = plan,
		    .team = {i, TEAM_THREADS, i / TEAM_LANES, TEAM_THREADS / TEAM_LANES, i % TEAM_LANES, &board},
		    .work = work,
		    .memory = memory,
		    .near = near};
		assert_int_equal(pthread_create(&members[i].thread, NULL, take_part, &members[i]), 0);
	}
	for (unsigned i = 0; i < TEAM_THREADS; i++)
		pthread_join(members[i].thread, NULL);
	pthread_barrier_destroy(&team_barrier);
	for (unsigned w = 0; w < TEAM_THREADS / TEAM_LANES; w++)
		pthread_barrier_destroy(&team_warp_barrier[w]);
}

static void search(struct search_plan *plan, bool wide)
{
	char *memory, *near;

	plan->narrow = !wide;
	plan->room = plan->stride = plan->steps;
	plan->build = true;
	plan_lay_out(plan);
	memory = test_alloc(plan->bytes);
	near = wide ? NULL : test_alloc(plan->index_bytes);
	run_team(plan, search_route, memory, near);
}

/* The same in pieces, by a stream that has room for all; its indexes are built with the first piece, and once more. */
static void search_pieces(struct search_plan *plan)
{
	static const size_t pieces[] = {1, 70, 1, 1, 300, 33, SIZE_MAX};
	const size_t steps = plan->steps, routes = plan->routes;
	struct search_plan part = *plan;

	part.flips = NULL;
	part.narrow = false;
	part.room = part.stride = steps;
	plan_lay_out(&part);
	part.states = test_zeros(routes, sizeof(*part.states));
	part.histories = test_alloc(routes * part.history_bytes);
	part.scratches = test_alloc(routes * part.scratch_bytes);
	part.indexes = test_alloc(routes * part.rungs * part.index_bytes);
	part.counts = test_alloc((routes << part.slot_bits) * sizeof(uint32_t));
	for (size_t r = 0; r < routes; r++)
		part.states[r].index = r * part.rungs * part.index_bytes;
	for (size_t i = 0; part.done < steps; part.done += part.steps, i++) {
		part.steps = pieces[i] < steps - part.done ? pieces[i] : steps - part.done;
		part.build = i == 0 || i == 4;
		part.query = (const uint16_t *)plan->query + part.done;
		part.key = (const uint16_t *)plan->key + part.done;
		part.tau = plan->tau + part.done;
		part.length = plan->length + part.done;
		plan_lay_out(&part);
		run_team(&part, take_route, NULL, NULL);
		run_team(&part, serve_route, NULL, NULL);
	}
	for (size_t r = 0; r < routes; r++)
		plan->given_up[r] = part.states[r].gone != 0;
}

static void compare(const struct trial *trial, const struct search_plan *plan, bool tables)
{
	const size_t bits = plan->bits;

	for (size_t r = 0; r < trial->routes; r++) {
		const size_t at = r * trial->steps;

		if (plan->given_up[r])
			continue;
		expect_same(trial, "a team", "tau", r, 0, trial->steps, 1, plan->tau + at, trial->tau + at);
		expect_same(trial, "a team", "length", r, 0, trial->steps, 1, plan->length + at, trial->length + at);
		if (tables)
			expect_same(trial, "a team", "flip", r, 0, trial->steps, bits, plan->flips + at * bits,
				    trial->flips + at * bits);
	}
}

/* A kind of stream, by the team and by the oracle, at once and in pieces. */
static void check_kind(int kind, int bits, int fold, rosa_policy policy, uint32_t delay, bool wide)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 5, .routes = 2, .steps = 530};
	const size_t cells = trial.routes * trial.steps;
	unsigned long long bad_query = UINT64_MAX, bad_key = UINT64_MAX;
	uint8_t given_up[2];
	struct search_plan plan = {.bits = (uint32_t)bits,
				   .policy = policy,
				   .fold = fold != 0,
				   .max_match = UINT32_MAX,
				   .delay = delay,
				   .routes = trial.routes,
				   .steps = trial.steps,
				   .given_up = given_up,
				   .bad_query = &bad_query,
				   .bad_key = &bad_key,
				   .effort = PLAN_EFFORT,
				   .visit = PLAN_VISIT,
				   .further = 1};

	trial.options.bits = bits;
	trial.options.fold = fold;
	trial.options.policy = policy;
	trial.options.delay = delay;
	trial_make(&trial);
	trial_solve(&trial);
	plan.query = trial.query;
	plan.key = trial.key;
	plan.tau = test_alloc(cells * sizeof(int32_t));
	plan.length = test_alloc(cells * sizeof(int32_t));
	plan.flips = test_alloc(cells * (size_t)bits * sizeof(int32_t));
	search(&plan, wide);
	compare(&trial, &plan, true);
	search_pieces(&plan);
	compare(&trial, &plan, false);
	assert_true(bad_query == UINT64_MAX && bad_key == UINT64_MAX);
}

TEST(test_teams)
{
	static const char *const kinds[] = {"uniform", "sticky", "period7", "fibonacci-alternating",
					    "halves",  "skewed"};
	static const int bits[] = {4, 1, 16, 2, 8, 3};

	for (size_t i = 0; i < COUNT(kinds); i++)
		check_kind(stream_find(kinds[i]), bits[i], i % 2 == 0, (rosa_policy)(i % 3), i == 4 ? 9 : 0, i % 2);
}
