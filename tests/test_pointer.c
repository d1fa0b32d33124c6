/*
 * The pointer: its look-up against the definition by brute force, its mixture against the equation in long double, and
 * its file, good and bad.
 */
#include "base/draw.h"
#include "base/file.h"
#include "model/pointer_past.h"
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

/* p(x) of the mixture, as the equation has it. */
static void plain_mixture(const struct pointer *pointer, const struct pointer_links *found, const float *logits,
			  long double *p)
{
	long double model[WORDS], sum = 0, most = 0, weights = 0, entropy = 0;

	for (size_t x = 0; x < WORDS; x++)
		sum += expl((long double)logits[x]);
	for (size_t x = 0; x < WORDS; x++) {
		p[x] = model[x] = expl((long double)logits[x]) / sum;
		most = model[x] > most ? model[x] : most;
		entropy -= model[x] * logl(model[x]);
	}
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
		float logits[WORDS], mixed[WORDS];
		long double p[WORDS];
		double greatest, sum;

		for (size_t x = 0; x < WORDS; x++)
			mixed[x] = logits[x] = (float)(draw(trial, 91, x) % 4000) / 100.0f - 20;
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
		plain_mixture(&pointer, &found, logits, p);
		pointer_mix(&pointer, &found, mixed, WORDS);
		sum = log_sum_exp(mixed, WORDS, &greatest);
		for (size_t x = 0; x < WORDS; x++) {
			const struct pointer_sample sample = pointer_sample(&found, logits, WORDS, (uint32_t)x);
			const double loss = pointer_loss(&pointer, &sample);
			bool touched = false;

			for (size_t i = 0; i < found.count; i++)
				touched = touched || found.token[i] == x;
			assert_true(fabsl((long double)loss + logl(p[x])) < 1e-10L);
			assert_true(fabs(sum - (double)mixed[x] - loss) < 2e-5);
			assert_true(touched || mixed[x] == logits[x]);
			if (!found.count)
				assert_true(-sample.target == loss);
		}
	}
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
			const struct pointer_sample sample = pointer_sample(&found, logits, 3, x);

			assert_true(pointer_loss(&pointer, &sample) >= -1e-9);
		}
		pointer_mix(&pointer, &found, logits, 3);
		assert_true(isfinite(logits[0]) && isfinite(logits[1]) && isfinite(logits[2]));
	}
	/* a token that the model does not have is no token */
	float logits[2] = {1, 2};
	found = (struct pointer_links){.count = 1, .length = {3}, .token = {7}};
	pointer_mix(&pointer, &found, logits, 2);
	assert_true(logits[0] == 1 && logits[1] == 2);
}

/* --------------------------------------------------------------------------------------------------------- file -- */

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

#define ROW "[0,0,0,0,0,0,0,0,0,0,0,0,0]"

TEST(refuses_what_is_wrong)
{
	static const struct {
		const char *text, *said;
	} wrong[] = {
	    {"[]", "must hold one JSON object"},
	    {"{}", "format"},
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
	};
	static const char good[] = "{\"format\": 1, \"delay\": 256, \"links\": 1, \"theta\": [" ROW "]}";
	struct pointer pointer;

	for (size_t i = 0; i < COUNT(wrong); i++) {
		err.message[0] = '\0';
		assert_int_not_equal(pointer_parse(wrong[i].text, strlen(wrong[i].text), "p.json", &pointer, &err),
				     ROSA_OK);
		if (!strstr(err.message, wrong[i].said) || !strstr(err.message, "p.json"))
			fail_msg("%s: %s", wrong[i].text, err.message);
		assert_int_equal(pointer.links, 0);
	}
	must(pointer_parse(good, strlen(good), "p.json", &pointer, &err));
	assert_int_equal(pointer.delay, 256);
	assert_int_not_equal(pointer_load("/nowhere/p.json", &pointer, &err), ROSA_OK);
	must_say("/nowhere/p.json");
}
