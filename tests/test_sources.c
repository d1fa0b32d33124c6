/*
 * The two sources of a layer, whole sequences and growing texts, against the brute-force oracle: the value symbol at
 * every destination, and nothing where there is none.
 */
#include "rosatune.h"

#include "backend/backend.h"
#include "base/pool.h"
#include "rosa/lookup.h"
#include "rosa/past.h"
#include "support_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A trial with values, and what must be found. */
struct sources {
	struct trial trial;
	uint16_t *value; /* [routes][steps] */
	uint32_t *want;
	struct pool *pool;
};

static void sources_make(struct sources *s)
{
	struct trial *trial = &s->trial;
	const size_t cells = trial->routes * trial->steps;
	uint64_t state = trial->seed + 1;

	trial_make(trial);
	trial_solve(trial);
	s->value = must_alloc(cells * sizeof(*s->value));
	s->want = must_alloc(cells * sizeof(*s->want));
	for (size_t i = 0; i < cells; i++)
		s->value[i] = (uint16_t)test_random(&state, 1u << trial->options.bits);
	for (size_t i = 0; i < cells; i++)
		s->want[i] =
		    trial->tau[i] < 0 ? 0 : 65536u + s->value[i / trial->steps * trial->steps + (size_t)trial->tau[i]];
	s->pool = pool_new(&trial->options.allocator, 2);
	assert_non_null(s->pool);
}

static void sources_free(struct sources *s)
{
	pool_free(s->pool, &s->trial.options.allocator);
	free(s->value);
	free(s->want);
	trial_free(&s->trial);
}

static void expect_found(const struct sources *s, const char *how, size_t route, size_t first, size_t count,
			 const uint32_t *found)
{
	const size_t at = route * s->trial.steps + first;

	for (size_t t = 0; t < count; t++)
		if (found[t] != s->want[at + t])
			fail_msg("%s: %s: route %zu, step %zu: found %#x, want %#x", s->trial.text, how, route,
				 first + t, found[t], s->want[at + t]);
}

static void check_lookup(const struct sources *s)
{
	const struct trial *trial = &s->trial;
	const struct lookup_shape shape = {1, trial->routes, trial->steps};
	uint32_t *found = must_alloc(trial->routes * trial->steps * sizeof(*found));
	struct lookup lookup = {0};
	rosa_error err;

	expect_status("lookup_reserve", lookup_reserve(&trial->options, &shape, &lookup, &err), ROSA_OK, &err);
	expect_status("lookup_find",
		      lookup_find(&trial->options, NULL, NULL, &shape, trial->query, trial->key, &lookup, &err),
		      ROSA_OK, &err);
	assert_true(lookup_gather(s->pool, trial->routes, trial->steps, lookup.read, s->value, trial->steps, found));
	for (size_t r = 0; r < trial->routes; r++)
		expect_found(s, "lookup", r, 0, trial->steps, found + r * trial->steps);
	lookup_free(&trial->options, &lookup);
	free(found);
}

/* Some steps of all routes of an array. */
static void cut(const struct trial *trial, const uint16_t *from, size_t first, size_t count, uint16_t *to)
{
	for (size_t r = 0; r < trial->routes; r++)
		memcpy(to + r * count, from + r * trial->steps + first, count * sizeof(*to));
}

static void check_past(const struct sources *s)
{
	const struct trial *trial = &s->trial;
	const size_t cells = trial->routes * trial->steps;
	uint16_t *piece[3];
	uint32_t *found = must_alloc(cells * sizeof(*found));
	uint64_t state = trial->seed;
	struct past past;
	rosa_error err;

	for (int i = 0; i < 3; i++)
		piece[i] = must_alloc(cells * sizeof(*piece[i]));
	expect_status("past_new", past_new(&past, trial->routes, &trial->options, &err), ROSA_OK, &err);
	for (size_t first = 0, count; first < trial->steps; first += count) {
		const size_t left = trial->steps - first, most = test_random(&state, 2) ? 3 : 2000;

		count = 1 + test_random(&state, left < most ? left : most);
		cut(trial, trial->query, first, count, piece[0]);
		cut(trial, trial->key, first, count, piece[1]);
		cut(trial, s->value, first, count, piece[2]);
		expect_status("past_find",
			      past_find(&past, count, piece[0], piece[1], piece[2],
					(struct past_control){READS_FOUND, 0}, found, &err),
			      ROSA_OK, &err);
		for (size_t r = 0; r < trial->routes; r++)
			expect_found(s, "past", r, first, count, found + r * count);
	}
	past_free(&past);
	for (int i = 0; i < 3; i++)
		free(piece[i]);
	free(found);
}

static void test_same(void **state)
{
	static const size_t lengths[] = {1, 40, 300};

	(void)state;
	for (size_t i = 0; i < test_rounds(30); i++) {
		struct sources s = {
		    .trial = {.options = ROSA_OPTIONS_INIT, .kind = (int)i, .seed = i, .routes = 1 + i % 3}};

		s.trial.steps = lengths[i % COUNT(lengths)];
		s.trial.options.bits = trial_bits[i % COUNT(trial_bits)];
		s.trial.options.policy = trial_policies[i / 2 % 3];
		s.trial.options.fold = i % 5 != 0;
		sources_make(&s);
		check_lookup(&s);
		check_past(&s);
		sources_free(&s);
	}
}

/* What a control finds of a whole trial, read in pieces of `most` steps: [routes][steps]. */
static uint32_t *find_controlled(const struct sources *s, struct past_control control, size_t most)
{
	const struct trial *trial = &s->trial;
	const size_t cells = trial->routes * trial->steps;
	uint32_t *all = must_alloc(cells * sizeof(*all)), *found = must_alloc(cells * sizeof(*found));
	uint16_t *piece[3];
	struct past past;
	rosa_error err;

	for (int i = 0; i < 3; i++)
		piece[i] = must_alloc(cells * sizeof(*piece[i]));
	expect_status("past_new", past_new(&past, trial->routes, &trial->options, &err), ROSA_OK, &err);
	for (size_t first = 0, count; first < trial->steps; first += count) {
		count = trial->steps - first < most ? trial->steps - first : most;
		cut(trial, trial->query, first, count, piece[0]);
		cut(trial, trial->key, first, count, piece[1]);
		cut(trial, s->value, first, count, piece[2]);
		expect_status("past_find", past_find(&past, count, piece[0], piece[1], piece[2], control, found, &err),
			      ROSA_OK, &err);
		for (size_t r = 0; r < trial->routes; r++)
			memcpy(all + r * trial->steps + first, found + r * count, count * sizeof(*all));
	}
	past_free(&past);
	for (int i = 0; i < 3; i++)
		free(piece[i]);
	free(found);
	return all;
}

/* A control that reads nothing finds nothing. One that reads at random finds something just where there was something
 * to find, an earlier value, the same however the text is cut, and another with another seed. */
static void test_controls(void **state)
{
	struct sources s = {.trial = {.options = ROSA_OPTIONS_INIT, .seed = 5, .routes = 3, .steps = 400}};
	const size_t steps = s.trial.steps;

	(void)state;
	s.trial.options.bits = 8;
	sources_make(&s);
	uint32_t *found = find_controlled(&s, (struct past_control){READS_FOUND, 3}, steps);
	uint32_t *nothing = find_controlled(&s, (struct past_control){READS_NOTHING, 3}, steps);
	uint32_t *random = find_controlled(&s, (struct past_control){READS_RANDOM, 3}, steps);
	uint32_t *pieces = find_controlled(&s, (struct past_control){READS_RANDOM, 3}, 7);
	uint32_t *other = find_controlled(&s, (struct past_control){READS_RANDOM, 4}, steps);
	size_t hits = 0, same = 0, alike = 0;

	for (size_t i = 0; i < s.trial.routes * steps; i++) {
		const size_t first = i / steps * steps;
		bool earlier = false;

		assert_int_equal(nothing[i], 0);
		assert_int_equal(random[i] == 0, found[i] == 0);
		assert_int_equal(random[i], pieces[i]);
		for (size_t j = first; j < i; j++)
			earlier = earlier || random[i] == (BACKEND_FOUND | s.value[j]);
		assert_true(earlier || !random[i]);
		hits += found[i] != 0;
		same += found[i] && found[i] == random[i];
		alike += found[i] && other[i] == random[i];
	}
	assert_true(hits > 100 && same < hits / 2 && alike < hits / 2);
	free(found);
	free(nothing);
	free(random);
	free(pieces);
	free(other);
	sources_free(&s);
}

/* A text longer than a block of values. */
static void test_blocks(void **state)
{
	struct sources s = {.trial = {.options = ROSA_OPTIONS_INIT, .seed = 7, .routes = 2, .steps = PAST_BLOCK + 70}};

	(void)state;
	s.trial.options.bits = 2;
	sources_make(&s);
	check_past(&s);
	sources_free(&s);
}

/* Destinations that are not in the values are noticed, by whichever worker meets them. */
static void test_broken(void **state)
{
	enum { ROWS = 3, STEPS = 5 };
	static const uint16_t value[ROWS * STEPS];
	uint16_t read[ROWS * STEPS] = {0};
	uint32_t found[ROWS * STEPS];
	const rosa_allocator plain = {NULL, NULL};
	struct pool *pool = pool_new(&plain, 2);

	(void)state;
	assert_true(lookup_gather(pool, ROWS, STEPS, read, value, STEPS, found));
	read[7] = UINT16_MAX;
	assert_true(lookup_gather(pool, ROWS, STEPS, read, value, STEPS, found));
	assert_int_equal(found[7], 0);
	read[7] = STEPS;
	assert_false(lookup_gather(pool, ROWS, STEPS, read, value, STEPS, found));
	pool_free(pool, &plain);
}

/* With a seed for each sequence, what it draws does not depend on its place in the batch. */
static void test_seeds(void **state)
{
	enum { ROUTES = 2, STEPS = 200, CELLS = ROUTES * STEPS };
	static uint16_t query[2][2 * CELLS], key[2][2 * CELLS];
	const uint64_t seeds[2][2] = {{5, 9}, {9, 5}};
	const struct lookup_shape shape = {2, ROUTES, STEPS};
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_learning learning = ROSA_LEARNING_INIT;
	struct lookup lookup[2] = {{0}};
	uint64_t turn = 3;
	rosa_error err;

	(void)state;
	options.bits = 3;
	learning.explore = 0.5f;
	for (size_t i = 0; i < CELLS; i++) {
		query[0][i] = query[0][CELLS + i] = (uint16_t)test_random(&turn, 8);
		key[0][i] = key[0][CELLS + i] = (uint16_t)test_random(&turn, 8);
	}
	memcpy(query[1], query[0], sizeof(query[1]));
	memcpy(key[1], key[0], sizeof(key[1]));
	for (int i = 0; i < 2; i++) {
		expect_status("reserve", lookup_reserve(&options, &shape, &lookup[i], &err), ROSA_OK, &err);
		expect_status("find",
			      lookup_find(&options, &learning, seeds[i], &shape, query[i], key[i], &lookup[i], &err),
			      ROSA_OK, &err);
	}
	assert_memory_equal(lookup[0].read, (char *)lookup[1].read + CELLS * 2, CELLS * 2);
	assert_memory_equal((char *)lookup[0].read + CELLS * 2, lookup[1].read, CELLS * 2);
	assert_memory_not_equal(lookup[0].read, lookup[1].read, CELLS * 2);
	for (int i = 0; i < 2; i++)
		lookup_free(&options, &lookup[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_same),   cmocka_unit_test(test_controls), cmocka_unit_test(test_blocks),
	    cmocka_unit_test(test_broken), cmocka_unit_test(test_seeds),
	};

	return cmocka_run_group_tests_name("sources", tests, NULL, NULL);
}
