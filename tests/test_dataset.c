/*
 * The order of samples: every one once in a pass, a function of the seed and the number, shares by weight.
 *
 * Tokens of a made shard count up, so a sample shows where it comes from by its first token.
 */
#include "train/dataset.h"
#include "train/mixing.h"
#include "train/permutation.h"

#include "support_checkpoint.h"
#include "support_test.h"
#include "support_tokens.h"
#include "support_trial.h"

#include <math.h>
#include <sys/stat.h>

#define VOCABULARY 60000
#define MOST       64 /* tokens a sample */

/* ----------------------------------------------------------------------------------------------------- numbers -- */

TEST(permutes)
{
	static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 64, 100, 1000, 4097};

	for (size_t k = 0; k < COUNT(sizes); k++) {
		for (uint64_t key = 0; key < 3; key++) {
			uint8_t *seen = test_zeros(sizes[k], 1);
			assert_non_null(seen);
			for (uint64_t i = 0; i < sizes[k]; i++) {
				uint64_t place = permutation_place(key, sizes[k], i);
				assert_true(place < sizes[k]);
				assert_int_equal(seen[place]++, 0);
			}
		}
	}
	assert_true(permutation_place(1, (uint64_t)1 << 62, 12345) < (uint64_t)1 << 62);
}

/* Of three things, all six orders come, each about as often. */
TEST(permutes_evenly)
{
	enum { KEYS = 6000 };
	unsigned seen[27] = {0}, orders = 0;

	for (uint64_t key = 0; key < KEYS; key++) {
		uint64_t order = 0;
		for (uint64_t i = 0; i < 3; i++)
			order = 3 * order + permutation_place(draw_long(9, 0, key), 3, i);
		seen[order]++;
	}
	for (size_t i = 0; i < COUNT(seen); i++) {
		orders += seen[i] > 0;
		assert_true(seen[i] == 0 || abs((int)seen[i] - KEYS / 6) < 150); /* five deviations */
	}
	assert_int_equal(orders, 6);
}

/* Neighbours do not stay neighbours, and things do not stay where they are. */
TEST(permutes_thoroughly)
{
	enum { N = 10000 };
	unsigned together = 0, fixed = 0;

	for (uint64_t i = 0; i < N; i++) {
		uint64_t here = permutation_place(5, N, i), next = permutation_place(5, N, (i + 1) % N);
		together += next == here + 1 || here == next + 1;
		fixed += here == i;
	}
	assert_true(together < 12); /* 2 are expected, and 1 */
	assert_true(fixed < 8);
}

TEST(mixes_by_weight)
{
	static const double weights[][8] = {
	    {1, 1}, {3, 1}, {0.7, 0.2, 0.1}, {5, 1, 1, 1}, {1, 2, 3, 4, 5, 6, 7, 8}, {1e-3, 1, 1e3}, {2},
	};
	static const size_t counts[] = {2, 2, 3, 4, 8, 3, 1};
	static const double bounds[] = {0.5, 0.5, 1, 1, 1.5, 1, 0};

	for (size_t k = 0; k < COUNT(counts); k++) {
		double sums[9] = {0};
		uint64_t dealt[8] = {0};

		for (size_t s = 0; s < counts[k]; s++)
			sums[s + 1] = sums[s] + weights[k][s];
		for (uint64_t n = 0; n < 5000; n++) {
			uint64_t counter;
			size_t source;
			mixing_place(sums, counts[k], n, &source, &counter);
			assert_true(source < counts[k]);
			assert_int_equal(counter, dealt[source]++); /* one after the other */
			for (size_t s = 0; s < counts[k]; s++) {
				double due = (double)(n + 1) * weights[k][s] / sums[counts[k]];
				assert_true(fabs((double)dealt[s] - due) <= bounds[k] + 1e-6);
			}
		}
	}
}

/* Far along the counters are still right: they go on by one. */
TEST(mixes_far_along)
{
	const double sums[] = {0, 0.3, 1};
	uint64_t counter, last[2] = {0, 0}, start = ((uint64_t)1 << 33) - 50;
	size_t source;

	for (uint64_t n = start; n < start + 100; n++) {
		mixing_place(sums, 2, n, &source, &counter);
		if (last[source])
			assert_int_equal(counter, last[source] + 1);
		last[source] = counter;
	}
	assert_true(fabs((double)last[0] - 0.3 * (double)start) < 40);
}

/* -------------------------------------------------------------------------------------------------------- files -- */

static void save(const char *name, const struct shard_plan *plan)
{
	struct bytes bytes = shard_make(plan);

	bytes_save(&bytes, scratch_path(name));
}

static void save_text(const char *name, size_t tokens, uint32_t first)
{
	save(name, &(struct shard_plan){1, &tokens, first, VOCABULARY, 7, false});
}

TEST_CLOSER(close_data, dataset_free)

/* Samples of 10 tokens. */
static const dataset *open_data(const struct dataset_source *sources, size_t count, uint64_t seed)
{
	dataset *data = NULL;

	must(dataset_open(sources, count, 10, seed, &data, &err));
	test_later(close_data, data);
	return data;
}

/* Of one source. */
static const dataset *open_one(const char *name, uint64_t seed)
{
	return open_data(&(struct dataset_source){scratch_path(name), 0}, 1, seed);
}

struct sample {
	uint32_t tokens[MOST], targets[MOST];
	float weight[MOST];
};

static struct sample sample(const dataset *data, uint64_t n)
{
	struct sample sample;

	memset(&sample, 0xff, sizeof(sample));
	dataset_sample(data, n, sample.tokens, sample.targets, sample.weight);
	return sample;
}

/* ---------------------------------------------------------------------------------------------------------- text -- */

/* Two shards as one text of 503 tokens, samples of 10: 51, the last of which has 2 targets. */
TEST_WITH(cuts_text_end_to_end, scratch_enter, scratch_leave)
{
	unsigned targets[503] = {0}, before = 0;
	const dataset *data;

	mkdir(scratch_path("text"), 0777);
	save_text("text/b.tokens", 203, 300);
	save_text("text/a.tokens", 300, 0);
	scratch_write("text/.c.tokens", "not a shard");
	scratch_write("text/readme", "neither");
	data = open_one("text", 1);
	assert_int_equal(dataset_facts(data)->samples, 51);
	assert_int_equal(dataset_facts(data)->tokens, 503);
	assert_int_equal(dataset_facts(data)->vocabulary, VOCABULARY);
	assert_int_equal(dataset_facts(data)->tokenizer, 7);
	assert_int_equal(dataset_facts(data)->cut, 0);
	for (uint64_t n = 0; n < 51; n++) {
		struct sample s = sample(data, n);
		size_t real = s.tokens[0] == 500 ? 2 : 10;
		assert_int_equal(s.tokens[0] % 10, 0);
		for (size_t i = 0; i < 10; i++) {
			assert_true(s.weight[i] == (i < real ? 1.0f : 0.0f));
			if (i >= real)
				continue;
			assert_int_equal(s.tokens[i], s.tokens[0] + i);
			assert_int_equal(s.targets[i], s.tokens[i] + 1);
			targets[s.targets[i]]++;
		}
		assert_int_equal(s.tokens[9], real == 10 ? s.tokens[0] + 9 : 502);
		assert_int_equal(s.targets[9], real == 10 ? s.tokens[0] + 10 : 502);
		before += s.tokens[0] == 10 * n;
	}
	for (size_t i = 0; i < 503; i++)
		assert_int_equal(targets[i], i > 0);
	assert_true(before < 10); /* it is shuffled */
}

/* Passes have the same samples in other orders; opened again, or asked in another order, it is all the same. */
TEST_WITH(repeats_itself_and_not, scratch_enter, scratch_leave)
{
	const dataset *data, *again, *other;
	unsigned same_pass = 0, same_seed = 0;

	save_text("t.tokens", 1001, 0);
	data = open_one("t.tokens", 3);
	again = open_one("t.tokens", 3);
	other = open_one("t.tokens", 4);
	assert_int_equal(dataset_facts(data)->samples, 100);
	for (uint64_t pass = 0; pass < 3; pass++) {
		unsigned seen[1001] = {0};
		for (uint64_t i = 0; i < 100; i++) {
			struct sample s = sample(data, 100 * pass + i);
			struct sample t = sample(data, 100 * ((pass + 1) % 3) + i);
			seen[s.tokens[0]]++;
			same_pass += s.tokens[0] == t.tokens[0];
			same_seed += s.tokens[0] == sample(other, 100 * pass + i).tokens[0];
		}
		for (size_t i = 0; i < 1000; i++)
			assert_int_equal(seen[i], i % 10 == 0);
	}
	assert_true(same_pass < 15 && same_seed < 15); /* 3 are expected */
	for (uint64_t n = 300; n-- > 0;) {
		struct sample s = sample(data, n), t = sample(again, n);
		assert_memory_equal(&s, &t, sizeof(s));
	}
}

/* --------------------------------------------------------------------------------------------------------- mixed -- */

TEST_WITH(shuffles_sources_together, scratch_enter, scratch_leave)
{
	const struct dataset_source sources[3] = {
	    {scratch_path("a.tokens"), 0}, {scratch_path("b.tokens"), 0}, {scratch_path("c.tokens"), 0}};
	unsigned seen[3] = {0}, early = 0;
	const dataset *data;

	save_text("a.tokens", 301, 0);
	save_text("b.tokens", 101, 10000);
	save_text("c.tokens", 601, 20000);
	data = open_data(sources, 3, 0);
	assert_int_equal(dataset_facts(data)->samples, 100);
	for (uint64_t n = 0; n < 100; n++) {
		uint32_t which = sample(data, n).tokens[0] / 10000;
		seen[which]++;
		early += n < 50 && which == 2;
	}
	assert_int_equal(seen[0], 30);
	assert_int_equal(seen[1], 10);
	assert_int_equal(seen[2], 60);
	assert_true(early > 18 && early < 42); /* 30 are expected, and not 10 or 50 */
}

TEST_WITH(keeps_to_weights, scratch_enter, scratch_leave)
{
	const struct dataset_source sources[2] = {{scratch_path("a.tokens"), 3}, {scratch_path("b.tokens"), 1}};
	unsigned dealt[2] = {0}, seen[2][100] = {{0}};
	const dataset *data;

	save_text("a.tokens", 101, 0);
	save_text("b.tokens", 1001, 10000);
	data = open_data(sources, 2, 0);
	for (uint64_t n = 0; n < 400; n++) {
		uint32_t first = sample(data, n).tokens[0], which = first >= 10000;
		dealt[which]++;
		seen[which][first % 10000 / 10]++;
		assert_true(fabs((double)dealt[0] - 0.75 * (double)(n + 1)) <= 0.5);
	}
	for (size_t i = 0; i < 100; i++) {
		assert_int_equal(seen[0][i], i < 10 ? 30 : 0); /* thirty epochs of the one */
		assert_int_equal(seen[1][i], 1);               /* and one over the other */
	}
}

/* ------------------------------------------------------------------------------------------------- conversations -- */

TEST_WITH(keeps_conversations_whole, scratch_enter, scratch_leave)
{
	static const size_t lengths[] = {4, 12, 1, 30, 11};
	static const size_t starts[] = {0, 4, 16, 17, 47};
	unsigned seen[5] = {0};
	const dataset *data;

	save("talk.tokens", &(struct shard_plan){5, lengths, 100, VOCABULARY, 7, true});
	data = open_one("talk.tokens", 0);
	assert_int_equal(dataset_facts(data)->samples, 5);
	assert_int_equal(dataset_facts(data)->cut, 2);
	for (uint64_t n = 0; n < 5; n++) {
		struct sample s = sample(data, n);
		size_t which = 0;
		while (which < 4 && starts[which + 1] + 100 <= s.tokens[0])
			which++;
		seen[which]++;
		assert_int_equal(s.tokens[0], 100 + starts[which]);
		for (size_t i = 0; i < 10; i++) {
			bool in = i < lengths[which], target = i + 1 < lengths[which];
			uint32_t last = (uint32_t)(100 + starts[which] + lengths[which] - 1);
			assert_int_equal(s.tokens[i], in ? s.tokens[0] + i : last);
			assert_int_equal(s.targets[i], target ? s.tokens[0] + i + 1 : last);
			assert_true(s.weight[i] == (target && shard_counts(starts[which] + i + 1) ? 1.0f : 0.0f));
		}
	}
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(seen[i], 1);
}

/* Token i counts where shard_counts says so, so long stretches that do not are made by hand. */
TEST_WITH(counts_what_is_cut_off, scratch_enter, scratch_leave)
{
	static const size_t lengths[] = {30, 30, 5};
	struct bytes file = shard_make(&(struct shard_plan){3, lengths, 100, VOCABULARY, 7, true});
	struct tokens_header *header = (struct tokens_header *)file.data;
	struct tokens_places places;
	struct dataset_source source = {NULL, 0};
	const dataset *data;
	dataset *none;

	assert_true(tokens_places(header, &places));
	memset(file.data + places.counts, 0, (size_t)(places.end - places.counts));
	file.data[places.counts + 11 / 8] |= 1 << 11 % 8; /* just beyond the first document's sample */
	file.data[places.counts + 40 / 8] |= 1 << 40 % 8; /* the last target of the second one's */
	file.data[places.counts + 62 / 8] |= 1 << 62 % 8;
	bytes_save(&file, scratch_path("cut.tokens"));
	data = open_one("cut.tokens", 0);
	assert_int_equal(dataset_facts(data)->cut, 2);
	assert_int_equal(dataset_facts(data)->no_answer, 1);
	assert_null(dataset_facts(data)->no_mask);
	save_text("plain.tokens", 50, 0);
	data = open_one("plain.tokens", 0);
	assert_string_equal(dataset_facts(data)->no_mask, scratch_path("plain.tokens"));
	/* nothing to learn from at all */
	file = shard_make(&(struct shard_plan){2, lengths, 100, VOCABULARY, 7, true});
	assert_true(tokens_places((struct tokens_header *)file.data, &places));
	memset(file.data + places.counts, 0, (size_t)(places.end - places.counts));
	bytes_save(&file, scratch_path("mute.tokens"));
	source.path = scratch_path("mute.tokens");
	must_fail(dataset_open(&source, 1, 10, 0, &none, &err), ROSA_EINVAL, "not one answer");
}

/* A folder may have both kinds. */
TEST_WITH(takes_texts_and_conversations, scratch_enter, scratch_leave)
{
	static const size_t lengths[] = {4, 5, 6};
	unsigned texts = 0, talks = 0;
	const dataset *data;

	mkdir(scratch_path("both"), 0777);
	save_text("both/1.tokens", 31, 0);
	save("both/2.tokens", &(struct shard_plan){3, lengths, 1000, VOCABULARY, 7, true});
	save_text("both/3.tokens", 30, 31);
	data = open_one("both", 0);
	assert_int_equal(dataset_facts(data)->samples, 6 + 3);
	for (uint64_t n = 0; n < 9; n++) {
		uint32_t first = sample(data, n).tokens[0];
		talks += first == 1000 || first == 1004 || first == 1009;
		texts += first < 61 && first % 10 == 0;
	}
	assert_int_equal(texts, 6);
	assert_int_equal(talks, 3);
}

/* ------------------------------------------------------------------------------------------------------- refused -- */

static void check_refused(const struct dataset_source *sources, size_t count, size_t length, rosa_status status,
			  const char *words)
{
	rosa_error err = {ROSA_OK, ""};
	dataset *data = (dataset *)&err;

	expect_status(words, dataset_open(sources, count, length, 0, &data, &err), status, &err);
	assert_null(data);
	must_say(words);
}

TEST_WITH(refuses, scratch_enter, scratch_leave)
{
	struct dataset_source sources[2] = {{NULL, 0}, {NULL, 0}};
	static const size_t five = 5;

	save_text("a.tokens", 101, 0);
	save_text("one.tokens", 1, 0);
	save("other.tokens", &(struct shard_plan){1, &five, 0, VOCABULARY, 8, false});
	scratch_write("bad.tokens", "no shard");
	mkdir(scratch_path("empty"), 0777);
	check_refused(sources, 0, 10, ROSA_EINVAL, "no data");
	sources[0].path = scratch_path("a.tokens");
	check_refused(sources, 1, 0, ROSA_EINVAL, "at least one token");
	sources[1].path = scratch_path("other.tokens");
	check_refused(sources, 2, 10, ROSA_EINVAL, "another tokenizer");
	sources[1] = sources[0];
	sources[1].weight = 2;
	check_refused(sources, 2, 10, ROSA_EINVAL, "has no weight");
	sources[0].weight = -1;
	check_refused(sources, 2, 10, ROSA_EINVAL, "a weight of -1");
	sources[0].weight = NAN;
	check_refused(sources, 2, 10, ROSA_EINVAL, "a weight of");
	sources[0] = (struct dataset_source){scratch_path("none"), 0};
	check_refused(sources, 1, 10, ROSA_EIO, "none");
	sources[0].path = scratch_path("empty");
	check_refused(sources, 1, 10, ROSA_EINVAL, "no *.tokens");
	sources[0].path = scratch_path("one.tokens");
	check_refused(sources, 1, 10, ROSA_EINVAL, "one token");
	sources[0].path = scratch_path("bad.tokens");
	check_refused(sources, 1, 10, ROSA_EFORMAT, "not a token shard");
	dataset_free(NULL);
}
