/* What followed a context, against the definition in rosatune.h by brute force; pieces, forks, rewinds, refusals. */
#include "base/draw.h"
#include "support_memory.h"
#include "support_test.h"

#define STEPS 700

/* ------------------------------------------------------------------------------------------------------- oracle -- */

static int match(const uint32_t *x, int e, int t)
{
	int length = 0;

	while (length < 32 && length <= e && x[e - length] == x[t - length])
		length++;
	return length;
}

/* Without state, from the sentences of the header; only `success` is passed on from step to step. */
static rosa_continuation brute(const uint32_t *x, int t, int delay, unsigned success)
{
	rosa_continuation found = {.success = (uint16_t)success};
	int place[STEPS], length[STEPS], count = 0, both = 0, newest = 0;

	for (int e = t - delay - 2; e >= 0; e--) {
		const int two = e > 0 && t > 0 && x[e] == x[t] && x[e - 1] == x[t - 1];

		if (x[e] != x[t])
			continue;
		if (two ? both++ < 64 : newest < 32) {
			length[count] = match(x, e, t);
			place[count++] = e;
		}
		newest++;
	}
	for (int i = 1; i < count; i++) /* the longest first; equals stay in the order of time, newest first */
		for (int j = i; j > 0 && length[j] > length[j - 1]; j--) {
			const int e = place[j], l = length[j];

			place[j] = place[j - 1], length[j] = length[j - 1];
			place[j - 1] = e, length[j - 1] = l;
		}
	found.places = (uint8_t)count;
	for (int i = 0; i < count; i++) {
		const uint32_t token = x[place[i] + 1];
		const uint8_t k = found.count;
		int known = 0;

		for (int j = 0; j < i; j++)
			known = known || x[place[j] + 1] == token;
		found.different = (uint8_t)(found.different + !known);
		if (known || k == ROSA_CANDIDATES)
			continue;
		found.token[k] = token;
		found.place[k] = place[i] + 1;
		found.length[k] = (uint8_t)length[i];
		for (int back = 0; back < 16 && back <= place[i]; back++)
			found.alignment[k] = (uint8_t)(found.alignment[k] + (x[place[i] - back] == x[t - back]));
		for (int j = 0; j < count; j++) {
			const int as_long = length[j] >= length[i];

			found.as_long[k] = (uint8_t)(found.as_long[k] + as_long);
			found.followed_by[k] = (uint8_t)(found.followed_by[k] + (as_long && x[place[j] + 1] == token));
		}
		found.count++;
	}
	return found;
}

static void brute_text(const uint32_t *x, int steps, int delay, rosa_continuation *found)
{
	unsigned success = 0;

	for (int t = 0; t < steps; t++) {
		const int hit = t > 0 && found[t - 1].count && found[t - 1].token[0] == x[t];

		success = hit ? success + (65535 - success) / 32 : success - success / 32;
		found[t] = brute(x, t, delay, success);
	}
}

static void draw_text(uint64_t trial, uint32_t alphabet, uint32_t *x)
{
	for (size_t t = 0; t < STEPS; t++) /* chance, with long repetitions in which a token differs now and then */
		x[t] = t > 350 && trial % 2 && draw(trial, t, 1) % 12 ? x[t - 300] : draw(trial, t, 0) % alphabet;
}

/* -------------------------------------------------------------------------------------------------------- tests -- */

TEST(finds_what_the_definition_says)
{
	static rosa_continuation expected[STEPS], found[STEPS];
	static const uint32_t alphabets[] = {1, 2, 7, 60, 3000};
	size_t candidates = 0, full = 0, places = 0;
	uint32_t x[STEPS];

	for (uint64_t trial = 0; trial < 40; trial++) {
		rosa_options options = ROSA_OPTIONS_INIT;
		rosa_contexts *contexts, *fork;

		options.delay = (uint32_t[]){0, 1, 30, 200}[trial % 4];
		draw_text(trial, alphabets[trial % 5], x);
		brute_text(x, STEPS, (int)options.delay, expected);
		must(rosa_contexts_new(&options, &contexts, &err));
		for (size_t t = 0; t < STEPS;) {
			size_t some = 1 + draw(trial, t, 2) % 60;

			some = some < STEPS - t ? some : STEPS - t;
			must(rosa_contexts_push(contexts, some, x + t, found + t, &err));
			t += some;
		}
		assert_memory_equal(found, expected, sizeof(found));
		assert_int_equal(rosa_contexts_steps(contexts), STEPS);
		assert_true(rosa_contexts_bytes(contexts) >= STEPS * 14);
		for (size_t t = 0; t < STEPS; t++) {
			candidates += expected[t].count;
			full += expected[t].count == ROSA_CANDIDATES;
			places += expected[t].places > 64;
		}
		/* back by little and by much, on with other tokens, and again with the first ones; a fork stands still
		 */
		for (uint64_t turn = 0; turn < 6; turn++) {
			const size_t kept =
			    turn % 2 ? STEPS - 1 - draw(trial, turn, 3) % 20 : draw(trial, turn, 3) % STEPS;
			uint32_t other[50];

			must(rosa_contexts_fork(contexts, &fork, &err));
			for (size_t i = 0; i < 50; i++)
				other[i] = draw(trial, turn, 10 + i) % 3;
			must(rosa_contexts_rewind(contexts, kept, &err));
			must(rosa_contexts_push(contexts, 50, other, NULL, &err));
			must(rosa_contexts_rewind(contexts, kept, &err));
			memset(found, 1, sizeof(found));
			must(rosa_contexts_push(contexts, STEPS - kept, x + kept, found, &err));
			assert_memory_equal(found, expected + kept, (STEPS - kept) * sizeof(found[0]));
			must(rosa_contexts_rewind(fork, STEPS - 1, &err));
			must(rosa_contexts_push(fork, 1, x + STEPS - 1, found, &err));
			assert_memory_equal(found, expected + STEPS - 1, sizeof(found[0]));
			rosa_contexts_free(fork);
		}
		rosa_contexts_free(contexts);
	}
	assert_true(candidates > 50000 && full > 10 && places > 1000);
}

TEST(refuses_what_is_wrong)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	const uint32_t token = 1;
	rosa_contexts *contexts, *copy;

	must(rosa_contexts_new(&options, &contexts, &err));
	must(rosa_contexts_fork(contexts, &copy, &err)); /* an empty one */
	rosa_contexts_free(copy);
	must(rosa_contexts_push(contexts, 0, NULL, NULL, &err));
	must_fail(rosa_contexts_rewind(contexts, 1, &err), ROSA_EINVAL, "there are 0");
	assert_int_equal(rosa_contexts_push(contexts, 1, NULL, NULL, &err), ROSA_EINVAL);
	assert_int_equal(rosa_contexts_push(contexts, ROSA_MAX_STEPS + 1, &token, NULL, &err), ROSA_EINVAL);
	assert_int_equal(rosa_contexts_push(NULL, 1, &token, NULL, &err), ROSA_EINVAL);
	assert_int_equal(rosa_contexts_new(NULL, &copy, &err), ROSA_EINVAL);
	assert_int_equal(rosa_contexts_fork(contexts, NULL, &err), ROSA_EINVAL);
	rosa_contexts_free(contexts);
	rosa_contexts_free(NULL);
}
