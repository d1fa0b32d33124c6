/* Attention and its cache, on every backend, against the formula in double precision. */
#include "backend/backend.h"

#include "support_backend.h"
#include "support_subjects.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

/* Sizes that no memory has are asked for on purpose; sanitizers are to refuse them as malloc does. */
#define REFUSE_MEMORY(options)                                                                                         \
	const char *options(void);                                                                                     \
	const char *options(void)                                                                                      \
	{                                                                                                              \
		return "allocator_may_return_null=1";                                                                  \
	}
REFUSE_MEMORY(__asan_default_options)
REFUSE_MEMORY(__tsan_default_options)

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

	must_for(trial->text, s->ops->cache_reserve(s->backend, cache, steps, &err));
	s->ops->attend(s->backend, cache, steps, trial->heads * trial->group, q, k, v, there);
	s->ops->get(s->backend, y, there, steps * width * sizeof(*y));
	give_floats(s, 4, (float *const[]){q, k, v, there});
	assert_int_equal(cache->steps, last);
}

static struct kv_cache new_cache(struct subject *s, const struct attend_trial *trial, size_t chunk)
{
	struct kv_cache cache;

	must_for(trial->text, s->ops->cache_new(s->backend, trial->heads, trial->head_size, trial->window, trial->sinks,
						chunk, &cache, &err));
	return cache;
}

static float *attend_cut(struct subject *s, const struct attend_trial *trial, enum cut cut)
{
	const size_t width = attend_trial_width(trial);
	struct kv_cache cache = new_cache(s, trial, cut == CUT_NOT ? trial->steps : 40);
	float *y = test_alloc(trial->steps * width * sizeof(*y));
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
			expect_close(s, trial->text, count, y, trial->want, 2e-5);
			expect_family(&firsts, s, trial->text, cut_names[cut], count, y);
		}
	}
}

static const size_t windows[] = {0, 1, 5, 16, 17, 512}, sinks[] = {0, 1, 4, 20}, groups[] = {1, 3, 4},
		    head_sizes[] = {2, 6, 16, 18, 32, 64, 80, 128};

TEST(test_attend)
{
	const size_t rounds = test_rounds(1);
	uint64_t turn = 1;

	for (size_t i = 0, mark = test_mark(); i < rounds * COUNT(windows) * COUNT(sinks) * COUNT(groups);
	     i++, test_release(mark)) {
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

/* Heads as large as those of real models, so that one step is shared out among threads; a group of more heads than a
 * tile. */
TEST(test_attend_larger)
{
	struct attend_trial trials[] = {
	    {.steps = 140, .heads = 3, .group = 3, .head_size = 256, .window = 120, .sinks = 4, .seed = 1},
	    {.steps = 140, .heads = 1, .group = 8, .head_size = 256, .seed = 2},
	    {.steps = 90, .heads = 2, .group = 17, .head_size = 128, .window = 60, .sinks = 20, .seed = 3},
	};

	for (size_t i = 0; i < COUNT(trials); i++)
		check_attend(&trials[i]);
	report("attention, larger");
}

/* What a query must not see cannot reach it, though its neighbours in a tile see it, and be it infinite. */
TEST(test_attend_hides)
{
	struct attend_trial trial = {
	    .steps = 100, .heads = 2, .group = 3, .head_size = 20, .window = 30, .sinks = 3, .seed = 5};
	const size_t width = attend_trial_width(&trial), bad = 57;

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
		}
	}
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
	float *y = test_alloc(trial->steps * width * sizeof(*y)), *keys, *values;
	size_t kept;

	if (cut)
		attend_steps(s, trial, &cache, 0, cut, y);
	kept = s->ops->cache_kept(s->backend, &cache);
	assert_int_equal(kept, kept_by_definition(trial, cut));
	probe.steps = cut;
	assert_int_equal(s->ops->cache_kept(s->backend, &probe), kept);
	keys = test_alloc(kept * kv * sizeof(*keys));
	values = test_alloc(kept * kv * sizeof(*values));
	s->ops->cache_save(s->backend, &cache, keys, values);
	for (size_t i = 0, p = 0; i < kept; i++, p++) {
		while (trial->window && p + trial->window <= cut && p >= trial->sinks)
			p++;
		expect_bits(s, trial->text, "saved keys", kv, keys + i * kv, trial->k + p * kv);
		expect_bits(s, trial->text, "saved values", kv, values + i * kv, trial->v + p * kv);
	}
	must_for(trial->text, s->ops->cache_load(s->backend, &again, cut, keys, values, &err));
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
}

TEST(test_reload)
{
	static const struct attend_trial shapes[] = {
	    {.window = 0},
	    {.window = 1},
	    {.window = 1, .sinks = 4},
	    {.window = 16},
	    {.window = 17, .sinks = 20},
	    {.window = 30, .sinks = 3},
	};

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
		}
	}
}

/* ---- what cannot be had ---- */

TEST(test_refusals)
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

	EACH_SUBJECT(s)
	{
		struct kv_cache cache;

		for (size_t i = 0; i < COUNT(caches); i++) {
			rosa_status status =
			    s->ops->cache_new(s->backend, caches[i].heads, caches[i].head_size, caches[i].window,
					      caches[i].sinks, caches[i].chunk, &cache, &err);

			expect_status("cache_new", status, caches[i].status, &err);
			s->ops->cache_free(s->backend, &cache);
		}
		/* a window without end is a global cache that ends later; what is reserved decides */
		must(s->ops->cache_new(s->backend, (size_t)1 << 20, 4096, SIZE_MAX, 0, SIZE_MAX, &cache, &err));
		must_refuse(s->ops->cache_reserve(s->backend, &cache, SIZE_MAX, &err), ROSA_ENOMEM);
		must_refuse(s->ops->cache_reserve(s->backend, &cache, (size_t)1 << 48, &err), ROSA_ENOMEM);
		s->ops->cache_free(s->backend, &cache);
		must(s->ops->cache_new(s->backend, 2, 8, 0, 0, 10, &cache, &err));
		must_refuse(s->ops->cache_reserve(s->backend, &cache, 11, &err), ROSA_EINVAL);
		must(s->ops->cache_reserve(s->backend, &cache, 10, &err));
		must_refuse(s->ops->cache_load(s->backend, &cache, SIZE_MAX - 5, NULL, NULL, &err), ROSA_ENOMEM);
		s->ops->cache_free(s->backend, &cache);
		s->ops->cache_free(s->backend, &cache);
		assert_null(s->ops->take(s->backend, SIZE_MAX - 100));
		s->ops->give(s->backend, NULL);
	}
}

TEST_GROUP(subjects_set_up, subjects_tear_down)
