/*
 * Where runs begin: every answer of the bitmap against a plain list.
 *
 * Densities from one run a step to one in tens of thousands take a look-up through all its ways: words beside each
 * other, many words between two samples, and a search in the ranks. Lengths end before, at and behind the edges of
 * words, blocks and samples. Going back is tried to any step, with other runs pushed over what was given up. The last
 * tests are of routes, which depend on bits staying readable behind the end: rewinding within a query run that is
 * longer than what is taken again at a time, and loading in no more memory than the saved runs need.
 */
#include "oracle.h"
#include "retrieval/starts.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

/* The bitmap and the list it is compared with. */
struct pair {
	struct test_memory memory;
	rosa_allocator allocator;
	struct starts starts;
	uint32_t *first; /* steps that begin runs */
	uint32_t steps, runs;
	bool select;
};

static void pair_init(struct pair *pair, size_t most, bool select)
{
	test_memory_init(&pair->memory);
	pair->allocator = test_memory_allocator(&pair->memory);
	pair->starts = (struct starts){.bits = NULL};
	pair->first = test_alloc(most * sizeof(*pair->first));
	pair->steps = pair->runs = 0;
	pair->select = select;
}

static void pair_free(struct pair *pair)
{
	starts_free(&pair->starts, &pair->allocator);
	assert_int_equal(atomic_load(&pair->memory.blocks), 0);
}

/* Push `steps` steps, a run beginning once in `gap` of them on average; the first step always begins one. */
static void pair_push(struct pair *pair, size_t steps, uint64_t gap, uint64_t *turn)
{
	assert_true(
	    starts_reserve(&pair->starts, &pair->allocator, pair->steps + steps, pair->runs + steps, pair->select));
	for (size_t i = 0; i < steps; i++) {
		bool begins = !pair->steps || test_random(turn, gap) == 0;

		if (begins)
			pair->first[pair->runs++] = pair->steps;
		starts_push(&pair->starts, begins);
		pair->steps++;
	}
}

static void pair_truncate(struct pair *pair, uint32_t steps)
{
	starts_truncate(&pair->starts, steps);
	pair->steps = steps;
	while (pair->runs && pair->first[pair->runs - 1] >= steps)
		pair->runs--;
}

static void expect_equal(const struct pair *pair, const struct starts *starts)
{
	uint32_t run = 0;

	assert_int_equal(starts->steps, pair->steps);
	assert_int_equal(starts->runs, pair->runs);
	for (uint32_t step = 0; step < pair->steps; step++) {
		bool begins = run < pair->runs && pair->first[run] == step;

		if (starts_begins(starts, step) != begins)
			fail_msg("step %u of %u: begins a run: %d", step, pair->steps, !begins);
		run += begins;
	}
	for (run = 0; run < pair->runs && pair->select; run++)
		if (starts_select(starts, run) != pair->first[run])
			fail_msg("run %u of %u in %u steps: got %u, want %u", run, pair->runs, pair->steps,
				 starts_select(starts, run), pair->first[run]);
}

static const uint64_t gaps[] = {1, 2, 16, 60, 70, 500, 5000, 40000};

TEST(test_densities)
{
	for (size_t g = 0; g < COUNT(gaps); g++) {
		size_t most = 64 * 5 * gaps[g] + 5000;
		uint64_t turn = g + 1;
		struct pair pair;

		if (most > 3000000)
			most = 3000000;
		pair_init(&pair, most, true);
		while (pair.steps < most) {
			size_t steps = 1 + test_random(&turn, most / 3);

			pair_push(&pair, steps < most - pair.steps ? steps : most - pair.steps, gaps[g], &turn);
			expect_equal(&pair, &pair.starts);
		}
		pair_free(&pair);
	}
}

/* A desert between crowds: samples lie far apart, and the search in the ranks must end on either side. */
TEST(test_mixed_densities)
{
	const uint64_t plan[][2] = {{1000, 1}, {100000, 1000000}, {70, 2}, {5000, 4000},
				    {700, 1},  {40000, 30000},    {9, 1}};
	uint64_t turn = 5;
	struct pair pair;

	pair_init(&pair, 200000, true);
	for (size_t i = 0; i < COUNT(plan); i++) {
		pair_push(&pair, plan[i][0], plan[i][1], &turn);
		expect_equal(&pair, &pair.starts);
	}
	pair_free(&pair);
}

TEST(test_every_length)
{
	for (size_t g = 0; g < COUNT(gaps); g++) {
		uint64_t turn = g + 1;
		struct pair pair;

		pair_init(&pair, 1200, g % 2 == 0);
		for (size_t step = 0; step < 1200; step++) {
			pair_push(&pair, 1, gaps[g], &turn);
			expect_equal(&pair, &pair.starts);
		}
		pair_free(&pair);
	}
}

TEST(test_truncate)
{
	for (size_t round = 0, mark = test_mark(); round < test_rounds(400); round++, test_release(mark)) {
		const uint64_t gap = gaps[round % COUNT(gaps)];
		uint64_t turn = round + 1;
		struct pair pair;

		pair_init(&pair, 60000, round / COUNT(gaps) % 2 == 0);
		for (size_t i = 0; i < 6; i++) {
			uint32_t keep;

			pair_push(&pair, 1 + test_random(&turn, i % 2 ? 200 : 9000), i % 3 ? gap : 3, &turn);
			keep = (uint32_t)test_random(&turn, pair.steps + 1);
			if (i % 3 == 1)
				keep = keep / 512 * 512;
			pair_truncate(&pair, keep);
			expect_equal(&pair, &pair.starts);
		}
		pair_truncate(&pair, 0);
		assert_int_equal(pair.starts.runs, 0);
		pair_push(&pair, 100, gap, &turn);
		expect_equal(&pair, &pair.starts);
		pair_free(&pair);
	}
}

/* What lies behind the end can be read until it is pushed over. */
TEST(test_readable_behind)
{
	uint64_t turn = 9;
	struct pair pair;
	uint32_t run;

	pair_init(&pair, 2000, true);
	pair_push(&pair, 2000, 3, &turn);
	run = pair.runs / 4;
	starts_truncate(&pair.starts, pair.first[run]);
	assert_int_equal(pair.starts.runs, run);
	for (uint32_t step = pair.first[run]; step < 2000; step++) {
		bool begins = run < pair.runs && pair.first[run] == step;

		assert_int_equal(starts_begins(&pair.starts, step), begins);
		starts_push(&pair.starts, begins);
		run += begins;
	}
	expect_equal(&pair, &pair.starts);
	pair_free(&pair);
}

TEST(test_copy)
{
	for (int select = 0; select < 2; select++) {
		struct starts copy, empty = {.bits = NULL};
		uint64_t turn = 3;
		struct pair pair;
		long requests;

		pair_init(&pair, 10000, select);
		assert_true(starts_copy(&copy, &empty, &pair.allocator));
		assert_int_equal(starts_bytes(&copy), 0);
		pair_push(&pair, 7000, 20, &turn);
		test_memory_arm(&pair.memory, -1, 0);
		assert_true(starts_copy(&copy, &pair.starts, &pair.allocator));
		requests = atomic_load(&pair.memory.calls);
		expect_equal(&pair, &copy);
		assert_int_equal(starts_bytes(&copy), starts_bytes(&pair.starts));

		/* The copy is its own: the original goes on alone. */
		starts_truncate(&pair.starts, 1);
		starts_push(&pair.starts, true);
		expect_equal(&pair, &copy);
		starts_free(&copy, &pair.allocator);
		for (long n = 0; n < requests; n++) {
			test_memory_arm(&pair.memory, n, 1);
			assert_false(starts_copy(&copy, &pair.starts, &pair.allocator));
			assert_int_equal(starts_bytes(&copy), 0);
		}
		test_memory_arm(&pair.memory, -1, 0);
		pair_free(&pair);
	}
}

TEST(test_no_memory)
{
	uint64_t turn = 4;
	struct pair pair;

	pair_init(&pair, 100000, true);
	pair_push(&pair, 100, 5, &turn);
	for (long n = 0; n < 3; n++) {
		size_t steps = (size_t)10000 << n; /* what one attempt got does not serve the next */

		test_memory_arm(&pair.memory, n, -1);
		assert_false(starts_reserve(&pair.starts, &pair.allocator, steps, steps, true));
		expect_equal(&pair, &pair.starts);
	}
	test_memory_arm(&pair.memory, -1, 0);
	pair_push(&pair, 80000, 5, &turn);
	expect_equal(&pair, &pair.starts);
	pair_free(&pair);
}

/* The tables beside the bitmap, which has a word to spare, are to cost little, and nothing where they are left out. */
TEST(test_bytes)
{
	const size_t steps = 65536;
	uint64_t turn = 6;
	struct pair pair;

	pair_init(&pair, steps, false);
	pair_push(&pair, steps, 1, &turn);
	assert_int_equal(starts_bytes(&pair.starts), steps / 8 + 8);
	pair_free(&pair);
	pair_init(&pair, steps, true);
	pair_push(&pair, steps, 1, &turn);
	assert_int_equal(starts_bytes(&pair.starts), steps / 8 + 8 + steps / 32 * 4 + steps / 512 * 4);
	assert_int_equal(starts_bytes(&pair.starts), atomic_load(&pair.memory.bytes));
	pair_free(&pair);
}

/* -------------------------------------------------------------------------------------------------------- routes -- */

/* The query stands still for a thousand steps while the key goes on. A rewind to within takes the steps of the query
 * run again, several times as many as it takes at once. */
TEST(test_rewind_within_a_long_run)
{
	enum { STEPS = 2000, STILL = 400, MOVES = 1500 };
	uint16_t *query = test_alloc(STEPS * sizeof(*query)), *key = test_alloc(STEPS * sizeof(*key));
	int32_t *want = test_alloc(STEPS * sizeof(*want)), *got = test_alloc(STEPS * sizeof(*got));

	for (size_t b = 0; b < COUNT(trial_bits); b++) {
		for (unsigned slow = 1; slow <= 400; slow *= 20) {
			rosa_options options = ROSA_OPTIONS_INIT;
			uint64_t turn = b + 1, symbols = UINT64_C(1) << trial_bits[b];

			options.bits = trial_bits[b];
			options.policy = trial_policies[b % COUNT(trial_policies)];
			for (size_t t = 0; t < STEPS; t++) {
				bool moves = !t || test_random(&turn, slow) == 0;

				key[t] = moves ? (uint16_t)test_random(&turn, symbols < 9 ? symbols : 9) : key[t - 1];
				query[t] = t < STILL || t >= MOVES ? key[t ? t - 1 : 0] : 1;
			}
			oracle_route(&options, STEPS, query, key, want, NULL, NULL);
			for (size_t to = STILL + 50; to < MOVES + 100; to += 97) {
				rosa_stream *stream = NULL;

				must(rosa_stream_new(&options, 1, &stream, &err));
				must(rosa_stream_push(stream, STEPS, query, key, 0, got, NULL, NULL, &err));
				assert_memory_equal(got, want, STEPS * sizeof(*got));
				must(rosa_stream_rewind(stream, to, &err));
				must(rosa_stream_push(stream, STEPS - to, query + to, key + to, 0, got, NULL, NULL,
						      &err));
				for (size_t t = to; t < STEPS; t++)
					if (got[t - to] != want[t])
						fail_msg("%d bits, %s, rewound to %zu: step %zu leads to %d, not %d",
							 trial_bits[b], policy_name(options.policy), to, t, got[t - to],
							 want[t]);
				rosa_stream_free(stream);
			}
		}
	}
}

/* A stream of few runs, once loaded, must not hold memory for as many runs as steps. */
TEST(test_loaded_memory)
{
	enum { STEPS = 50000 };
	uint16_t *symbols = test_alloc(STEPS * sizeof(*symbols));
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream_info info = {.size = sizeof(info)};
	rosa_stream *stream = NULL, *loaded = NULL;
	struct test_memory memory;
	void *image;
	size_t size;

	for (size_t t = 0; t < STEPS; t++)
		symbols[t] = (uint16_t)(t / 500 % 16);
	options.bits = 4;
	must(rosa_stream_new(&options, 1, &stream, &err));
	must(rosa_stream_push(stream, STEPS, symbols, symbols, 0, NULL, NULL, NULL, &err));
	must(rosa_stream_save_memory(stream, &image, &size, &err));
	test_memory_init(&memory);
	options.allocator = test_memory_allocator(&memory);
	must(rosa_stream_load_memory(&options, image, size, &loaded, &err));
	must(rosa_stream_describe(loaded, &info, &err));
	assert_int_equal(info.key_runs, STEPS / 500);
	/* two bitmaps, and for the hundred runs next to nothing */
	assert_in_range(info.bytes, 2 * STEPS / 8, 2 * STEPS / 8 + 16384);
	rosa_stream_free_memory(stream, image);
	rosa_stream_free(stream);
	rosa_stream_free(loaded);
	assert_int_equal(atomic_load(&memory.blocks), 0);
}
