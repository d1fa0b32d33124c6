/*
 * The parts of the operator, against their transcription in double precision.
 *
 * Streams that retrieval is tried on give the symbols, and rows are made that have them, so that the rules meet long
 * matches, long runs and steps that find nothing. The value rows are any numbers. What is drawn at random, explored
 * reads and left-out counterfactuals, is checked to be among what may be drawn, and the gradients then follow what was
 * drawn.
 */
#include "eval/streams.h"
#include "support_memory.h"
#include "support_scene.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>
#include <stdbool.h>

#define NEAR_32 1e-5
#define NEAR_16 4e-3 /* half a unit of bfloat16 is 2^-9 */

/* --------------------------------------------------------------------------------------------------------- draws -- */

/* Whether d is the start of a key run, not the first, that begins before t. */
static int candidate(const struct scene *scene, size_t route, size_t t, int32_t d)
{
	const uint16_t *key = scene->key + route * scene->c.steps;

	return d > 0 && (size_t)d < t && (!scene->c.options.fold || key[d] != key[d - 1]);
}

/* Reads are the truth, or where it is explored a candidate. */
static void check_reads(const struct scene *scene, const int32_t *read)
{
	for (size_t i = 0; i < operator_route_steps(&scene->c); i++) {
		const size_t route = i / scene->c.steps, t = i % scene->c.steps;

		if (read[i] == scene->tau[i])
			continue;
		if (scene->c.learning.explore == 0)
			fail_msg("%s: route %zu reads %ld at step %zu, want %ld", scene->text, route, (long)read[i], t,
				 (long)scene->tau[i]);
		if (!candidate(scene, route, t, read[i]))
			fail_msg("%s: route %zu explores %ld at step %zu, not the start of a readable run", scene->text,
				 route, (long)read[i], t);
	}
}

/* Rows of the table are the truth, or where some are left out repeat the destination. */
static void check_table(const struct scene *scene, const int32_t *table)
{
	for (size_t i = 0; i < scene->runs; i++) {
		const int32_t *row = table + i * scene->width, *want = scene->table + i * scene->width;
		int repeats = scene->c.learning.flip_share < 1;

		if (memcmp(row, want, scene->width * sizeof(*row)) == 0)
			continue;
		for (size_t j = 0; j < scene->width; j++)
			repeats = repeats && row[j] == want[0];
		if (!repeats)
			fail_msg("%s: row %zu of the table is neither right nor left out", scene->text, i);
	}
}

/* ------------------------------------------------------------------------------------------------ against oracle -- */

static void compare(struct scene *scene)
{
	const struct operator_case *c = &scene->c;
	const size_t cells = operator_cells(c),
		     counts[OUTPUTS] = {0, 0, cells, cells, cells, cells, c->channels, c->channels};
	const double limit = c->dtype == ROSA_FLOAT32 ? NEAR_32 : NEAR_16;
	/* what q and k get are differences; of streams that repeat, or weights near 1, little of it is left */
	const double least = 1e-2 * norm_of(scene->gy, cells);
	struct operator_read want = {.q = scene->q, .k = scene->k, .v = scene->v, .e0 = scene->e0, .e1 = scene->e1};
	struct outputs got, more;
	double *wanted[OUTPUTS] = {NULL};
	int32_t *read, *table = NULL;

	scene_run_checked(scene, &got);
	read = from_destinations(got.at[READ], c->steps, operator_route_steps(c));
	check_reads(scene, read);
	if (c->learning.qk_grad == ROSA_QK_FLIPS) {
		table = from_destinations(got.at[FLIPS], c->steps, scene->runs * scene->width);
		check_table(scene, table);
	}
	for (int i = Y; i < OUTPUTS; i++)
		wanted[i] = test_alloc(counts[i] * sizeof(**wanted));
	want.read = read;
	want.flips = table;
	want.gy = scene->gy;
	want.y = wanted[Y];
	want.gq = wanted[GQ];
	want.gk = wanted[GK];
	want.gv = wanted[GV];
	want.ge0 = wanted[GE0];
	want.ge1 = wanted[GE1];
	operator_read(c, &want);
	operator_read_backward(c, &want);
	for (int i = Y; i < OUTPUTS; i++) {
		expect_near(scene->text, output_names[i], i >= GE0 ? ROSA_FLOAT32 : c->dtype, got.at[i], wanted[i],
			    counts[i], i >= GE0 ? NEAR_32 : limit, i == GQ || i == GK ? least : 0);
	}
	/* another number of threads, the same bits */
	scene->c.options.threads = scene->c.options.threads == 1 ? 2 + (int)(scene->seed % 6) : 1;
	scene_run_checked(scene, &more);
	expect_same_outputs(scene, &got, &more);
}

TEST(test_grid)
{
	static const size_t lengths[] = {1, 2, 3, 17, 40, 90};
	static const float slopes[] = {1, 0.3f, 3};
	/* each of these meets each of the others, and every number of bits */
	const size_t cells = 4 * 2 * 3 * 2 * 16;

	for (size_t i = 0, mark = test_mark(); i < test_rounds(1) * cells; i++, test_release(mark)) {
		struct scene scene = scene_start(i);
		uint64_t turn = i;

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.options.fold = (int)(i / 4 % 2);
		scene.c.options.policy = trial_policies[i / 8 % 3];
		scene.c.dtype = i / 24 % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.c.options.bits = 1 + (int)(i / 48 % 16);
		scene.c.options.max_match = trial_cuts[test_random(&turn, COUNT(trial_cuts))];
		scene.c.options.threads = 1 + (int)test_random(&turn, 3);
		scene.c.learning.credit = (rosa_credit)test_random(&turn, 2);
		scene.c.learning.key_credit = (rosa_key_credit)test_random(&turn, 2);
		scene.c.learning.slope = slopes[test_random(&turn, COUNT(slopes))];
		scene.c.learning.suffix = test_random(&turn, 2) ? 0.5f : 0;
		scene.c.learning.explore = test_random(&turn, 3) ? 0 : 0.3f;
		scene.c.learning.flip_share = test_random(&turn, 3) ? 1 : 0.5f;
		scene.c.batch = 1 + test_random(&turn, 3);
		scene.c.steps = lengths[test_random(&turn, COUNT(lengths))];
		scene.c.channels = (size_t)scene.c.options.bits * (1 + test_random(&turn, 4));
		scene_make(&scene);
		compare(&scene);
	}
}

/* Long enough for every block and tile to have a second. */
TEST(test_longer)
{
	for (int i = 0; i < 16; i++) {
		struct scene scene = scene_start(5000 + (uint64_t)i);

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.learning.suffix = i / 4 % 2 ? 0.5f : 0;
		scene.c.learning.credit = i / 8 ? ROSA_CREDIT_ROUTE : ROSA_CREDIT_ALL;
		scene.c.learning.key_credit = i / 8 ? ROSA_KEY_DESTINATION : ROSA_KEY_MATCH;
		scene.c.dtype = i / 4 % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		operator_resize(&scene.c,
				(struct operator_size){
				    .bits = i / 8 ? 4 : 8, .threads = 2, .batch = 2, .steps = 601, .channels = 24});
		scene_make(&scene);
		compare(&scene);
	}
}

TEST(test_threads)
{
	static const int threads[] = {2, 3, 7};

	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_start(6000 + (uint64_t)i);
		struct outputs one, more;

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.learning.explore = 0.2f;
		scene.c.learning.flip_share = 0.7f;
		scene.c.learning.suffix = 0.5f;
		scene.c.dtype = i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		operator_resize(&scene.c, (struct operator_size){.bits = 4, .batch = 3, .steps = 333, .channels = 40});
		scene_make(&scene);
		scene_run_checked(&scene, &one);
		for (size_t j = 0; j < COUNT(threads); j++) {
			scene.c.options.threads = threads[j];
			scene_run_checked(&scene, &more);
			expect_same_outputs(&scene, &one, &more);
		}
	}
}

/* -------------------------------------------------------------------------------------------------------- shares -- */

/* Fail unless `count` of independent draws lies near what is expected; five deviations happen once in a million. */
static void expect_count(const char *how, double count, double expected, double variance)
{
	if (!(fabs(count - expected) <= 5 * sqrt(variance) + 1))
		fail_msg("%s: %g of the draws, expected %g with a deviation of %g", how, count, expected,
			 sqrt(variance));
}

TEST(test_explore)
{
	static const float shares[] = {0.1f, 0.5f, 1};

	for (int i = 0; i < 6; i++) {
		struct scene scene = scene_start(7000 + (uint64_t)i);
		double changed = 0, expected = 0, variance = 0;
		struct outputs got, again;
		int32_t *read;

		scene.kind = stream_find("uniform");
		scene.c.options.fold = i / 3;
		scene.c.learning.explore = shares[i % 3];
		scene.c.learning.qk_grad = i % 2 ? ROSA_QK_NONE : ROSA_QK_FLIPS;
		operator_resize(&scene.c, (struct operator_size){.bits = 2, .batch = 2, .steps = 200, .channels = 20});
		scene_make(&scene);
		scene_run_checked(&scene, &got);
		read = from_destinations(got.at[READ], scene.c.steps, operator_route_steps(&scene.c));
		check_reads(&scene, read);
		if (scene.c.learning.qk_grad == ROSA_QK_FLIPS)
			check_table(&scene, scene.table);
		for (size_t r = 0; r < scene.routes; r++) {
			double candidates = 0;

			for (size_t t = 0; t < scene.c.steps; t++) {
				const size_t at = r * scene.c.steps + t;
				double share = (double)scene.c.learning.explore;

				if (t)
					candidates += candidate(&scene, r, t, (int32_t)t - 1);
				if (candidates == 0) {
					assert_int_equal(read[at], scene.tau[at]);
					continue;
				}
				/* a lot may fall on the true destination */
				if (candidate(&scene, r, t, scene.tau[at]))
					share -= share / candidates;
				if (scene.c.learning.explore == 1)
					assert_true(candidate(&scene, r, t, read[at]));
				changed += read[at] != scene.tau[at];
				expected += share;
				variance += share * (1 - share);
			}
		}
		expect_count(scene.text, changed, expected, variance);
		/* the seed alone decides */
		scene_run_checked(&scene, &again);
		expect_same_outputs(&scene, &got, &again);
		scene.c.learning.seed++;
		scene_run_checked(&scene, &again);
		assert_memory_not_equal(got.at[READ], again.at[READ], got.bytes[READ]);
		/* in use nothing is explored */
		expect_status(scene.text,
			      rosa_find(&scene.c.options, NULL, scene.routes, scene.c.steps, scene.query, scene.key,
					got.at[READ], NULL, NULL, NULL),
			      ROSA_OK, NULL);
		read = from_destinations(got.at[READ], scene.c.steps, operator_route_steps(&scene.c));
		assert_memory_equal(read, scene.tau, operator_route_steps(&scene.c) * sizeof(*read));
	}
}

TEST(test_flip_share)
{
	static const float shares[] = {0.05f, 0.5f, 0.9f};

	for (int i = 0; i < 6; i++) {
		struct scene scene = scene_start(8000 + (uint64_t)i);
		double kept = 0, rows = 0, share = (double)shares[i % 3];
		struct outputs got, again;
		int32_t *table;

		scene.kind = stream_find("uniform");
		scene.c.options.fold = i / 3;
		scene.c.learning.flip_share = shares[i % 3];
		scene.c.learning.qk_grad = ROSA_QK_FLIPS;
		operator_resize(&scene.c, (struct operator_size){.bits = 3, .batch = 2, .steps = 200, .channels = 30});
		scene_make(&scene);
		scene_run_checked(&scene, &got);
		table = from_destinations(got.at[FLIPS], scene.c.steps, scene.runs * scene.width);
		check_table(&scene, table);
		for (size_t row = 0; row < scene.runs; row++) {
			const int32_t *want = scene.table + row * scene.width;
			int tells = 0;

			/* only where a flip changes something does the row tell whether it was looked up */
			for (size_t j = 1; j < scene.width; j++)
				tells |= want[j] != want[0];
			rows += tells;
			kept += tells && memcmp(want, table + row * scene.width, scene.width * sizeof(*want)) == 0;
		}
		assert_true(rows > 1000);
		expect_count(scene.text, kept, share * rows, share * (1 - share) * rows);
		scene_run_checked(&scene, &again);
		expect_same_outputs(&scene, &got, &again);
		scene.c.learning.seed++;
		scene_run_checked(&scene, &again);
		assert_memory_not_equal(got.at[FLIPS], again.at[FLIPS], got.bytes[FLIPS]);
	}
}

/* ------------------------------------------------------------------------------------------ widths and histories -- */

TEST(test_widths)
{
	assert_int_equal(rosa_width(1), 2);
	assert_int_equal(rosa_width(65534), 2);
	assert_int_equal(rosa_width(65535), 4);
	assert_int_equal(rosa_width(ROSA_MAX_STEPS), 4);
	assert_int_equal(rosa_count_runs(0, 0, NULL, 4, 1), 0);
}

/* On both sides of the length from which destinations take four bytes, against the engine itself. */
TEST(test_long_streams)
{
	static const size_t lengths[] = {65534, 65535, 66000};
	const size_t bits = 4;

	for (size_t i = 0; i < COUNT(lengths); i++) {
		const size_t steps = lengths[i];
		struct operator_case c = {.options = ROSA_OPTIONS_INIT, .batch = 1, .steps = steps, .channels = bits};
		rosa_learning learning = ROSA_LEARNING_INIT;
		uint16_t *query = test_alloc(steps * 2), *key = test_alloc(steps * 2), *value = test_alloc(steps * 2);
		int32_t *tau = test_alloc(steps * 4), *read, *rows, *table;
		double e[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, *y = test_alloc(steps * bits * sizeof(*y)), *v;
		float *e0 = to_floats(e[0], bits), *e1 = to_floats(e[1], bits), *got = test_alloc(steps * bits * 4);
		void *kept = test_alloc(steps * 4), *flips = test_alloc(steps * (bits + 1) * 4);
		struct operator_read want = {.y = y, .e0 = e[0], .e1 = e[1]};
		uint64_t seed = steps;
		rosa_flips truth;

		c.options.bits = (int)bits;
		c.options.threads = 2;
		learning.qk_grad = ROSA_QK_FLIPS;
		stream_fill(stream_find("sticky"), c.options.bits, 1, steps, query, key);
		v = random_rows(&seed, ROSA_FLOAT32, steps * bits, 1);
		operator_symbols(&c, v, value);
		must(rosa_retrieve(&c.options, 1, steps, query, key, tau, NULL, &truth, &err));
		must(rosa_find(&c.options, &learning, 1, steps, query, key, kept, NULL, flips, &err));
		read = from_destinations(kept, steps, steps);
		assert_memory_equal(read, tau, steps * sizeof(*tau));
		assert_int_equal(truth.first[1], rosa_count_runs(1, steps, query, c.options.bits, 1));
		rows = from_destinations(flips, steps, truth.first[1] * (bits + 1));
		for (size_t run = 0; run < truth.first[1]; run++) {
			table = rows + run * (bits + 1);
			assert_int_equal(table[0], truth.tau[run]);
			assert_memory_equal(table + 1, truth.flip + run * bits, bits * sizeof(*table));
		}
		must(rosa_read(&c.options, ROSA_FLOAT32, 1, steps, bits, value, steps, kept, e0, e1, got, &err));
		want.v = v;
		want.read = tau;
		operator_read(&c, &want);
		expect_near("long", "y", ROSA_FLOAT32, got, y, steps * bits, 0, 0);
		rosa_flips_free(&truth);
	}
}

/* Rows of y for the last steps only, read from the whole history, as decoding does. */
TEST(test_history)
{
	static const size_t histories[] = {50, 65535, 70000};

	for (size_t i = 0; i < COUNT(histories); i++) {
		const size_t batch = 2, routes = 3, bits = 5, steps = 4, history = histories[i];
		const size_t channels = routes * bits, cells = batch * steps * channels;
		rosa_options options = ROSA_OPTIONS_INIT;
		uint64_t random = i;
		uint16_t *value = test_alloc(batch * routes * history * sizeof(*value));
		int32_t *tau = test_alloc(batch * routes * steps * sizeof(*tau));
		double *e0 = random_rows(&random, ROSA_FLOAT32, channels, 1);
		double *e1 = random_rows(&random, ROSA_FLOAT32, channels, 1);
		float *e0_floats = to_floats(e0, channels), *e1_floats = to_floats(e1, channels);
		float *y = test_alloc(cells * sizeof(*y));
		void *read;

		options.bits = (int)bits;
		for (size_t j = 0; j < batch * routes * history; j++)
			value[j] = (uint16_t)test_random(&random, 1u << bits);
		for (size_t j = 0; j < batch * routes * steps; j++)
			tau[j] = (int32_t)test_random(&random, history + 10) - 10;
		tau[0] = (int32_t)history - 1;
		for (size_t j = 0; j < batch * routes * steps; j++)
			tau[j] = tau[j] < -1 ? -1 : tau[j];
		read = to_destinations(tau, history, batch * routes * steps);
		must(rosa_read(&options, ROSA_FLOAT32, batch, steps, channels, value, history, read, e0_floats,
			       e1_floats, y, &err));
		for (size_t j = 0; j < cells; j++) {
			const size_t c = j % channels, t = j / channels % steps, b = j / channels / steps;
			const size_t route = b * routes + c / bits;
			const int32_t d = tau[route * steps + t];
			float want = 0;

			if (d >= 0)
				want = value[route * history + (size_t)d] >> c % bits & 1 ? e1_floats[c] : e0_floats[c];
			assert_true(y[j] == want);
		}
	}
}

/* ------------------------------------------------------------------------------------------------- parts, memory -- */

/* Asking for one gradient gives the bits that asking for all gives. */
TEST(test_parts)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(i);
		struct outputs all, part;

		scene_make(&scene);
		scene_run_checked(&scene, &all);
		for (int wanted = GQ; wanted < OUTPUTS; wanted++) {
			rosa_read_pass pass;

			outputs_make(&scene, &part);
			pass = pass_of(&scene, &all);
			pass.gq = wanted == GQ ? part.at[GQ] : NULL;
			pass.gk = wanted == GK ? part.at[GK] : NULL;
			pass.gv = wanted == GV ? part.at[GV] : NULL;
			pass.ge0 = wanted == GE0 ? part.at[GE0] : NULL;
			pass.ge1 = wanted == GE1 ? part.at[GE1] : NULL;
			must_for(scene.text, rosa_read_backward(&scene.c.options, &scene.c.learning, &pass, &err));
			if (memcmp(part.at[wanted], all.at[wanted], all.bytes[wanted]))
				fail_msg("%s: %s alone is another", scene.text, output_names[wanted]);
		}
	}
}

struct attempt {
	struct scene *scene;
	struct outputs *outputs;
};

static rosa_status attempt_run(void *context, rosa_error *err)
{
	struct attempt *attempt = context;

	return scene_run(attempt->scene, attempt->outputs, err);
}

TEST(test_memory)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(i);
		struct test_memory memory;
		struct outputs outputs;
		struct attempt attempt = {&scene, &outputs};

		test_memory_init(&memory);
		scene.c.options.allocator = test_memory_allocator(&memory);
		scene_make(&scene);
		outputs_make(&scene, &outputs);
		refuse_each_request(scene.text, &memory, attempt_run, &attempt);
		assert_int_equal(atomic_load(&memory.blocks), 0);
	}
}

/* Counts how often it is called, and stops the call it is asked by the `most`-th time. */
struct patience {
	int asked, most;
	bool finished;
};

static int ask_patience(void *context, uint64_t done, uint64_t total)
{
	struct patience *patience = context;

	assert_true(done <= total);
	patience->finished = done == total;
	return ++patience->asked == patience->most;
}

/* The backward pass can be stopped wherever it asks; if it is not stopped, asking changes nothing. */
TEST(test_stopping)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(i);
		struct patience patience = {.most = 0};
		struct outputs all, again;
		rosa_read_pass pass;

		scene_make(&scene);
		scene_run_checked(&scene, &all);
		outputs_make(&scene, &again);
		pass = pass_of(&scene, &all);
		pass.gq = again.at[GQ];
		pass.gk = again.at[GK];
		pass.gv = again.at[GV];
		pass.ge0 = again.at[GE0];
		pass.ge1 = again.at[GE1];
		scene.c.options.progress = ask_patience;
		scene.c.options.progress_context = &patience;
		scene.c.options.threads =
		    1; /* several would take the pieces from each other, and ask more or less often */
		must_for(scene.text, rosa_read_backward(&scene.c.options, &scene.c.learning, &pass, &err));
		assert_true(patience.finished);
		for (int output = GQ; output < OUTPUTS; output++)
			assert_memory_equal(again.at[output], all.at[output], all.bytes[output]);
		for (int most = patience.asked; most > 0; most--) {
			patience = (struct patience){.most = most};
			expect_status(scene.text, rosa_read_backward(&scene.c.options, &scene.c.learning, &pass, &err),
				      ROSA_ECANCELLED, &err);
			assert_int_equal(patience.asked, most);
		}
	}
}
