/*
 * The pointer: its look-up against the definition by brute force, its mixture against the equation in long double, and
 * its file, good and bad.
 */
#include "base/draw.h"
#include "base/file.h"
#include "model/pointer_past.h"
#include "support_checkpoint.h"
#include "support_folder.h"
#include "support_test.h"

#include <math.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------ look-up -- */

/* The newest of the longest matches with the context that ends at t, whose next token stands before t - delay. */
static int32_t brute_place(const uint32_t *x, int32_t t, int32_t delay, int32_t *length)
{
	int32_t best = -1;

	*length = 0;
	for (int32_t e = 0; e + 1 < t - delay; e++) {
		int32_t same = 0;

		while (same <= e && x[e - same] == x[t - same])
			same++;
		if (same > 0 && same >= *length) {
			*length = same;
			best = e + 1;
		}
	}
	return best;
}

static struct pointer_links brute_links(const uint32_t *x, int32_t t, const struct pointer *pointer)
{
	struct pointer_links links = {.count = 0};
	int32_t length, place = brute_place(x, t, (int32_t)pointer->delay, &length);

	while (place >= 0 && links.count < pointer->links) {
		int32_t next;

		links.token[links.count] = x[place];
		links.length[links.count++] = length > 255 ? 255 : (uint8_t)length;
		place = brute_place(x, place - 1, 0, &next);
		length = next < length ? next : length;
	}
	return links;
}

static void check_same(const struct pointer_links *a, const struct pointer_links *b)
{
	assert_int_equal(a->count, b->count);
	for (size_t i = 0; i < a->count; i++) {
		assert_int_equal(a->token[i], b->token[i]);
		assert_int_equal(a->length[i], b->length[i]);
	}
}

#define STEPS 600
#define TOP   ((size_t)1 << 20) /* ids are below */

TEST(finds_what_the_definition_says)
{
	static struct pointer_links found[STEPS];
	uint32_t tokens[STEPS];
	size_t links = 0, chains = 0, at_rest = 0;

	for (size_t trial = 0; trial < 24; trial++) {
		const uint32_t alphabet = trial % 3 == 0 ? 2 : trial % 3 == 1 ? 9 : 60;
		const struct pointer pointer = {.delay = (size_t[]){0, 1, 7, 100}[trial % 4],
						.links = (size_t[]){1, 2, 4, 16}[trial / 4 % 4]};
		pointer_past *past;

		for (size_t t = 0; t < STEPS; t++) /* ids at the upper end, one long repetition */
			tokens[t] = t > 400 && trial % 2
					? tokens[t - 350]
					: (uint32_t)TOP - 1u - (uint32_t)(draw(5, trial, t) % alphabet);
		must(pointer_past_new(&pointer, TOP, &past, &err));
		for (size_t t = 0; t < STEPS;) {
			size_t some = 1 + draw(6, trial, t) % 40;

			some = some < STEPS - t ? some : STEPS - t;
			must(pointer_past_add(past, tokens + t, some, found + t, &err));
			t += some;
		}
		assert_int_equal(pointer_past_steps(past), STEPS);
		assert_true(pointer_past_bytes(past) > STEPS * 9);
		for (size_t t = 0; t < STEPS; t++) {
			const struct pointer_links expected = brute_links(tokens, (int32_t)t, &pointer);

			check_same(&found[t], &expected);
			links += expected.count;
			chains += expected.count > 1;
			at_rest += expected.count == 0;
		}
		/* back, and on with other tokens */
		must(pointer_past_rewind(past, 300, &err));
		for (size_t t = 300; t < STEPS; t++)
			tokens[t] = tokens[STEPS - t];
		must(pointer_past_add(past, tokens + 300, STEPS - 300, NULL, &err));
		must(pointer_past_rewind(past, 450, &err));
		must(pointer_past_add(past, tokens + 450, STEPS - 450, found + 450, &err));
		for (size_t t = 450; t < STEPS; t++) {
			const struct pointer_links expected = brute_links(tokens, (int32_t)t, &pointer);

			check_same(&found[t], &expected);
		}
		assert_int_equal(pointer_past_rewind(past, STEPS + 1, &err), ROSA_EINVAL);
		tokens[0] = TOP;
		must_fail(pointer_past_add(past, tokens, 1, NULL, &err), ROSA_EINVAL, "1048576");
		pointer_past_free(past);
	}
	pointer_past *none;
	assert_int_equal(pointer_past_new(&(struct pointer){.links = 1}, TOP + 1, &none, &err), ROSA_EINVAL);
	assert_null(none);
	assert_true(links > 10000 && chains > 3000 && at_rest > 500);
}

/* More tokens in one call than are searched at a time, and the same after going back. */
static void add_long_text(bool contexts)
{
	enum { LONG = 5000 };
	const struct pointer pointer = {.delay = 64, .links = contexts ? POINTER_LINKS : 3, .contexts = contexts};
	struct pointer_links *whole = calloc(LONG, sizeof(*whole)), one;
	uint32_t *tokens = calloc(LONG, sizeof(*tokens));
	pointer_past *past;

	assert_true(whole && tokens);
	for (size_t t = 0; t < LONG; t++)
		tokens[t] = (uint32_t)(draw(9, 0, t) % 30);
	must(pointer_past_new(&pointer, 30, &past, &err));
	must(pointer_past_add(past, tokens, LONG, whole, &err));
	pointer_past_free(past);
	must(pointer_past_new(&pointer, 30, &past, &err));
	for (size_t t = 0; t < LONG; t++) {
		must(pointer_past_add(past, &tokens[t], 1, &one, &err));
		check_same(&one, &whole[t]);
		assert_memory_equal(&one, &whole[t], contexts ? sizeof(one) : 0);
	}
	assert_int_equal(pointer_past_steps(past), LONG);
	assert_true(pointer_past_bytes(past) > LONG * 9);
	must(pointer_past_rewind(past, 10, &err));
	must(pointer_past_add(past, tokens + 10, LONG - 11, NULL, &err));
	must(pointer_past_add(past, tokens + LONG - 1, 1, &one, &err));
	check_same(&one, &whole[LONG - 1]);
	assert_int_equal(pointer_past_add(past, &(uint32_t){30}, 1, NULL, &err), ROSA_EINVAL);
	pointer_past_free(past);
	free(whole);
	free(tokens);
}

TEST(adds_long_texts_at_once)
{
	add_long_text(false);
	add_long_text(true);
}

/* --------------------------------------------------------------------------------------------------- tokens seen -- */

/* The class of a token seen n times, as the definition has it. */
static int plain_class(uint32_t token, uint32_t n)
{
	return n ? 1 + 15 * (int)fmin(floor(log2(n)), 3) + (int)floor(log2(token + 64.0)) - 6 : 0;
}

TEST(tells_classes_apart)
{
	static const uint32_t ids[] = {0, 1, 63, 64, 191, 192, 447, 448, 49151, 524288, TOP - 65, TOP - 64, TOP - 1};
	bool used[SEEN_CLASSES] = {false};

	for (uint32_t n = 0; n < 20; n++)
		for (size_t i = 0; i < COUNT(ids); i++)
			assert_int_equal(seen_class(ids[i], n), plain_class(ids[i], n));
	assert_int_equal(seen_class(TOP - 1, UINT32_MAX), SEEN_CLASSES - 1);
	assert_int_equal(seen_class(0, 1), 1);
	for (uint32_t id = 0; id < TOP; id += 60)
		for (uint32_t n = 0; n < 9; n++)
			used[seen_class(id, n)] = true;
	for (size_t k = 0; k < SEEN_CLASSES; k++)
		assert_true(used[k]);
}

#define SEEN_IDS 3000

/* What the past tells after the token at t, against the definition. */
static void check_seen(const pointer_past *past, const uint32_t *tokens, size_t t, size_t delay)
{
	static uint32_t counts[SEEN_IDS];
	const uint8_t *seen = pointer_past_seen(past);

	assert_int_equal(seen != NULL, t > delay);
	memset(counts, 0, sizeof(counts));
	for (size_t d = 0; d + delay < t; d++)
		counts[tokens[d]]++;
	for (uint32_t x = 0; seen && x < SEEN_IDS; x++)
		if (seen[x] != plain_class(x, counts[x]))
			fail_msg("token %u, seen %u times before %zu: %d", (unsigned)x, (unsigned)counts[x], t,
				 seen[x]);
}

TEST(counts_what_can_be_found)
{
	uint32_t tokens[STEPS];

	for (size_t trial = 0; trial < 6; trial++) {
		const struct pointer pointer = {.delay = (size_t[]){0, 1, 7, 100, 599, 600}[trial],
						.links = POINTER_LINKS,
						.contexts = true,
						.seeing = true};
		const size_t delay = pointer.delay;
		pointer_past *past, *without;

		for (size_t t = 0; t < STEPS; t++)
			tokens[t] = (uint32_t)(draw(7, trial, t) % (t % 2 ? SEEN_IDS : 12));
		must(pointer_past_new(&pointer, SEEN_IDS, &past, &err));
		assert_null(pointer_past_seen(past));
		for (size_t t = 0, some; t < STEPS; t += some) { /* in pieces */
			some = t < 40 ? 1 : 1 + draw(8, trial, t) % 50;
			some = some < STEPS - t ? some : STEPS - t;
			must(pointer_past_add(past, tokens + t, some, NULL, &err));
			check_seen(past, tokens, t + some - 1, delay);
		}
		/* back, a little or far, and on with other tokens */
		for (size_t back = STEPS - 1; back > 0; back = back * 2 / 3) {
			must(pointer_past_rewind(past, back, &err));
			check_seen(past, tokens, back - 1, delay);
			for (size_t t = back; t < STEPS; t++)
				tokens[t] = (uint32_t)(draw(back, trial, t) % 50);
			must(pointer_past_add(past, tokens + back, STEPS - back, NULL, &err));
			check_seen(past, tokens, STEPS - 1, delay);
		}
		assert_int_equal(pointer_past_rewind(past, STEPS + 1, &err), ROSA_EINVAL);
		check_seen(past, tokens, STEPS - 1, delay);
		must(pointer_past_rewind(past, 0, &err));
		assert_null(pointer_past_seen(past));
		/* a pointer without a table keeps neither counts nor tokens */
		must(pointer_past_new(&(struct pointer){.delay = delay, .links = POINTER_LINKS, .contexts = true},
				      SEEN_IDS, &without, &err));
		must(pointer_past_add(past, tokens, STEPS, NULL, &err));
		must(pointer_past_add(without, tokens, STEPS, NULL, &err));
		assert_null(pointer_past_seen(without));
		assert_true(pointer_past_bytes(past) >= pointer_past_bytes(without) + SEEN_IDS * 5 + STEPS * 4);
		pointer_past_free(past);
		pointer_past_free(without);
	}
}

/* ------------------------------------------------------------------------------------------------------ mixture -- */

#define WORDS 40

static struct pointer drawn_pointer(uint64_t trial)
{
	struct pointer pointer = {
	    .delay = 3, .links = 1 + trial % POINTER_LINKS, .confident = trial % 2, .agreeing = trial % 3 == 0};

	if (trial % 4 == 3) { /* by contexts */
		pointer = (struct pointer){.delay = 3, .links = POINTER_LINKS, .contexts = true};
		for (size_t l = 0; l < POINTER_LENGTHS; l++)
			pointer.theta[0][l] = (double)(draw(trial, 0, l) % 2000) / 100 - 10;
		for (size_t f = 0; f < POINTER_FEATURES; f++)
			pointer.feature[f] = (double)(draw(trial, f, 70) % 200) / 100 - 1;
		pointer.seeing = trial % 8 == 7;
		for (size_t k = 0; k < SEEN_COUNTS * SEEN_RANKS && pointer.seeing; k++)
			pointer.seen[k / SEEN_RANKS][k % SEEN_RANKS] = (double)(draw(trial, k, 80) % 1000) / 100 - 5;
		return pointer;
	}
	for (size_t i = 0; i < pointer.links; i++) {
		if (pointer.agreeing)
			pointer.agreement[i] = (double)(draw(trial, i, 60) % 400) / 100 - 2;
		for (size_t l = 0; l < POINTER_LENGTHS; l++)
			pointer.theta[i][l] = (double)(draw(trial, i, l) % 2000) / 100 - 10;
		for (size_t j = 0; j < 2 && pointer.confident; j++)
			pointer.slope[i][j] = (double)(draw(trial, i, 50 + j) % 200) / 100 - 1;
	}
	return pointer;
}

/* p_0 in place of p. */
static void plain_base(const struct pointer *pointer, const uint8_t *seen, long double *p)
{
	long double sum = 0;

	for (size_t x = 0; x < WORDS; x++) {
		if (seen[x])
			p[x] *= expl((long double)pointer->seen[(seen[x] - 1) / 15][(seen[x] - 1) % 15]);
		sum += p[x];
	}
	for (size_t x = 0; x < WORDS; x++)
		p[x] /= sum;
}

/* p(x) of the mixture, as the equation has it. */
static void plain_mixture(const struct pointer *pointer, const struct pointer_links *found, const uint8_t *seen,
			  const float *logits, long double *p)
{
	long double model[WORDS], sum = 0, most = 0, weights = 0, entropy = 0;

	for (size_t x = 0; x < WORDS; x++)
		sum += expl((long double)logits[x]);
	for (size_t x = 0; x < WORDS; x++) {
		p[x] = model[x] = expl((long double)logits[x]) / sum;
		most = model[x] > most ? model[x] : most;
		entropy -= model[x] * logl(model[x]);
	}
	if (pointer->seeing)
		plain_base(pointer, seen, p);
	size_t different = 0;
	for (size_t i = 0; i < found->count; i++) {
		bool earlier = false;

		for (size_t j = 0; j < i; j++)
			earlier = earlier || found->token[j] == found->token[i];
		different += !earlier;
	}
	for (size_t i = 0; i < found->count; i++) {
		const size_t length = found->length[i] < 12 ? found->length[i] : 12;
		long double weight = expl((long double)pointer->theta[pointer->contexts ? 0 : i][length]);
		const long double features[] = {logl(model[found->token[i]]),
						logl(most),
						entropy,
						found->alignment[i] / 16.0L,
						logl((found->followed_by[i] + 0.3L) / (found->as_long[i] + 1)),
						logl(1.0L + found->places),
						logl((long double)found->different),
						logl(0.01L + found->success / 65535.0L)};

		for (size_t f = 0; f < POINTER_FEATURES && pointer->contexts; f++)
			weight *= expl((long double)pointer->feature[f] * features[f]);
		if (pointer->agreeing)
			weight *= expl((long double)pointer->agreement[different - 1]);

		if (pointer->confident)
			weight *= powl(model[found->token[i]], (long double)pointer->slope[i][0]) *
				  powl(most, (long double)pointer->slope[i][1]);
		p[found->token[i]] += weight;
		weights += weight;
	}
	for (size_t x = 0; x < WORDS; x++)
		p[x] /= 1 + weights;
}

TEST(mixes_as_the_equation_says)
{
	for (uint64_t trial = 0; trial < 400; trial++) {
		const struct pointer pointer = drawn_pointer(trial);
		struct pointer_links found = {.count = (uint8_t)(draw(trial, 90, 0) % (pointer.links + 1))};
		const double exact = pointer.seeing ? 1e-6 : 1e-10; /* samples have the masses as floats */
		float logits[WORDS], mixed[WORDS];
		uint8_t seen[WORDS];
		long double p[WORDS], all = 0;
		double sum;

		for (size_t x = 0; x < WORDS; x++) {
			mixed[x] = logits[x] = (float)(draw(trial, 91, x) % 4000) / 100.0f - 20;
			seen[x] = draw(trial, 98, x) % 3 ? (uint8_t)(draw(trial, 99, x) % SEEN_CLASSES) : 0;
		}
		for (size_t i = 0; i < found.count; i++) { /* the same token by several links */
			found.token[i] = (uint32_t)(draw(trial, 92, i) % (trial % 4 ? WORDS : 3));
			found.length[i] = (uint8_t)(draw(trial, 93, i) % 20);
			found.alignment[i] = (uint8_t)(draw(trial, 94, i) % 17);
			found.as_long[i] = (uint8_t)(1 + draw(trial, 95, i) % 96);
			found.followed_by[i] = (uint8_t)(1 + draw(trial, 96, i) % found.as_long[i]);
		}
		found.places = (uint8_t)(draw(trial, 97, 0) % 97);
		found.different = (uint8_t)(1 + draw(trial, 97, 1) % 96);
		found.success = (uint16_t)(draw(trial, 97, 2) % 65536);
		plain_mixture(&pointer, &found, seen, logits, p);
		pointer_mix(&pointer, &found, seen, mixed, WORDS);
		sum = logits_summary(mixed, WORDS).sum;
		if (!found.count) /* the scale stays */
			assert_true(fabs(sum - logits_summary(logits, WORDS).sum) < 1e-5);
		for (size_t x = 0; x < WORDS; x++) {
			const struct pointer_sample sample = pointer_sample(&found, seen, logits, WORDS, (uint32_t)x);
			const double loss = pointer_loss(&pointer, &sample);
			bool touched = false;

			for (size_t i = 0; i < found.count; i++)
				touched = touched || found.token[i] == x;
			all += expl(-(long double)loss);
			assert_true(fabsl((long double)loss + logl(p[x])) < (long double)exact);
			assert_true(fabs(sum - (double)mixed[x] - loss) < 2e-5);
			assert_true(touched || pointer.seeing || mixed[x] == logits[x]);
			if (!found.count && !pointer.seeing)
				assert_true(-sample.target == loss);
		}
		assert_true(fabsl(all - 1) < (long double)exact);
	}
}

/* A table changes nothing where nothing has been seen, and no logit of -infinity; links weigh what they did. */
TEST(a_table_changes_what_was_seen)
{
	struct pointer pointer = drawn_pointer(7), without = pointer;
	const struct pointer_links found = {
	    .count = 2, .token = {1, 4}, .length = {1, 3}, .as_long = {1, 1}, .different = 2};
	const float logits[6] = {-0.0f, 2, -INFINITY, 0.5f, -3, -INFINITY};
	const uint8_t seen[6] = {3, 0, 5, 60, 0, 0};
	double shares[POINTER_LINKS];
	float a[6], b[6];

	without.seeing = false;
	for (size_t count = 0; count < 3; count += 2) {
		struct pointer_links some = found;

		some.count = (uint8_t)count;
		memcpy(a, logits, sizeof(a));
		memcpy(b, logits, sizeof(b));
		pointer_mix(&pointer, &some, NULL, a, 6);
		pointer_mix(&without, &some, seen, b, 6);
		assert_memory_equal(a, b, sizeof(a));
		assert_true(count > 0 || memcmp(a, logits, sizeof(a)) == 0);
		for (uint32_t x = 0; x < 2; x++) {
			const struct pointer_sample one = pointer_sample(&some, NULL, logits, 6, x);

			assert_true(pointer_loss(&pointer, &one) == pointer_loss(&without, &one));
		}
	}
	memcpy(a, logits, sizeof(a));
	pointer_mix(&pointer, &found, seen, a, 6);
	assert_true(isinf(a[2]) && isinf(a[5]) && a[0] != logits[0] && a[3] != logits[3]);
	/* token 1 has the share of its link, and what p_0 leaves it */
	assert_int_equal(pointer_shares(&pointer, &found, logits, 6, shares), 2);
	const double sum = logits_summary(a, 6).sum, base = exp((double)a[3] - sum) / (1 - shares[0] - shares[1]);
	const double factor = exp(pointer.seen[3][14]), change = exp(pointer.seen[0][2]);
	const double model[4] = {1, exp(2), exp(0.5), exp(-3)};
	const double whole = model[0] * change + model[1] + model[2] * factor + model[3];
	assert_true(fabs(base - model[2] * factor / whole) < 1e-6);
	assert_true(fabs(exp((double)a[1] - sum) - shares[0] - (1 - shares[0] - shares[1]) * model[1] / whole) < 1e-6);
}

/* Weights and logits at the ends of their ranges give numbers. */
TEST(survives_extremes)
{
	struct pointer pointer = {.links = 3, .confident = true};
	struct pointer_links found = {.count = 3, .length = {1, 200, 255}, .token = {0, 1, 0}};

	for (int trial = 0; trial < 8; trial++) {
		float logits[3] = {-INFINITY, trial & 1 ? 1e30f : -40, trial & 1 ? 1e30f : 0};

		for (size_t i = 0; i < 3; i++) {
			for (size_t l = 0; l < POINTER_LENGTHS; l++)
				pointer.theta[i][l] = trial & 2 ? POINTER_LARGEST : -POINTER_LARGEST;
			pointer.slope[i][0] = pointer.slope[i][1] = trial & 4 ? POINTER_LARGEST : -POINTER_LARGEST;
		}
		for (uint32_t x = 0; x < 3; x++) {
			const struct pointer_sample sample = pointer_sample(&found, NULL, logits, 3, x);

			assert_true(pointer_loss(&pointer, &sample) >= -1e-9);
		}
		pointer_mix(&pointer, &found, NULL, logits, 3);
		assert_true(isfinite(logits[0]) && isfinite(logits[1]) && isfinite(logits[2]));
	}
	/* all that the model believes in was seen, or nothing */
	for (int trial = 0; trial < 4; trial++) {
		struct pointer table = {.links = POINTER_LINKS, .contexts = true, .seeing = true};
		float logits[3] = {90, -90, 0};
		const uint8_t seen[3] = {trial & 1, 60, 17};

		for (size_t k = 0; k < SEEN_COUNTS * SEEN_RANKS; k++)
			table.seen[k / SEEN_RANKS][k % SEEN_RANKS] = trial & 2 ? POINTER_LARGEST : -POINTER_LARGEST;
		for (uint32_t x = 0; x < 3; x++) {
			const struct pointer_sample sample = pointer_sample(&found, seen, logits, 3, x);

			assert_true(pointer_loss(&table, &sample) >= -1e-6);
		}
		pointer_mix(&table, &found, seen, logits, 3);
		assert_true(isfinite(logits[0]) && isfinite(logits[1]) && isfinite(logits[2]));
	}
	/* a token that the model does not have is no token */
	float logits[2] = {1, 2};
	found = (struct pointer_links){.count = 1, .length = {3}, .token = {7}};
	pointer_mix(&pointer, &found, NULL, logits, 2);
	assert_true(logits[0] == 1 && logits[1] == 2);
}

/* --------------------------------------------------------------------------------------------------------- file -- */

static bool file_has(const char *path, const char *text)
{
	char data[8192] = {0};
	FILE *file = fopen(path, "r");

	assert_non_null(file);
	assert_true(fread(data, 1, sizeof(data) - 1, file) < sizeof(data) - 1);
	fclose(file);
	return strstr(data, text) != NULL;
}

TEST_WITH(reads_what_it_wrote, folder_enter, folder_leave)
{
	const struct folder *folder = *state;

	for (uint64_t trial = 0; trial < 20; trial++) {
		const struct pointer written = drawn_pointer(trial);
		struct pointer read;

		must(pointer_save(folder->file, &written, NULL, &err));
		must(pointer_load(folder->file, &read, &err));
		assert_int_equal(read.delay, written.delay);
		assert_int_equal(read.links, written.links);
		assert_int_equal(read.confident, written.confident);
		assert_memory_equal(read.theta, written.theta, sizeof(read.theta));
		assert_memory_equal(read.slope, written.slope, sizeof(read.slope));
		assert_int_equal(read.agreeing, written.agreeing);
		assert_int_equal(read.contexts, written.contexts);
		assert_memory_equal(read.feature, written.feature, sizeof(read.feature));
		assert_memory_equal(read.agreement, written.agreement, sizeof(read.agreement));
		assert_int_equal(read.seeing, written.seeing);
		assert_memory_equal(read.seen, written.seen, sizeof(read.seen));
		assert_int_equal(file_has(folder->file, "\"seen\": [\n    ["), written.seeing);
	}
}

/* A folder stands for the file in it. */
TEST_WITH(looks_into_folders, folder_enter, folder_leave)
{
	const struct folder *folder = *state;
	const struct pointer written = drawn_pointer(3);
	struct pointer read;
	char path[128];

	assert_int_not_equal(pointer_load(folder->path, &read, &err), ROSA_OK);
	must_say(POINTER_FILE);
	snprintf(path, sizeof(path), "%s/" POINTER_FILE, folder->path);
	must(pointer_save(path, &written, NULL, &err));
	must(pointer_load(folder->path, &read, &err));
	assert_memory_equal(read.theta, written.theta, sizeof(read.theta));
	assert_int_equal(unlink(path), 0);
}

#define ROW      "[0,0,0,0,0,0,0,0,0,0,0,0,0]"
#define CONTEXTS "{\"format\": 2, \"delay\": 256, \"theta\": " ROW ", \"slopes\": {}, \"seen\": "
#define RANKS    "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"
#define THREE    RANKS ", " RANKS ", " RANKS

TEST_WITH(refuses_what_is_wrong, scratch_enter, scratch_leave)
{
	static const struct {
		const char *text, *said;
	} wrong[] = {
	    {"[]", "must hold one JSON object"},
	    {"{}", "is not a pointer: it has neither format nor theta; name a file that 'rosatune pointer fit' wrote"},
	    {"{\"theta\": [" ROW "]}", "format: is missing"},
	    {"{\"format\": 3}", "this version reads 1 and 2"},
	    {"{\"format\": 1, \"links\": 1, \"theta\": [" ROW "]}", "delay"},
	    {"{\"format\": 1, \"delay\": -1, \"links\": 1, \"theta\": [" ROW "]}", "delay"},
	    {"{\"format\": 1, \"delay\": 4294967296, \"links\": 1, \"theta\": [" ROW "]}", "at most"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 0, \"theta\": []}", "1 to 16"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 17, \"theta\": []}", "1 to 16"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 2, \"theta\": [" ROW "]}", "has 1 rows"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [[0,0]]}", "13 numbers"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [5]}", "13 numbers"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [[0,0,0,0,0,0,0,0,0,0,0,0,null]]}", "theta"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [[0,0,0,0,0,0,0,0,0,0,0,0,NaN]]}", "line 1"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [[0,0,0,0,0,0,0,0,0,0,0,0,51]]}", "51"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "], \"confidence\": [[1]]}", "2 numbers"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "], \"confidence\": []}", "has 0 rows"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "], \"agreement\": [1, 2]}", "1 numbers"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "], \"gate\": 1}", "not a field"},
	    {"{\"format\": 2, \"delay\": 256, \"theta\": [" ROW "], \"slopes\": {}}", "13 numbers"},
	    {"{\"format\": 2, \"delay\": 256, \"theta\": " ROW "}", "slopes"},
	    {"{\"format\": 2, \"delay\": 256, \"theta\": " ROW ", \"slopes\": {\"mood\": 1}}", "mood"},
	    {"{\"format\": 2, \"delay\": 256, \"theta\": " ROW ", \"slopes\": {\"share\": -51}}", "-51"},
	    {"{\"format\": 2, \"delay\": 256, \"links\": 8, \"theta\": " ROW ", \"slopes\": {}}", "links"},
	    {CONTEXTS "1}", "seen"},
	    {CONTEXTS "[]}", "has 0 rows; there are 4"},
	    {CONTEXTS "[" THREE "]}", "has 3 rows; there are 4"},
	    {CONTEXTS "[" THREE ", " ROW "]}", "seen[3]: must be a list of 15 numbers"},
	    {CONTEXTS "[" THREE ", 0]}", "15 numbers"},
	    {CONTEXTS "[" THREE ", [0,0,0,0,0,0,0,0,0,0,0,0,0,0,-50.5]]}", "-50.5"},
	    {CONTEXTS "[" THREE ", [0,0,0,0,0,0,0,0,0,0,0,0,0,0,\"1\"]]}", "seen"},
	    {"{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "], \"seen\": [" THREE ", " RANKS "]}",
	     "not a field"},
	};
	static const char good[] = "{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "]}";
	static const char table[] = CONTEXTS "[" THREE ", [0,0,0,0,0,0,0,0,0,0,0,0,0,0,50]]}";
	struct pointer pointer;

	for (size_t i = 0; i < COUNT(wrong); i++) {
		err.message[0] = '\0';
		scratch_write("p.json", wrong[i].text);
		assert_int_not_equal(pointer_load(scratch_path("p.json"), &pointer, &err), ROSA_OK);
		if (!strstr(err.message, wrong[i].said) || !strstr(err.message, "p.json"))
			fail_msg("%s: %s", wrong[i].text, err.message);
		assert_int_equal(pointer.links, 0);
	}
	scratch_write("p.json", good);
	must(pointer_load(scratch_path("p.json"), &pointer, &err));
	assert_int_equal(pointer.delay, 256);
	scratch_write("p.json", table);
	must(pointer_load(scratch_path("p.json"), &pointer, &err));
	assert_true(pointer.seeing && pointer.seen[3][14] == 50 && pointer.seen[3][13] == 0);
	assert_int_not_equal(pointer_load("/nowhere/p.json", &pointer, &err), ROSA_OK);
	must_say("/nowhere/p.json");
}
