/*
 * Chains of places against the oracle, which looks every link up anew; and what a link promises: the symbols before
 * each place are those before the step, as many as its length says.
 */
#include "oracle.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

enum { LINKS = 5 };

/* What retrieval found in a trial whose query is its key. */
struct answers {
	int32_t *tau, *length;
};

static struct answers retrieve(const struct trial *trial, uint32_t delay)
{
	const size_t cells = trial->routes * trial->steps;
	rosa_options options = trial->options;
	struct answers answers;

	options.delay = delay;
	answers.tau = test_alloc(cells * sizeof(*answers.tau));
	answers.length = test_alloc(cells * sizeof(*answers.length));
	must(rosa_retrieve(&options, trial->routes, trial->steps, trial->key, trial->key, answers.tau, answers.length,
			   NULL, &err));
	return answers;
}

/* Without folding, the symbols before a place are those before the step. */
static void expect_matches(const struct trial *trial, size_t r, size_t t, int32_t place, int32_t length)
{
	const uint16_t *key = trial->key + r * trial->steps;

	for (int32_t i = 0; i < length; i++)
		if (place - 1 - i < 0 || key[place - 1 - i] != key[t - (size_t)i])
			fail_msg("%s: route %zu, step %zu: place %d does not share %d symbols", trial->text, r, t,
				 (int)place, (int)length);
}

static void check(struct trial *trial)
{
	const size_t cells = trial->routes * trial->steps;
	int32_t *places = test_alloc(LINKS * cells * sizeof(*places)),
		*lengths = test_alloc(LINKS * cells * sizeof(*lengths));
	int32_t *want = test_alloc(LINKS * trial->steps * sizeof(*want)),
		*want_length = test_alloc(LINKS * trial->steps * sizeof(*want));
	struct answers late, at_once;

	trial_make(trial);
	late = retrieve(trial, trial->options.delay);
	at_once = retrieve(trial, 0);
	must_for(trial->text, rosa_chain(trial->routes, trial->steps, LINKS, late.tau, late.length, at_once.tau,
					 at_once.length, places, lengths, &err));
	for (size_t r = 0; r < trial->routes; r++) {
		oracle_chain(&trial->options, LINKS, trial->steps, trial->key + r * trial->steps, want, want_length);
		for (size_t i = 0; i < LINKS; i++) {
			const size_t at = i * cells + r * trial->steps;

			expect_same(trial, "chain", "place", r, 0, trial->steps, 1, places + at,
				    want + i * trial->steps);
			expect_same(trial, "chain", "length", r, 0, trial->steps, 1, lengths + at,
				    want_length + i * trial->steps);
			for (size_t t = 0; t < trial->steps && !trial->options.fold; t++)
				expect_matches(trial, r, t, places[at + t], lengths[at + t]);
		}
	}
	/* without lengths */
	memset(lengths, 0, LINKS * cells * sizeof(*lengths));
	must_for(trial->text, rosa_chain(trial->routes, trial->steps, LINKS, late.tau, NULL, at_once.tau, NULL, lengths,
					 NULL, &err));
	assert_memory_equal(places, lengths, LINKS * cells * sizeof(*places));
}

TEST(test_chains)
{
	for (int kind = 0; kind < stream_count(); kind++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 3, .routes = 2, .steps = 70};
		uint64_t turn = (uint64_t)kind;

		trial.options.bits = trial_bits[test_random(&turn, COUNT(trial_bits))];
		trial.options.policy = kind % 4 ? ROSA_READABLE : ROSA_INCLUSIVE;
		trial.options.fold = kind % 3 == 0;
		trial.options.max_match = trial_cuts[test_random(&turn, COUNT(trial_cuts))];
		trial.options.delay = trial_delays[test_random(&turn, COUNT(trial_delays) - 1)];
		check(&trial);
	}
}

TEST(test_refusals)
{
	const int32_t good[] = {-1, -1, 1, 2}, zero[] = {-1, -1, 0, 2}, far[] = {-1, -1, 1, 4},
		      below[] = {-1, -2, 1, 2};
	const int32_t *const wrong[] = {zero, far, below};
	int32_t places[8], lengths[8];

#define CHAIN(routes, steps, links, tau, length, tau0, length0, places, lengths)                                       \
	rosa_chain(routes, steps, links, tau, length, tau0, length0, places, lengths, &err)
	must(CHAIN(1, 4, 2, good, good, good, good, places, lengths));
	assert_int_equal(places[4 + 3], -1);
	must_refuse(CHAIN(0, 4, 2, good, good, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 0, 2, good, good, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 0, good, good, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, ROSA_MAX_LINKS + 1, good, good, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 2, NULL, good, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 2, good, NULL, good, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 2, good, good, NULL, good, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 2, good, good, good, NULL, places, lengths), ROSA_EINVAL);
	must_refuse(CHAIN(1, 4, 2, good, good, good, good, NULL, lengths), ROSA_EINVAL);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		must_refuse(CHAIN(1, 4, 2, wrong[i], good, good, good, places, lengths), ROSA_EINVAL);
		must_refuse(CHAIN(1, 4, 1, wrong[i], good, good, good, places, lengths), ROSA_EINVAL);
	}
	{
		const int32_t leads[] = {-1, 7, 1, 2};

		must_fail(CHAIN(1, 4, 2, good, good, leads, good, places, lengths), ROSA_EINVAL, "step 3");
	}
#undef CHAIN
}
