/*
 * Every operation of a backend's table, against plain formulas in double precision.
 *
 * The tests know a backend by its table alone and touch its memory only through the table, so that any backend can be
 * put through them: it needs a line in `makers`. Those of one family promise equal bits. Within one backend the promise
 * is stronger, and tested with everything: a row has the same bits whatever rows come with it, however the steps before
 * it were cut into calls, and on any number of threads.
 */
#include "backend/backend.h"
#include "backend/cpu_backend.h"

#include "support_backend.h"
#include "support_trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sizes that no memory has are asked for on purpose; sanitizers are to refuse them as malloc does. */
#define REFUSE_MEMORY(options)                                                                                         \
	const char *options(void);                                                                                     \
	const char *options(void)                                                                                      \
	{                                                                                                              \
		return "allocator_may_return_null=1";                                                                  \
	}
REFUSE_MEMORY(__asan_default_options)
REFUSE_MEMORY(__tsan_default_options)

/* -------------------------------------------------------------------------------------------------- the backends -- */

struct maker {
	const char *name;
	int family; /* of equal bits */
	bool (*available)(int kind);
	rosa_status (*make)(int kind, rosa_workers *workers, struct backend **backend, rosa_error *err);
	void (*free)(struct backend *backend);
	int kind;
};

static bool cpu_available(int kind)
{
	return cpu_backend_available((rosa_isa)kind);
}

static rosa_status cpu_make(int kind, rosa_workers *workers, struct backend **backend, rosa_error *err)
{
	return cpu_backend_new_on((rosa_isa)kind, workers, backend, err);
}

static const struct maker makers[] = {
    {"cpu, plain", 0, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_PLAIN},
    {"cpu, avx2", 1, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_AVX2},
    {"cpu, avx512", 1, cpu_available, cpu_make, cpu_backend_free, ROSA_ISA_AVX512},
};

enum { FAMILIES = 2, MOST_THREADS = 3, MOST_SUBJECTS = COUNT(makers) * MOST_THREADS };

/* A backend on some number of threads, and the greatest error seen. */
static struct subject {
	const struct maker *maker;
	int threads;
	rosa_workers *workers;
	struct backend *backend;
	const struct backend_ops *ops;
	double worst;
} subjects[MOST_SUBJECTS];
static size_t subject_count;

#define EACH_SUBJECT(s) for (struct subject *s = subjects; (s) < subjects + subject_count; (s)++)

static int set_up(void **state)
{
	(void)state;
	for (size_t m = 0; m < COUNT(makers); m++) {
		for (int threads = 1; threads <= MOST_THREADS; threads++) {
			struct subject *s = &subjects[subject_count];
			rosa_error err;

			if (!makers[m].available(makers[m].kind))
				continue;
			s->maker = &makers[m];
			s->threads = threads;
			expect_status("workers", rosa_workers_new(threads, NULL, &s->workers, &err), ROSA_OK, &err);
			expect_status(s->maker->name, s->maker->make(s->maker->kind, s->workers, &s->backend, &err),
				      ROSA_OK, &err);
			s->ops = s->backend->ops;
			subject_count++;
		}
	}
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	EACH_SUBJECT(s)
	{
		s->maker->free(s->backend);
		rosa_workers_free(s->workers);
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------------ checking -- */

/* Numbers in the backend's memory. */
static float *put_floats(struct subject *s, const float *host, size_t count)
{
	float *there = s->ops->take(s->backend, count * sizeof(*host));

	assert_non_null(there);
	if (host)
		s->ops->put(s->backend, there, host, count * sizeof(*host));
	return there;
}

/* And back, giving up the backend's. */
static float *get_floats(struct subject *s, float *there, size_t count)
{
	float *host = must_alloc(count * sizeof(*host));

	s->ops->get(s->backend, host, there, count * sizeof(*host));
	s->ops->give(s->backend, there);
	return host;
}

static void give_floats(struct subject *s, size_t count, float *const *all)
{
	for (size_t i = 0; i < count; i++)
		s->ops->give(s->backend, all[i]);
}

/* Within `tolerance`, relative to numbers of size 1 and more. */
static void expect_near(struct subject *s, const char *what, size_t count, const float *got, const double *want,
			double tolerance)
{
	for (size_t i = 0; i < count; i++) {
		const double error = fabs((double)got[i] - want[i]) / fmax(1, fabs(want[i]));

		if (!(error <= tolerance))
			fail_msg("%s, %d threads: %s: number %zu is %.9g, want %.9g", s->maker->name, s->threads, what,
				 i, (double)got[i], want[i]);
		s->worst = fmax(s->worst, error);
	}
}

static void expect_bits(struct subject *s, const char *what, const char *how, size_t count, const float *got,
			const float *want)
{
	for (size_t i = 0; i < count; i++)
		if (memcmp(&got[i], &want[i], sizeof(*got)))
			fail_msg("%s, %d threads: %s: %s: number %zu is %.9g, and was %.9g", s->maker->name, s->threads,
				 what, how, i, (double)got[i], (double)want[i]);
}

/* Say the greatest error of each kind of backend since the last time. */
static void report(const char *what)
{
	for (size_t m = 0; m < COUNT(makers); m++) {
		double worst = -1;

		EACH_SUBJECT(s)
		{
			if (s->maker == &makers[m]) {
				worst = fmax(worst, s->worst);
				s->worst = 0;
			}
		}
		if (worst >= 0)
			print_message("%s: %s: greatest error %.2g\n", what, makers[m].name, worst);
	}
}

/* The first result of each family, to which the others of the family must be equal. */
struct firsts {
	float *of[FAMILIES];
};

static void expect_family(struct firsts *firsts, struct subject *s, const char *what, const char *how, size_t count,
			  float *got)
{
	float **first = &firsts->of[s->maker->family];

	if (!*first) {
		*first = got;
		return;
	}
	expect_bits(s, what, how, count, got, *first);
	free(got);
}

static void free_firsts(struct firsts *firsts)
{
	for (size_t i = 0; i < FAMILIES; i++)
		free(firsts->of[i]);
}

/* ----------------------------------------------------------------------------------------------------- attention -- */

enum cut { CUT_NOT, CUT_RANDOM, CUT_ALL, CUTS };
static const char *const cut_names[CUTS] = {"at once", "in random pieces", "one by one"};

static size_t next_piece(enum cut cut, size_t left, uint64_t *state)
{
	if (cut == CUT_NOT)
		return left;
	if (cut == CUT_ALL)
		return 1;
	return 1 + test_random(state, left < 40 ? left : 40);
}

/* Steps first .. last-1 of a trial, into y (host). */
static void attend_steps(struct subject *s, const struct attend_trial *trial, struct kv_cache *cache, size_t first,
			 size_t last, float *y)
{
	const size_t steps = last - first, width = attend_trial_width(trial), kv = trial->heads * trial->head_size;
	float *q = put_floats(s, trial->q + first * width, steps * width),
	      *k = put_floats(s, trial->k + first * kv, steps * kv),
	      *v = put_floats(s, trial->v + first * kv, steps * kv), *there = put_floats(s, NULL, steps * width);
	rosa_error err;

	expect_status(trial->text, s->ops->cache_reserve(s->backend, cache, steps, &err), ROSA_OK, &err);
	s->ops->attend(s->backend, cache, steps, trial->heads * trial->group, q, k, v, there);
	s->ops->get(s->backend, y, there, steps * width * sizeof(*y));
	give_floats(s, 4, (float *const[]){q, k, v, there});
	assert_int_equal(cache->steps, last);
}

static struct kv_cache new_cache(struct subject *s, const struct attend_trial *trial, size_t chunk)
{
	struct kv_cache cache;
	rosa_error err;

	expect_status(trial->text,
		      s->ops->cache_new(s->backend, trial->heads, trial->head_size, trial->window, trial->sinks, chunk,
					&cache, &err),
		      ROSA_OK, &err);
	return cache;
}

static float *attend_cut(struct subject *s, const struct attend_trial *trial, enum cut cut)
{
	const size_t width = attend_trial_width(trial);
	struct kv_cache cache = new_cache(s, trial, cut == CUT_NOT ? trial->steps : 40);
	float *y = must_alloc(trial->steps * width * sizeof(*y));
	uint64_t state = trial->seed;

	for (size_t t = 0, piece; t < trial->steps; t += piece) {
		piece = next_piece(cut, trial->steps - t, &state);
		attend_steps(s, trial, &cache, t, t + piece, y + t * width);
	}
	s->ops->cache_free(s->backend, &cache);
	return y;
}

static void check_attend(struct attend_trial *trial)
{
	const size_t count = trial->steps * attend_trial_width(trial);
	struct firsts firsts = {{NULL}};

	attend_trial_make(trial);
	EACH_SUBJECT(s)
	{
		for (int cut = 0; cut < CUTS; cut++) {
			float *y;

			if (cut == CUT_RANDOM && s->threads > 1)
				continue; /* threads meet whole texts and single steps */
			y = attend_cut(s, trial, (enum cut)cut);
			expect_near(s, trial->text, count, y, trial->want, 2e-5);
			expect_family(&firsts, s, trial->text, cut_names[cut], count, y);
		}
	}
	free_firsts(&firsts);
	attend_trial_free(trial);
}

static const size_t windows[] = {0, 1, 5, 16, 17, 512}, sinks[] = {0, 1, 4, 20}, groups[] = {1, 3, 4},
		    head_sizes[] = {2, 6, 16, 18, 32, 64, 80, 128};

static void test_attend(void **state)
{
	const size_t rounds = test_rounds(1);
	uint64_t turn = 1;

	(void)state;
	for (size_t i = 0; i < rounds * COUNT(windows) * COUNT(sinks) * COUNT(groups); i++) {
		struct attend_trial trial = {.window = windows[i % COUNT(windows)],
					     .sinks = sinks[i / COUNT(windows) % COUNT(sinks)],
					     .group = groups[i / COUNT(windows) / COUNT(sinks) % COUNT(groups)],
					     .seed = i};
		const bool large = trial.window == 512;

		trial.heads = large ? 1 : 1 + test_random(&turn, 3);
		trial.head_size = head_sizes[test_random(&turn, large ? 3 : COUNT(head_sizes))];
		trial.steps = large ? 540 : 1 + test_random(&turn, 120);
		check_attend(&trial);
	}
	report("attention");
}

/* Shapes of real models, long enough for one step to be shared out among threads; a group of more heads than a tile. */
static void test_attend_larger(void **state)
{
	struct attend_trial trials[] = {
	    {.steps = 480, .heads = 3, .group = 3, .head_size = 64, .window = 470, .sinks = 4, .seed = 1},
	    {.steps = 270, .heads = 1, .group = 4, .head_size = 256, .seed = 2},
	    {.steps = 90, .heads = 2, .group = 17, .head_size = 128, .window = 60, .sinks = 20, .seed = 3},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(trials); i++)
		check_attend(&trials[i]);
	report("attention, larger");
}

/* What a query must not see cannot reach it, though its neighbours in a tile see it, and be it infinite. */
static void test_attend_hides(void **state)
{
	struct attend_trial trial = {
	    .steps = 100, .heads = 2, .group = 3, .head_size = 20, .window = 30, .sinks = 3, .seed = 5};
	const size_t width = attend_trial_width(&trial), bad = 57;

	(void)state;
	attend_trial_make(&trial);
	EACH_SUBJECT(s)
	{
		for (int key = 0; key < 2; key++) {
			float *before = attend_cut(s, &trial, CUT_NOT), *spoilt = key ? trial.k : trial.v, *after;
			float *number = &spoilt[bad * trial.heads * trial.head_size + 7], was = *number;

			*number = INFINITY;
			after = attend_cut(s, &trial, CUT_RANDOM);
			*number = was;
			expect_bits(s, trial.text, "before an infinity", bad * width, after, before);
			expect_bits(s, trial.text, "after it", (trial.steps - bad - trial.window) * width,
				    after + (bad + trial.window) * width, before + (bad + trial.window) * width);
			assert_false(isfinite(after[bad * width + 7]));
			free(before);
			free(after);
		}
	}
	attend_trial_free(&trial);
}

/* ---- saved and loaded ---- */

static size_t kept_by_definition(const struct attend_trial *trial, size_t steps)
{
	size_t kept = 0;

	for (size_t p = 0; p < steps; p++)
		kept += trial->window == 0 || p + trial->window > steps || p < trial->sinks;
	return kept;
}

/* Save after `cut` steps, load with another chunk, read on with both. */
static void check_reload(struct subject *s, const struct attend_trial *trial, size_t cut, const float *want)
{
	const size_t width = attend_trial_width(trial), kv = trial->heads * trial->head_size;
	struct kv_cache cache = new_cache(s, trial, trial->steps), again = new_cache(s, trial, 9), probe = again;
	float *y = must_alloc(trial->steps * width * sizeof(*y)), *keys, *values;
	size_t kept;
	rosa_error err;

	if (cut)
		attend_steps(s, trial, &cache, 0, cut, y);
	kept = s->ops->cache_kept(s->backend, &cache);
	assert_int_equal(kept, kept_by_definition(trial, cut));
	probe.steps = cut;
	assert_int_equal(s->ops->cache_kept(s->backend, &probe), kept);
	keys = must_alloc(kept * kv * sizeof(*keys));
	values = must_alloc(kept * kv * sizeof(*values));
	s->ops->cache_save(s->backend, &cache, keys, values);
	for (size_t i = 0, p = 0; i < kept; i++, p++) {
		while (trial->window && p + trial->window <= cut && p >= trial->sinks)
			p++;
		expect_bits(s, trial->text, "saved keys", kv, keys + i * kv, trial->k + p * kv);
		expect_bits(s, trial->text, "saved values", kv, values + i * kv, trial->v + p * kv);
	}
	expect_status(trial->text, s->ops->cache_load(s->backend, &again, cut, keys, values, &err), ROSA_OK, &err);
	if (cut)
		expect_status(trial->text, s->ops->cache_load(s->backend, &again, cut, keys, values, &err), ROSA_EINVAL,
			      &err);
	attend_steps(s, trial, &cache, cut, trial->steps, y + cut * width);
	expect_bits(s, trial->text, "read on", trial->steps * width, y, want);
	for (size_t t = cut, piece; t < trial->steps; t += piece) {
		piece = trial->steps - t < 9 ? trial->steps - t : 9;
		attend_steps(s, trial, &again, t, t + piece, y + t * width);
	}
	expect_bits(s, trial->text, "loaded and read on", trial->steps * width, y, want);
	s->ops->cache_free(s->backend, &cache);
	s->ops->cache_free(s->backend, &again);
	free(keys);
	free(values);
	free(y);
}

static void test_reload(void **state)
{
	static const struct attend_trial shapes[] = {
	    {.window = 0},
	    {.window = 1},
	    {.window = 1, .sinks = 4},
	    {.window = 16},
	    {.window = 17, .sinks = 20},
	    {.window = 30, .sinks = 3},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		struct attend_trial trial = shapes[i];

		trial.steps = 75;
		trial.heads = 2;
		trial.group = 2;
		trial.head_size = 18;
		trial.seed = i;
		attend_trial_make(&trial);
		EACH_SUBJECT(s)
		{
			float *want = attend_cut(s, &trial, CUT_NOT);

			for (size_t cut = 0; cut < trial.steps; cut += 1 + cut / 9)
				check_reload(s, &trial, cut, want);
			free(want);
		}
		attend_trial_free(&trial);
	}
}

/* ---- what cannot be had ---- */

static void test_refusals(void **state)
{
	static const struct {
		size_t heads, head_size, window, sinks, chunk;
		rosa_status status;
	} caches[] = {
	    {0, 8, 0, 0, 1, ROSA_EINVAL},
	    {1, 0, 0, 0, 1, ROSA_EINVAL},
	    {1, 8, 0, 0, 0, ROSA_EINVAL},
	    {1, BACKEND_MOST_HEAD + 1, 0, 0, 1, ROSA_EINVAL},
	    {SIZE_MAX, 64, 0, 0, 1, ROSA_ENOMEM},
	    {SIZE_MAX / 64, 64, 0, 0, 1, ROSA_ENOMEM},
	    {(size_t)1 << 56, 64, 16, 1, 1, ROSA_ENOMEM},
	    {1, 64, 8, SIZE_MAX, 1, ROSA_ENOMEM},
	    {1, 64, 8, (size_t)1 << 52, 1, ROSA_ENOMEM},
	};

	(void)state;
	EACH_SUBJECT(s)
	{
		struct kv_cache cache;
		rosa_error err;

		for (size_t i = 0; i < COUNT(caches); i++) {
			rosa_status status =
			    s->ops->cache_new(s->backend, caches[i].heads, caches[i].head_size, caches[i].window,
					      caches[i].sinks, caches[i].chunk, &cache, &err);

			expect_status("cache_new", status, caches[i].status, &err);
			s->ops->cache_free(s->backend, &cache);
		}
		/* a window without end is a global cache that ends later; what is reserved decides */
		expect_status("cache_new",
			      s->ops->cache_new(s->backend, (size_t)1 << 20, 4096, SIZE_MAX, 0, SIZE_MAX, &cache, &err),
			      ROSA_OK, &err);
		expect_status("cache_reserve", s->ops->cache_reserve(s->backend, &cache, SIZE_MAX, &err), ROSA_ENOMEM,
			      &err);
		expect_status("cache_reserve", s->ops->cache_reserve(s->backend, &cache, (size_t)1 << 48, &err),
			      ROSA_ENOMEM, &err);
		s->ops->cache_free(s->backend, &cache);
		expect_status("cache_new", s->ops->cache_new(s->backend, 2, 8, 0, 0, 10, &cache, &err), ROSA_OK, &err);
		expect_status("cache_reserve", s->ops->cache_reserve(s->backend, &cache, 11, &err), ROSA_EINVAL, &err);
		expect_status("cache_reserve", s->ops->cache_reserve(s->backend, &cache, 10, &err), ROSA_OK, &err);
		expect_status("cache_load", s->ops->cache_load(s->backend, &cache, SIZE_MAX - 5, NULL, NULL, &err),
			      ROSA_ENOMEM, &err);
		s->ops->cache_free(s->backend, &cache);
		s->ops->cache_free(s->backend, &cache);
		assert_null(s->ops->take(s->backend, SIZE_MAX - 100));
		s->ops->give(s->backend, NULL);
	}
}

/* ------------------------------------------------------------------------------------------------------- numbers -- */

/* What the tests of simple operations have in common: `call` runs one on rows `row` .. `row` + rows-1 of inputs in the
 * backend's memory, `inputs` of them, and leaves the result in y. It is run on all rows at once, which must be near
 * what is wanted and equal within the family, and row by row, which must be equal. */
#define MOST_INPUTS 4
struct rows_trial {
	const char *what;
	size_t rows, width;
	size_t inputs;
	struct {
		const float *host;
		size_t numbers; /* of a row; 0: every row uses the same */
		size_t all;     /* where numbers is 0 */
	} input[MOST_INPUTS];
	void (*call)(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y);
	const void *extra;
	double *want;
	double tolerance;
};

static float *run_rows(struct subject *s, const struct rows_trial *trial, size_t at_once)
{
	float *inputs[MOST_INPUTS], *y = put_floats(s, NULL, trial->rows * trial->width);

	for (size_t i = 0; i < trial->inputs; i++)
		inputs[i] =
		    put_floats(s, trial->input[i].host,
			       trial->input[i].numbers ? trial->input[i].numbers * trial->rows : trial->input[i].all);
	for (size_t row = 0; row < trial->rows; row += at_once) {
		float *now[MOST_INPUTS];

		for (size_t i = 0; i < trial->inputs; i++)
			now[i] = inputs[i] + row * trial->input[i].numbers;
		trial->call(s, trial, row, trial->rows - row < at_once ? trial->rows - row : at_once, now,
			    y + row * trial->width);
	}
	give_floats(s, trial->inputs, inputs);
	return get_floats(s, y, trial->rows * trial->width);
}

static void check_rows(const struct rows_trial *trial)
{
	const size_t pieces[] = {trial->rows, 1, 7}, count = trial->rows * trial->width;
	struct firsts firsts = {{NULL}};

	EACH_SUBJECT(s)
	{
		for (size_t i = 0; i < COUNT(pieces); i++) {
			float *y = run_rows(s, trial, pieces[i]);

			expect_near(s, trial->what, count, y, trial->want, trial->tolerance);
			expect_family(&firsts, s, trial->what, i ? "some rows" : "all rows", count, y);
		}
	}
	free_firsts(&firsts);
}

/* Numbers of a row, and rows: around vectors, and enough to be shared out. */
static const struct {
	size_t rows, width;
} shapes[] = {{1, 1}, {3, 2}, {5, 16}, {4, 17}, {9, 96}, {2, 576}, {100, 576}, {20, 2049}};

static void call_norm(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		      float *y)
{
	(void)row;
	s->ops->rms_norm(s->backend, rows, trial->width, inputs[0], inputs[1], 1e-5f, y);
}

static void test_rms_norm(void **state)
{
	uint64_t turn = 3;

	(void)state;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const size_t rows = shapes[i].rows, width = shapes[i].width;
		float *x = random_floats(rows * width, i % 3 ? 2 : 1e-3f, &turn),
		      *weight = random_floats(width, 3, &turn);
		struct rows_trial trial = {.what = "rms_norm",
					   .rows = rows,
					   .width = width,
					   .inputs = 2,
					   .input = {{x, width, 0}, {weight, 0, width}},
					   .call = call_norm,
					   .tolerance = 5e-7};

		trial.want = must_alloc(rows * width * sizeof(*trial.want));
		oracle_rms_norm(rows, width, x, weight, 1e-5f, trial.want);
		check_rows(&trial);
		free(trial.want);
		free(x);
		free(weight);
	}
	report("rms_norm");
}

static void call_swiglu(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			float *const *inputs, float *y)
{
	(void)row;
	s->ops->swiglu(s->backend, rows * trial->width, inputs[0], inputs[1], y);
}

static void copy_floats(struct subject *s, size_t count, const float *x, float *y)
{
	float *copy = must_alloc(count * sizeof(*copy));

	s->ops->get(s->backend, copy, x, count * sizeof(*copy));
	s->ops->put(s->backend, y, copy, count * sizeof(*copy));
	free(copy);
}

static void call_add(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y)
{
	(void)row;
	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->add(s->backend, rows * trial->width, inputs[1], y);
}

static void call_add_bias(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			  float *const *inputs, float *y)
{
	(void)row;
	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->add_bias(s->backend, rows, trial->width, inputs[2], y);
}

static void call_mix(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y)
{
	(void)row;
	s->ops->mix(s->backend, rows, trial->width, inputs[2], inputs[0], inputs[1], y);
}

/* y may be an input: that result must be the same. */
static void expect_in_place(const struct rows_trial *trial)
{
	EACH_SUBJECT(s)
	{
		float *want = run_rows(s, trial, trial->rows);

		for (size_t which = 0; which < 2; which++) {
			float *inputs[MOST_INPUTS], *got;

			for (size_t i = 0; i < trial->inputs; i++)
				inputs[i] = put_floats(s, trial->input[i].host,
						       trial->input[i].numbers ? trial->input[i].numbers * trial->rows
									       : trial->input[i].all);
			trial->call(s, trial, 0, trial->rows, inputs, inputs[which]);
			for (size_t i = 0; i < trial->inputs; i++)
				if (i != which)
					s->ops->give(s->backend, inputs[i]);
			got = get_floats(s, inputs[which], trial->rows * trial->width);
			expect_bits(s, trial->what, "in place", trial->rows * trial->width, got, want);
			free(got);
		}
		free(want);
	}
}

static void test_pairs(void **state)
{
	uint64_t turn = 4;

	(void)state;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const size_t rows = shapes[i].rows, width = shapes[i].width, count = rows * width;
		float *a = random_floats(count, 12, &turn), *b = random_floats(count, 2, &turn),
		      *gate = random_floats(width, 9, &turn);
		struct rows_trial trial = {.what = "swiglu",
					   .rows = rows,
					   .width = width,
					   .inputs = 2,
					   .input = {{a, width, 0}, {b, width, 0}, {gate, 0, width}},
					   .call = call_swiglu,
					   .tolerance = 2e-6};

		a[0] = -100; /* where the power ends */
		trial.want = must_alloc(count * sizeof(*trial.want));
		oracle_swiglu(count, a, b, trial.want);
		check_rows(&trial);
		expect_in_place(&trial);
		trial.what = "add";
		trial.call = call_add;
		for (size_t j = 0; j < count; j++)
			trial.want[j] = (double)a[j] + (double)b[j];
		check_rows(&trial);
		trial.what = "add_bias";
		trial.inputs = 3;
		trial.call = call_add_bias;
		for (size_t j = 0; j < count; j++)
			trial.want[j] = (double)a[j] + (double)gate[j % width];
		check_rows(&trial);
		trial.what = "mix";
		trial.call = call_mix;
		oracle_mix(rows, width, gate, a, b, trial.want);
		check_rows(&trial);
		expect_in_place(&trial);
		free(trial.want);
		free(a);
		free(b);
		free(gate);
	}
	report("swiglu, add, add_bias, mix");
}

struct rotate_extra {
	struct rotary rotary;
	size_t heads, first;
};

static void call_rotate(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			float *const *inputs, float *y)
{
	const struct rotate_extra *extra = trial->extra;

	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->rotate(s->backend, &extra->rotary, rows, extra->heads, extra->first + row, y);
}

static void test_rotate(void **state)
{
	static const size_t sizes[] = {2, 4, 18, 64, 128}, firsts[] = {0, 1000, 123456};
	uint64_t turn = 5;

	(void)state;
	for (size_t i = 0; i < COUNT(sizes) * COUNT(firsts) * 2; i++) {
		const size_t size = sizes[i / 6], heads = 1 + i % 5, rows = size == 128 ? 300 : 20,
			     width = heads * size;
		float *x = random_floats(rows * width, 1, &turn),
		      *frequencies = must_alloc(size / 2 * sizeof(*frequencies));
		struct rotate_extra extra = {
		    {size, i % 2 ? ROTARY_HALVES : ROTARY_NEIGHBOURS, frequencies}, heads, firsts[i / 2 % 3]};
		struct rows_trial trial = {.what = "rotate",
					   .rows = rows,
					   .width = width,
					   .inputs = 1,
					   .input = {{x, width, 0}},
					   .call = call_rotate,
					   .extra = &extra,
					   .tolerance = 4e-7};

		for (size_t j = 0; j < size / 2; j++)
			frequencies[j] = powf(10000, -(float)(2 * j) / (float)size);
		trial.want = must_alloc(rows * width * sizeof(*trial.want));
		for (size_t j = 0; j < rows * width; j++)
			trial.want[j] = (double)x[j];
		oracle_rotate(&extra.rotary, rows, heads, extra.first, trial.want);
		check_rows(&trial);
		free(trial.want);
		free(frequencies);
		free(x);
	}
	report("rotate");
}

/* More positions at once than any table of angles holds. */
static void test_rotate_many(void **state)
{
	enum { ROWS = 9000, SIZE = 2 };
	const float frequency = 0.37f;
	const struct rotary rotary = {SIZE, ROTARY_HALVES, &frequency};
	double *want = must_alloc(ROWS * SIZE * sizeof(*want));
	uint64_t turn = 6;
	float *x = random_floats((size_t)ROWS * SIZE, 1, &turn);

	(void)state;
	for (size_t i = 0; i < ROWS * SIZE; i++)
		want[i] = (double)x[i];
	oracle_rotate(&rotary, ROWS, 1, 77, want);
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, (size_t)ROWS * SIZE), *got;

		s->ops->rotate(s->backend, &rotary, ROWS, 1, 77, there);
		got = get_floats(s, there, (size_t)ROWS * SIZE);
		expect_near(s, "rotate", (size_t)ROWS * SIZE, got, want, 4e-7);
		free(got);
	}
	free(want);
	free(x);
}

/* ------------------------------------------------------------------------------------------------------ products -- */

static void narrow(enum format format, size_t count, const float *from, void *to)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &from[i], sizeof(bits));
		bits >>= format == FORMAT_BF16 ? 16 : 0;
		memcpy((char *)to + i * format_info[format].bytes, &bits, format_info[format].bytes);
	}
}

static void check_multiply(enum format format, size_t rows, size_t columns, size_t steps)
{
	uint64_t turn = rows * 1000 + columns;
	float *x = random_floats(steps * columns, 1, &turn), *numbers = random_floats(rows * columns, 1, &turn),
	      *base = random_floats(steps * rows, 1, &turn);
	void *data = must_alloc(rows * columns * sizeof(float));
	double *want[2];
	struct firsts firsts[2] = {{{NULL}}, {{NULL}}};

	narrow(format, rows * columns, numbers, data);
	for (int add = 0; add < 2; add++) {
		want[add] = must_alloc(steps * rows * sizeof(**want));
		for (size_t i = 0; i < steps * rows; i++)
			want[add][i] = add ? (double)base[i] : 0;
		oracle_multiply(format, data, rows, columns, steps, x, want[add]);
	}
	EACH_SUBJECT(s)
	{
		struct matrix weight;
		float *there = put_floats(s, x, steps * columns), *y[2];
		rosa_error err;

		expect_status("matrix_new", s->ops->matrix_new(s->backend, format, rows, columns, data, &weight, &err),
			      ROSA_OK, &err);
		for (int add = 0; add < 2; add++)
			y[add] = put_floats(s, base, steps * rows);
		s->ops->multiply(s->backend, steps, there, 2,
				 (const struct product[]){{&weight, y[0], false}, {&weight, y[1], true}});
		for (int add = 0; add < 2; add++) {
			float *got = get_floats(s, y[add], steps * rows);

			expect_near(s, "multiply", steps * rows, got, want[add], 1e-5);
			expect_family(&firsts[add], s, "multiply", "again", steps * rows, got);
		}
		s->ops->matrix_free(s->backend, &weight);
		s->ops->matrix_free(s->backend, &weight);
		s->ops->give(s->backend, there);
	}
	for (int add = 0; add < 2; add++) {
		free_firsts(&firsts[add]);
		free(want[add]);
	}
	free(x);
	free(numbers);
	free(base);
	free(data);
}

static void test_multiply(void **state)
{
	(void)state;
	for (int bf16 = 0; bf16 < 2; bf16++) {
		const enum format format = bf16 ? FORMAT_BF16 : FORMAT_F32;

		check_multiply(format, 1, 1, 1);
		check_multiply(format, 37, 50, 3);
		check_multiply(format, 300, 192, 1);
		check_multiply(format, 200, 576, 40);
	}
	report("multiply");
}

static void test_embed(void **state)
{
	enum { ROWS = 50, WIDTH = 96, STEPS = 400 };
	uint64_t turn = 8;
	float *table = random_floats((size_t)ROWS * WIDTH, 1, &turn), *want = must_alloc(sizeof(float) * STEPS * WIDTH);
	uint32_t tokens[STEPS];

	(void)state;
	for (size_t t = 0; t < STEPS; t++) {
		tokens[t] = t < 2 ? (uint32_t)t * (ROWS - 1) : (uint32_t)test_random(&turn, ROWS);
		memcpy(want + t * WIDTH, table + tokens[t] * WIDTH, WIDTH * sizeof(*want));
	}
	EACH_SUBJECT(s)
	{
		float *y = put_floats(s, NULL, (size_t)STEPS * WIDTH), *got;
		struct matrix weight;
		rosa_error err;

		expect_status("matrix_new",
			      s->ops->matrix_new(s->backend, FORMAT_F32, ROWS, WIDTH, table, &weight, &err), ROSA_OK,
			      &err);
		s->ops->embed(s->backend, &weight, STEPS, tokens, y);
		got = get_floats(s, y, (size_t)STEPS * WIDTH);
		expect_bits(s, "embed", "a row", (size_t)STEPS * WIDTH, got, want);
		s->ops->matrix_free(s->backend, &weight);
		free(got);
		expect_status("matrix_new", s->ops->matrix_new(s->backend, FORMAT_Q8_0, 2, 33, table, &weight, &err),
			      ROSA_EINVAL, &err);
	}
	free(table);
	free(want);
}

/* ---------------------------------------------------------------------------------------------------------- ROSA -- */

static void check_symbols(size_t steps, size_t channels, int bits)
{
	const size_t routes = channels / (size_t)bits, stride = steps + 3, count = steps * channels;
	uint64_t turn = count + (uint64_t)bits;
	float *x = random_floats(count, 1, &turn);
	uint16_t *symbols = must_alloc(routes * stride * sizeof(*symbols));

	x[0] = 0;
	x[count - 1] = NAN;
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, count);

		memset(symbols, 0xee, routes * stride * sizeof(*symbols));
		s->ops->symbols(s->backend, steps, channels, bits, there, symbols, stride);
		for (size_t t = 0; t < stride; t++) {
			for (size_t r = 0; r < routes; r++) {
				unsigned symbol = t < steps ? 0 : 0xeeee;

				for (int j = 0; t < steps && j < bits; j++)
					symbol |= (unsigned)(x[t * channels + r * (size_t)bits + (size_t)j] > 0) << j;
				if (symbols[r * stride + t] != symbol)
					fail_msg("%s: symbol of route %zu, step %zu, is %u, want %u", s->maker->name, r,
						 t, symbols[r * stride + t], symbol);
			}
		}
		give_floats(s, 1, &there);
	}
	free(x);
	free(symbols);
}

static void test_symbols(void **state)
{
	(void)state;
	check_symbols(1, 4, 4);
	check_symbols(5, 48, 16);
	check_symbols(33, 30, 3);
	check_symbols(130, 576, 16);
}

/* What a layer reads, by the equation. */
static void oracle_reads(size_t steps, size_t channels, const struct reads *reads, const float *e0, const float *e1,
			 double *y)
{
	const size_t words = (channels + 63) / 64;
	size_t row = 0;

	memset(y, 0, steps * channels * sizeof(*y));
	for (size_t i = 0; i < reads->links; row += reads->routes[i++]) {
		for (size_t t = 0; t < steps; t++) {
			for (size_t c = 0; c < channels; c++) {
				const size_t route = c / (channels / reads->routes[i]);
				const uint64_t word = reads->bits[(i * steps + t) * words + c / 64];
				const float end = (word >> c % 64 & 1 ? e1 : e0)[i * channels + c];

				y[t * channels + c] += (double)(reads->weight[(row + route) * steps + t] * end);
			}
		}
	}
}

/* Random reads; `whole`: their weights are 1, so that the sum of one link is exact. */
static void check_reads(size_t steps, size_t channels, size_t links, const size_t *routes, bool whole)
{
	const size_t count = steps * channels, words = bit_words(channels);
	uint64_t turn = count + links, *bits = must_alloc(links * steps * words * sizeof(*bits));
	double *want = must_alloc(count * sizeof(*want));
	float *e[2], *weight;
	size_t rows = 0;

	for (size_t i = 0; i < links; i++)
		rows += routes[i];
	for (int i = 0; i < 2; i++)
		e[i] = random_floats(links * channels, 1, &turn);
	weight = random_floats(rows * steps, 1, &turn);
	for (size_t i = 0; i < rows * steps; i++)
		weight[i] = test_random(&turn, 3) ? whole ? 1 : weight[i] : 0;
	for (size_t i = 0; i < links * steps * words; i++)
		bits[i] = test_random(&turn, UINT64_MAX);
	EACH_SUBJECT(s)
	{
		const struct reads reads = {links, routes, bits, weight};
		float *y = put_floats(s, NULL, count), *got;
		float *ends[2] = {put_floats(s, e[0], links * channels), put_floats(s, e[1], links * channels)};

		oracle_reads(steps, channels, &reads, e[0], e[1], want);
		s->ops->read(s->backend, steps, channels, &reads, ends[0], ends[1], y);
		got = get_floats(s, y, count);
		expect_near(s, "read", count, got, want, links == 1 ? 0 : 1e-6);
		give_floats(s, 2, ends);
		free(got);
	}
	free(e[0]);
	free(e[1]);
	free(weight);
	free(bits);
	free(want);
}

static void check_pack(size_t steps, size_t channels)
{
	const size_t count = steps * channels, words = bit_words(channels);
	uint64_t turn = count, *bits = must_alloc((steps * words + 1) * sizeof(*bits));
	float *x = random_floats(count, 1, &turn);

	x[0] = -0.0f;
	x[count / 2] = NAN;
	x[count - 1] = 1e-42f;
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, count);

		bits[steps * words] = 77;
		s->ops->pack(s->backend, steps, channels, there, bits);
		for (size_t t = 0; t < steps; t++)
			for (size_t c = 0; c < words * 64; c++)
				if ((bits[t * words + c / 64] >> c % 64 & 1) !=
				    (c < channels && x[t * channels + c] > 0))
					fail_msg("%s: pack: step %zu, channel %zu", s->maker->name, t, c);
		assert_true(bits[steps * words] == 77);
		give_floats(s, 1, &there);
	}
	free(x);
	free(bits);
}

/* `zero`: where a gate begins, it is 1 exactly. */
static void check_gate(size_t steps, size_t channels, bool zero)
{
	const size_t count = steps * channels;
	uint64_t turn = count;
	float *u = random_floats(count, 1, &turn), *w = random_floats(channels, 1, &turn), b = zero ? 0 : 0.3f;
	float *x = random_floats(count, 1, &turn);
	double *want = must_alloc(count * sizeof(*want)), *factor = must_alloc(steps * sizeof(*factor));

	if (zero)
		memset(w, 0, channels * sizeof(*w));
	for (size_t t = 0; t < steps; t++) {
		double sum = (double)b;

		for (size_t c = 0; c < channels; c++)
			sum += (double)u[t * channels + c] * (double)w[c];
		factor[t] = 2 / (1 + exp(-sum));
		for (size_t c = 0; c < channels; c++)
			want[t * channels + c] = (double)x[t * channels + c] * factor[t];
	}
	EACH_SUBJECT(s)
	{
		float *there[3] = {put_floats(s, u, count), put_floats(s, w, channels), put_floats(s, &b, 1)};
		float *y = put_floats(s, x, count), *z = put_floats(s, NULL, steps), *got;

		s->ops->gate(s->backend, steps, channels, there[0], there[1], there[2], z, y);
		got = get_floats(s, y, count);
		expect_near(s, "gate", count, got, want, zero ? 0 : 1e-5);
		free(got);
		got = get_floats(s, z, steps);
		expect_near(s, "gate's factor", steps, got, factor, zero ? 0 : 1e-5);
		free(got);
		give_floats(s, 3, there);
	}
	free(u);
	free(w);
	free(x);
	free(want);
	free(factor);
}

static void test_reads(void **state)
{
	(void)state;
	check_reads(1, 4, 1, (const size_t[]){1}, true);
	check_reads(5, 48, 1, (const size_t[]){3}, true);
	check_reads(33, 30, 1, (const size_t[]){10}, true);
	check_reads(37, 130, 2, (const size_t[]){1, 26}, false);
	check_reads(140, 576, 4, (const size_t[]){1, 1, 1, 1}, false);
	check_reads(140, 576, 3, (const size_t[]){1, 36, 144}, false);
	check_pack(1, 4);
	check_pack(7, 130);
	check_pack(140, 576);
	check_gate(3, 20, false);
	check_gate(140, 576, false);
	check_gate(140, 576, true);
}

static void test_making(void **state)
{
	struct backend *backend = (struct backend *)8;
	rosa_error err;

	(void)state;
	expect_status("no workers", cpu_backend_new(NULL, &backend, &err), ROSA_EINVAL, &err);
	assert_null(backend);
	cpu_backend_free(NULL);
	expect_status("cpu_backend_new", cpu_backend_new(subjects[0].workers, &backend, &err), ROSA_OK, &err);
	assert_string_equal(backend->ops->name, "cpu");
	cpu_backend_free(backend);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_attend),   cmocka_unit_test(test_attend_larger), cmocka_unit_test(test_attend_hides),
	    cmocka_unit_test(test_reload),   cmocka_unit_test(test_refusals),      cmocka_unit_test(test_rms_norm),
	    cmocka_unit_test(test_pairs),    cmocka_unit_test(test_rotate),        cmocka_unit_test(test_rotate_many),
	    cmocka_unit_test(test_multiply), cmocka_unit_test(test_embed),         cmocka_unit_test(test_symbols),
	    cmocka_unit_test(test_reads),    cmocka_unit_test(test_making),
	};

	return cmocka_run_group_tests_name("backend", tests, set_up, tear_down);
}
