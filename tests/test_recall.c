/*
 * Far tokens against their definition by brute force; sums and errors by hand; losses of a decoder against logits that
 * are asked for at once.
 */
#include "support_decoder.h"
#include "support_test.h"

#include "base/draw.h"
#include "train/far.h"
#include "eval/conditions.h"
#include "eval/scoring.h"

#include <math.h>

/* -------------------------------------------------------------------------------------------------- far tokens -- */

static uint32_t brute_distance(const uint32_t *x, size_t t)
{
	for (size_t p = t; t >= 2 && p-- > 2;) {
		if (x[p] == x[t] && x[p - 1] == x[t - 1] && x[p - 2] == x[t - 2])
			return (uint32_t)(t - p);
	}
	return 0;
}

TEST(finds_the_last_occurrence)
{
	uint32_t tokens[700], distance[700];
	size_t found = 0, none = 0;

	for (uint32_t alphabet = 1; alphabet <= 40; alphabet += 3) {
		for (size_t count = 0; count <= 700; count += 35) {
			for (size_t t = 0; t < count; t++)
				tokens[t] = (uint32_t)(draw(7, alphabet, t) % alphabet) * 1000003u;
			memset(distance, 0xaa, sizeof(distance));
			must(far_distances(tokens, count, distance, &err));
			for (size_t t = 0; t < count; t++) {
				assert_int_equal(distance[t], brute_distance(tokens, t));
				*(distance[t] ? &found : &none) += 1;
			}
		}
	}
	assert_true(found > 1000 && none > 1000);
}

/* -------------------------------------------------------------------------------------------------------- sums -- */

TEST(sums_far_tokens_apart)
{
	const double losses[] = {9, 9, 1, 2, 4, 8};
	const uint32_t distance[] = {0, 5, 0, 3, 4, 7};
	struct recall_sums sums = {0}, twice = {0};
	struct recall_means means;

	recall_add(&sums, losses, distance, 2, 6, 4);
	assert_int_equal(sums.far_count, 2);
	assert_int_equal(sums.rest_count, 2);
	means = recall_means(&sums);
	assert_true(means.far == 6 && means.rest == 1.5 && fabs(means.ppl - exp(15.0 / 4)) < 1e-12);
	assert_true(sums.by_distance[1] == 2 && sums.by_distance[2] == 12 && sums.distance_count[2] == 2);
	recall_join(&twice, &sums);
	recall_join(&twice, &sums);
	assert_true(twice.far == 24 && twice.rest_count == 4 && recall_means(&twice).far == 6);
	assert_true(isnan(recall_means(&(struct recall_sums){0}).far));
}

TEST(errs_over_books)
{
	/* Means 1 and 3 of equally long books: the mean is 2, its standard error 1. */
	const struct recall_sums books[] = {{.far = 10, .far_count = 10}, {.far = 30, .far_count = 10}, {.far = 0}};
	const struct recall_sums rests[] = {{.rest = 5, .rest_count = 5}, {.far = 15, .far_count = 5}};

	assert_true(fabs(recall_error(books, 3, true) - 1) < 1e-12);
	assert_true(fabs(recall_error(rests, 2, false) - 1) < 1e-12);
	assert_true(isnan(recall_error(books, 1, true)));
	assert_true(isnan(recall_error(rests, 2, true)));
}

/* ------------------------------------------------------------------------------------------------------ scoring -- */

#define STEPS 70

static int count_ticks(void *context, uint64_t done, uint64_t total)
{
	uint64_t *seen = context;

	assert_true(done >= seen[0] && done <= total);
	seen[0] = done;
	seen[1] = total;
	return 0;
}

static int stop_at_once(void *context, uint64_t done, uint64_t total)
{
	return 1;
}

#define MOST_WORDS 512

/* A mixture, with what its equation needs beside the logits. All match lengths have the same weight. */
struct mixture {
	const struct pointer *pointer;
	struct pointer_links links;
	double factors[MOST_WORDS];
};

/* exp(b) of each token after text[t], by the definition: 3 for tokens seen once, a half for the others seen. */
static void find_factors(struct mixture *mixture, const uint32_t *text, size_t t)
{
	for (uint32_t v = 0; v < MOST_WORDS; v++) {
		size_t count = 0;

		for (size_t d = 0; d + mixture->pointer->delay < t; d++)
			count += text[d] == v;
		mixture->factors[v] = mixture->pointer->seeing && count ? (count == 1 ? 3 : 0.5) : 1;
	}
}

static double mixture_loss(const struct mixture *mixture, const float *row, size_t vocabulary, uint32_t token)
{
	double sum = 0, weights = 0, own = 0;

	for (size_t v = 0; v < vocabulary; v++)
		sum += exp((double)row[v]) * mixture->factors[v];
	for (size_t i = 0; i < mixture->links.count; i++) {
		const double weight = exp(mixture->pointer->theta[mixture->pointer->contexts ? 0 : i][0]);

		weights += weight;
		own += mixture->links.token[i] == token ? weight : 0;
	}
	return -log((exp((double)row[token]) * mixture->factors[token] / sum + own) / (1 + weights));
}

/* SCORED_ flags of a token: whether it is the first of those with the least loss. */
static uint8_t best_tokens(const struct mixture *mixture, const float *row, size_t vocabulary, uint32_t token)
{
	double least = mixture_loss(mixture, row, vocabulary, 0);
	uint32_t plain = 0, mixed = 0;

	for (uint32_t v = 1; v < vocabulary; v++) {
		if (row[v] > row[plain])
			plain = v;
		const double loss = mixture_loss(mixture, row, vocabulary, v);

		if (loss < least) {
			least = loss;
			mixed = v;
		}
	}
	return (uint8_t)((token == plain ? SCORED_LIKELIEST : 0) | (token == mixed ? SCORED_MIXED_LIKELIEST : 0));
}

/* With the pointer, whose losses are exact to `exact`. */
static void score_like_the_logits(const struct pointer *pointer, double exact)
{
	const struct tiny_model tiny = TINY_MODEL;
	struct bench *b = bench_open(&tiny, NULL);
	uint32_t tokens[3][STEPS];
	const size_t counts[3] = {STEPS, 1, 33};
	double expected[3][STEPS] = {{0}}, losses[3][STEPS], expected_mixed[3][STEPS] = {{0}}, mixed[3][STEPS];
	struct mixture mixture = {.pointer = pointer};
	struct pointer_links links[STEPS];
	uint8_t best[3][STEPS] = {{0}}, likeliest[3][STEPS];
	size_t found = 0;
	unsigned flags = 0;
	float *logits;

	b->options.window = 8;
	b->options.sinks = 2;
	bench_start(b, 16, 2);
	const size_t vocabulary = decoder_vocabulary(b->decoder);

	assert_true(vocabulary <= MOST_WORDS);
	logits = test_alloc(STEPS * vocabulary * sizeof(*logits));
	for (size_t i = 0; i < 3; i++) {
		for (size_t t = 0; t < counts[i]; t++)
			tokens[i][t] = (uint32_t)(draw(3, i, t) % (i ? vocabulary : 5));
		pointer_past *past;
		must(pointer_past_new(pointer, vocabulary, &past, &err));
		must(pointer_past_add(past, tokens[i], counts[i], links, &err));
		pointer_past_free(past);
		struct piece piece = {bench_sequence(b), tokens[i], counts[i], LOGITS_ALL, logits};

		must(decoder_read(b->decoder, 1, &piece, NULL, NULL, &err));
		/* the last token, which nothing depends on, is the likeliest */
		for (uint32_t v = 0; i == 2 && v < vocabulary; v++) {
			const float *row = logits + (counts[i] - 2) * vocabulary;

			if (v == 0 || row[v] > row[tokens[i][counts[i] - 1]])
				tokens[i][counts[i] - 1] = v;
		}
		for (size_t t = 1; t < counts[i]; t++) {
			const float *row = logits + (t - 1) * vocabulary;
			double sum = 0;

			for (size_t v = 0; v < vocabulary; v++)
				sum += exp((double)row[v]);
			expected[i][t] = log(sum) - (double)row[tokens[i][t]];
			mixture.links = links[t - 1];
			find_factors(&mixture, tokens[i], t - 1);
			expected_mixed[i][t] = mixture_loss(&mixture, row, vocabulary, tokens[i][t]);
			found += mixture.links.count;
			best[i][t] = best_tokens(&mixture, row, vocabulary, tokens[i][t]);
			flags |= 1u << best[i][t];
		}
	}
	assert_true(found > 50);
	/* some tokens are the likeliest of neither, some with the pointer, some without */
	assert_true((flags & 1) && (flags & 4) && (flags & 10));
	for (size_t batch = 1; batch <= 4; batch++) {
		for (size_t first = 1; first <= 36; first += 7) {
			const struct scoring scoring = {
			    b->decoder, b->workers, batch, first, batch % 2 ? pointer : NULL, 0};
			struct scored_text texts[3];
			uint64_t seen[2] = {0, 0};

			for (size_t i = 0; i < 3; i++) {
				texts[i] =
				    (struct scored_text){tokens[i], counts[i], losses[i], mixed[i], NULL, likeliest[i]};
				memset(likeliest[i], 4, STEPS);
				for (size_t t = 0; t < STEPS; t++)
					losses[i][t] = mixed[i][t] = -1;
			}
			must(score_texts(&scoring, texts, 3, count_ticks, seen, &err));
			assert_int_equal(score_tokens(texts, 3), STEPS - 1 + 32);
			assert_int_equal(seen[1], STEPS - 1 + 32);
			for (size_t i = 0; i < 3; i++) {
				for (size_t t = 0; t < STEPS; t++) {
					if (t < first || t >= counts[i])
						assert_true(losses[i][t] == -1);
					else
						assert_true(fabs(losses[i][t] - expected[i][t]) < 1e-9);
					if (t < first || t >= counts[i] || !scoring.pointer)
						assert_true(mixed[i][t] == -1);
					else
						assert_true(fabs(mixed[i][t] - expected_mixed[i][t]) < exact);
					const uint8_t seen_flags = scoring.pointer ? 3 : SCORED_LIKELIEST;
					assert_int_equal(likeliest[i][t],
							 t < first || t >= counts[i] ? 4 : best[i][t] & seen_flags);
				}
			}
			assert_int_equal(score_texts(&scoring, texts, 3, stop_at_once, NULL, &err), ROSA_ECANCELLED);
		}
	}
	const struct scoring bad = {b->decoder, b->workers, 0, 1, NULL, 0};
	assert_int_equal(score_texts(&bad, NULL, 0, NULL, NULL, &err), ROSA_EINVAL);

	/* What texts begin with is read once, and changes nothing. */
	for (size_t shared = 1; shared <= 20; shared += 19) {
		double again[2][3][STEPS];
		struct scored_text texts[3];

		for (size_t i = 0; i < 3; i++) {
			memcpy(tokens[i], tokens[0], shared * sizeof(tokens[i][0]));
			for (size_t t = shared; t < STEPS; t++)
				tokens[i][t] = (uint32_t)(draw(4, i, t) % 5);
		}
		for (size_t batch = 1; batch <= 3; batch++) {
			uint64_t seen[2] = {0, 0};
			struct scoring scoring = {b->decoder, b->workers, batch, shared + 1, pointer, shared};

			for (size_t i = 0; i < 3; i++)
				texts[i] =
				    (struct scored_text){tokens[i], STEPS - 7 * i, losses[i], mixed[i], NULL, NULL};
			memset(losses, 0, sizeof(losses));
			memset(mixed, 0, sizeof(mixed));
			must(score_texts(&scoring, texts, 3, count_ticks, seen, &err));
			assert_int_equal(seen[0], seen[1]);
			assert_int_equal(seen[1], score_tokens(texts, 3) - shared * (batch == 1   ? 0
										     : batch == 2 ? 1
												  : 2));
			memcpy(again[0], losses, sizeof(losses));
			memcpy(again[1], mixed, sizeof(mixed));
			memset(losses, 0, sizeof(losses));
			memset(mixed, 0, sizeof(mixed));
			scoring.shared = 0;
			must(score_texts(&scoring, texts, 3, NULL, NULL, &err));
			assert_memory_equal(again[0], losses, sizeof(losses));
			assert_memory_equal(again[1], mixed, sizeof(mixed));
			scoring.shared = shared + 1;
			assert_int_equal(score_texts(&scoring, texts, 3, NULL, NULL, &err), ROSA_EINVAL);
		}
	}
}

TEST(scores_like_the_logits)
{
	struct pointer chain = {.delay = 8, .links = 2};
	struct pointer table = {.delay = 8, .links = POINTER_LINKS, .contexts = true, .seeing = true};

	for (size_t l = 0; l < POINTER_LENGTHS; l++) {
		table.theta[0][l] = chain.theta[0][l] = log(2);
		chain.theta[1][l] = log(0.5);
	}
	for (size_t k = 0; k < SEEN_COUNTS * SEEN_RANKS; k++)
		table.seen[k / SEEN_RANKS][k % SEEN_RANKS] = log(k < SEEN_RANKS ? 3 : 0.5);
	score_like_the_logits(&chain, 1e-9);
	score_like_the_logits(&table, 1e-6);
}

/* Which conditions a model has: all need a window but the first, and what they are named after. */
TEST(conditions_need_what_they_measure)
{
	static const bool needs[RECALL_CONDITIONS][3] = {
	    [RECALL_WINDOW] = {1, 0, 0}, [RECALL_ADAPTER] = {1, 1, 0}, [RECALL_OFF] = {1, 1, 0},
	    [RECALL_RANDOM] = {1, 1, 0}, [RECALL_POINTER] = {1, 0, 1}, [RECALL_BOTH] = {1, 1, 1}};
	char path[] = "pointer.json";

	for (unsigned has = 0; has < 8; has++) {
		const struct model model = {
		    .options.window = has & 1 ? 8 : 0, .adapted = has & 2, .pointer_path = has & 4 ? path : NULL};

		for (int c = 0; c < RECALL_CONDITIONS; c++) {
			const enum recall_condition pointed = condition_with_pointer(&model, (enum recall_condition)c);
			bool applies = true;

			for (unsigned i = 0; i < 3; i++)
				applies = applies && (!needs[c][i] || has >> i & 1);
			assert_int_equal(condition_applies(&model, (enum recall_condition)c), applies);
			assert_int_equal(pointed, !(has & 4)            ? RECALL_CONDITIONS
						  : c == RECALL_WINDOW  ? RECALL_POINTER
						  : c == RECALL_ADAPTER ? RECALL_BOTH
									: RECALL_CONDITIONS);
		}
	}
}
