/*
 * The choice of tokens, against an oracle that sorts everything and says each rule in the plainest way.
 *
 * The oracle takes the same draw (that a draw is a function of seed and number is part of the contract) but its
 * exponential from the C library: sums agree to rounding, and a draw within rounding of a border does not come up.
 */
#include "base/draw.h"
#include "model/sampler.h"
#include "support_test.h"

#include <math.h>

#define MOST 300

static uint64_t counter;

static uint64_t below(uint64_t end)
{
	return draw_long(77, 1, counter++) % end;
}

static float uniform(void)
{
	return (float)(draw_long(77, 2, counter++) >> 40) * 0x1p-24f;
}

/* ------------------------------------------------------------------------------------------------------- oracle -- */

struct candidate {
	uint32_t id;
	float logit;
	double weight;
};

static int likeliest_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static int lowest_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	return x->id < y->id ? -1 : 1;
}

static double total(const struct candidate *all, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += all[i].weight;
	return sum;
}

static size_t oracle_keep(const struct sampler_options *options, struct candidate *all, size_t count)
{
	qsort(all, count, sizeof(*all), likeliest_first);
	if (options->top_k && options->top_k < count)
		count = options->top_k;
	for (size_t i = 0; i < count; i++)
		all[i].weight = all[i].logit == all[0].logit
				    ? 1
				    : exp(((double)all[i].logit - all[0].logit) / options->temperature);
	if (options->top_p < 1) {
		double sum = total(all, count), so_far = 0;
		size_t kept = 0;
		while (kept < count && (kept == 0 || so_far < (double)options->top_p * sum))
			so_far += all[kept++].weight;
		count = kept;
	}
	while (options->min_p > 0 && count > 1 && all[count - 1].weight < (double)options->min_p)
		count--;
	return count;
}

static bool among(const uint32_t *seen, size_t count, uint32_t id)
{
	for (size_t i = 0; i < count; i++) {
		if (seen[i] == id)
			return true;
	}
	return false;
}

/* `seen` are all tokens seen, oldest first. */
static uint32_t oracle(const struct sampler_options *options, size_t vocabulary, const float *logits,
		       const uint32_t *seen, size_t seen_count, uint64_t draws)
{
	struct candidate all[MOST];
	size_t count = 0;

	if (options->repeat_last && options->repeat_last < seen_count) {
		seen += seen_count - options->repeat_last;
		seen_count = options->repeat_last;
	}
	for (uint32_t id = 0; id < vocabulary; id++) {
		float logit = logits[id];
		if (isnan(logit))
			continue;
		if (among(seen, seen_count, id))
			logit = logit > 0 ? logit / options->repetition : logit * options->repetition;
		all[count++] = (struct candidate){id, logit, 0};
	}
	if (count == 0)
		return 0;
	if (options->temperature == 0) {
		qsort(all, count, sizeof(*all), likeliest_first);
		return all[0].id;
	}
	count = oracle_keep(options, all, count);
	qsort(all, count, sizeof(*all), lowest_first);
	double left = (double)(draw_long(options->seed, 0, draws) >> 11) * 0x1p-53 * total(all, count);
	for (size_t i = 0; i < count; i++) {
		left -= all[i].weight;
		if (left < 0)
			return all[i].id;
	}
	fail_msg("the oracle's draw fell through");
	return 0;
}

/* -------------------------------------------------------------------------------------------------------- tests -- */

TEST_CLOSER(close_sampler, sampler_free)

static sampler *make(const struct sampler_options *options, size_t vocabulary)
{
	sampler *made;

	must(sampler_new(options, vocabulary, &made, &err));
	test_later(close_sampler, made);
	return made;
}

static struct sampler_options random_options(void)
{
	struct sampler_options options = SAMPLER_OPTIONS_INIT;

	options.temperature = below(4) ? 0.1f + 2 * uniform() : 0;
	options.top_k = below(2) ? below(MOST) : 0;
	options.top_p = below(2) ? uniform() : 1;
	options.min_p = below(2) ? uniform() * 0.5f : 0;
	options.repetition = below(2) ? 0.5f + 1.5f * uniform() : 1;
	options.repeat_last = below(3) ? 1 + below(40) : 0;
	options.seed = below(1000);
	return options;
}

static void random_logits(float *logits, size_t vocabulary)
{
	uint64_t kind = below(4);

	for (size_t i = 0; i < vocabulary; i++) {
		logits[i] = kind == 0 ? (float)below(5) - 2 /* many ties */ : 12 * uniform() - 6;
		if (kind == 1 && below(10) == 0)
			logits[i] = (float[]){NAN, INFINITY, -INFINITY}[below(3)];
	}
}

TEST(agrees_with_the_oracle)
{
	for (int trial = 0; trial < 3000; trial++) {
		struct sampler_options options = random_options();
		size_t vocabulary = 1 + below(below(2) ? MOST : 8), steps = 1 + below(60);
		sampler *sampler = make(&options, vocabulary);
		uint32_t seen[60];
		float logits[MOST], copy[MOST];
		uint64_t draws = 0;

		for (size_t step = 0; step < steps; step++) {
			bool numbers = false;
			random_logits(logits, vocabulary);
			memcpy(copy, logits, sizeof(logits));
			uint32_t wanted = oracle(&options, vocabulary, copy, seen, step, draws);
			uint32_t got = sampler_choose(sampler, logits);
			if (got != wanted)
				fail_msg("trial %d, step %zu of %zu: chose %u, the oracle %u (temperature %g, top_k "
					 "%zu, top_p %g, min_p %g, repetition %g, last %zu)",
					 trial, step, vocabulary, got, wanted, options.temperature, options.top_k,
					 options.top_p, options.min_p, options.repetition, options.repeat_last);
			for (size_t i = 0; i < vocabulary; i++)
				numbers = numbers || !isnan(copy[i]);
			draws += numbers && options.temperature > 0;
			assert_int_equal(sampler_draws(sampler), draws);
			seen[step] = (uint32_t)below(vocabulary);
			sampler_saw(sampler, seen[step]);
		}
	}
}

/* What stands in the header in words, in numbers. */
TEST(keeps_what_it_says)
{
	/* Weights 4, 2, 1, 1 of 8 at temperature 1. */
	const float logits[4] = {0, logf(4), logf(2), 0};
	const struct {
		size_t top_k;
		float top_p, min_p;
		bool kept[4];
	} cases[] = {
	    {0, 1, 0, {true, true, true, true}},          {1, 1, 0, {false, true, false, false}},
	    {3, 1, 0, {true, true, true, false}},         {0, 0.4f, 0, {false, true, false, false}},
	    {0, 0.6f, 0, {false, true, true, false}},     {0, 0.8f, 0, {true, true, true, false}},
	    {0, 0, 0, {false, true, false, false}},       {2, 0.6f, 0, {false, true, false, false}},
	    {0, 1, 0.4f, {false, true, true, false}},     {0, 1, 1, {false, true, false, false}},
	    {0, 0.6f, 0.6f, {false, true, false, false}},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct sampler_options options = SAMPLER_OPTIONS_INIT;
		bool drawn[4] = {false};
		options.temperature = 1;
		options.top_k = cases[i].top_k;
		options.top_p = cases[i].top_p;
		options.min_p = cases[i].min_p;
		sampler *sampler = make(&options, 4);
		for (int n = 0; n < 500; n++) {
			float copy[4];
			memcpy(copy, logits, sizeof(copy));
			drawn[sampler_choose(sampler, copy)] = true;
		}
		for (size_t id = 0; id < 4; id++) {
			if (drawn[id] != cases[i].kept[id])
				fail_msg("case %zu: token %zu was %s", i, id, drawn[id] ? "drawn" : "never drawn");
		}
	}
}

/* Each token as often as its weight says. */
TEST(draws_in_proportion)
{
	const float shares[4] = {0.1f, 0.2f, 0.3f, 0.4f};
	struct sampler_options options = SAMPLER_OPTIONS_INIT;
	int times[4] = {0}, draws = 40000;

	options.temperature = 2;
	options.seed = 3;
	sampler *sampler = make(&options, 4);
	for (int n = 0; n < draws; n++) {
		float logits[4];
		for (size_t i = 0; i < 4; i++)
			logits[i] = 2 * logf(shares[i]);
		times[sampler_choose(sampler, logits)]++;
	}
	for (size_t i = 0; i < 4; i++)
		assert_in_range(times[i], (int)((shares[i] - 0.015f) * (float)draws),
				(int)((shares[i] + 0.015f) * (float)draws));
}

/* The greatest vocabularies: the set that top_p keeps, and an exponential that is one over its whole range. */
TEST(selects_in_a_large_vocabulary)
{
	const size_t vocabulary = 151936;
	struct sampler_options options = SAMPLER_OPTIONS_INIT;
	float *logits = test_alloc(vocabulary * sizeof(float));

	options.temperature = 1;
	options.top_p = 0.5f;
	sampler *sampler = make(&options, vocabulary);
	for (int n = 0; n < 20; n++) {
		/* One token in two weighs e times the other: the heavy ones alone reach a half, before all are in. */
		for (size_t i = 0; i < vocabulary; i++)
			logits[i] = i % 2 ? 1 : 0;
		uint32_t chosen = sampler_choose(sampler, logits);
		assert_int_equal(chosen % 2, 1);
		/* Of equals the lowest ids are kept: a half of the whole weight is 1.3679 / 2 of the heavy ones. */
		assert_true(chosen < vocabulary * 0.6840 + 2);
	}
}

TEST(resumes)
{
	struct sampler_options options = SAMPLER_OPTIONS_INIT;
	uint32_t whole[40];
	sampler *sampler;

	options.temperature = 1;
	options.repetition = 1.3f;
	options.repeat_last = 7;
	options.seed = 12;
	for (int from = 0; from < 40; from += 13) {
		sampler = make(&options, 50);
		for (int i = 0; i < from; i++)
			sampler_saw(sampler, whole[i]);
		sampler_set_draws(sampler, (uint64_t)from);
		for (int n = from; n < 40; n++) {
			float logits[50];
			for (int i = 0; i < 50; i++)
				logits[i] = (float)(draw(5, (uint64_t)n, (uint64_t)i) % 1000) * 0.004f - 2;
			uint32_t chosen = sampler_choose(sampler, logits);
			if (from == 0)
				whole[n] = chosen;
			assert_int_equal(chosen, whole[n]);
			sampler_saw(sampler, chosen);
		}
		assert_int_equal(sampler_draws(sampler), 40);
	}
}

TEST(survives_what_is_no_number)
{
	struct sampler_options options = SAMPLER_OPTIONS_INIT;

	for (int warm = 0; warm < 2; warm++) {
		float none[3] = {NAN, NAN, NAN}, one[3] = {NAN, NAN, -INFINITY}, most[3] = {1, INFINITY, 3e38f};
		options.temperature = (float)warm;
		sampler *sampler = make(&options, 3);
		assert_int_equal(sampler_choose(sampler, none), 0);
		assert_int_equal(sampler_choose(sampler, one), 2);
		assert_int_equal(sampler_choose(sampler, most), 1);
		sampler_saw(sampler, 3);
	}
	options.temperature = 0;
	options.repetition = 2;
	sampler *sampler = make(&options, 3);
	float logits[3] = {1, 2, 3};
	sampler_saw(sampler, UINT32_MAX);
	assert_int_equal(sampler_choose(sampler, logits), 2);
	sampler_free(NULL);
}

TEST(refuses_wrong_options)
{
	const struct {
		size_t offset;
		float value;
		const char *word;
	} wrong[] = {
	    {offsetof(struct sampler_options, temperature), -1, "temperature"},
	    {offsetof(struct sampler_options, temperature), NAN, "temperature"},
	    {offsetof(struct sampler_options, temperature), INFINITY, "temperature"},
	    {offsetof(struct sampler_options, top_p), 1.5f, "top_p"},
	    {offsetof(struct sampler_options, top_p), NAN, "top_p"},
	    {offsetof(struct sampler_options, min_p), -0.1f, "min_p"},
	    {offsetof(struct sampler_options, repetition), 0, "repetition"},
	};
	sampler *made;

	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct sampler_options options = SAMPLER_OPTIONS_INIT;
		memcpy((char *)&options + wrong[i].offset, &wrong[i].value, sizeof(float));
		must_fail(sampler_new(&options, 10, &made, &err), ROSA_EINVAL, wrong[i].word);
		assert_null(made);
	}
	struct sampler_options options = SAMPLER_OPTIONS_INIT;
	assert_int_equal(sampler_new(&options, 0, &made, NULL), ROSA_EINVAL);
	options.repetition = 2;
	options.repeat_last = SIZE_MAX;
	must_fail(sampler_new(&options, 10, &made, &err), ROSA_EINVAL, "repeat_last");
	assert_null(made);
}
