/*
 * What the retrieval tests share.
 *
 * Nearly all of them have one form: make streams, let the oracle answer, let the library answer in some roundabout way,
 * compare. The part that deserves care is the failure: a difference somewhere in a grid of thousands of settings is
 * only of use when the message alone is enough to run that one setting again. So the setting is a structure that can
 * put itself into words, and every comparison goes through one function that does.
 */
#include "support_trial.h"

#include "oracle.h"
#include "support_test.h"
#include "eval/streams.h"

const int trial_bits[8] = {1, 2, 3, 4, 6, 8, 12, 16};
const uint32_t trial_cuts[5] = {0, 1, 2, 3, 7};
const uint32_t trial_delays[6] = {0, 1, 2, 5, 40, 1000};
const rosa_policy trial_policies[3] = {ROSA_READABLE, ROSA_LITERAL, ROSA_INCLUSIVE};

const char *policy_name(rosa_policy policy)
{
	static const char *const names[] = {"readable", "literal", "inclusive"};

	return (size_t)policy < COUNT(names) ? names[policy] : "unknown";
}

uint64_t test_random(uint64_t *state, uint64_t below)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
	return (x ^ (x >> 32)) % below;
}

size_t test_rounds(size_t rounds)
{
	const char *wish = getenv("ROSATUNE_TEST_LONG");

	return wish && *wish && strcmp(wish, "0") != 0 ? 20 * rounds : rounds;
}

void trial_make(struct trial *trial)
{
	size_t cells = trial->routes * trial->steps;

	trial->query = test_alloc(cells * sizeof(*trial->query));
	trial->key = test_alloc(cells * sizeof(*trial->key));
	trial->tau = trial->length = trial->flips = NULL;
	for (size_t r = 0; r < trial->routes; r++) {
		int kind = (int)(((size_t)trial->kind + r) % (size_t)stream_count());

		stream_fill(kind, trial->options.bits, trial->seed + r, trial->steps, trial->query + r * trial->steps,
			    trial->key + r * trial->steps);
	}
	snprintf(
	    trial->text, sizeof(trial->text),
	    "stream %s, seed %llu, %zu routes, %zu steps, bits %d, %s, fold %d, max_match %u, delay %u, threads %d",
	    stream_name(trial->kind), (unsigned long long)trial->seed, trial->routes, trial->steps, trial->options.bits,
	    policy_name(trial->options.policy), trial->options.fold, (unsigned)trial->options.max_match,
	    (unsigned)trial->options.delay, trial->options.threads);
}

void trial_solve(struct trial *trial)
{
	size_t cells = trial->routes * trial->steps;
	size_t bits = (size_t)trial->options.bits;

	trial->tau = test_alloc(cells * sizeof(*trial->tau));
	trial->length = test_alloc(cells * sizeof(*trial->length));
	trial->flips = test_alloc(cells * bits * sizeof(*trial->flips));
	for (size_t r = 0; r < trial->routes; r++) {
		size_t at = r * trial->steps;

		oracle_route(&trial->options, trial->steps, trial->query + at, trial->key + at, trial->tau + at,
			     trial->length + at, trial->flips + at * bits);
	}
}

void expect_same(const struct trial *trial, const char *how, const char *what, size_t route, size_t first, size_t count,
		 size_t width, const int32_t *got, const int32_t *want)
{
	if (memcmp(got, want, count * width * sizeof(*got)) == 0)
		return;
	for (size_t i = 0; i < count * width; i++) {
		if (got[i] != want[i])
			fail_msg("%s: %s: %s of route %zu at step %zu, column %zu: got %ld, want %ld", trial->text, how,
				 what, route, first + i / width, i % width, (long)got[i], (long)want[i]);
	}
}

void expect_all(const struct trial *trial, const char *how, const char *what, size_t first, size_t count, size_t width,
		const int32_t *got, size_t stride, const int32_t *want)
{
	for (size_t r = 0; r < trial->routes; r++)
		expect_same(trial, how, what, r, first, count, width, got + r * stride * width,
			    want + (r * trial->steps + first) * width);
}

int stream_kind(const char *name)
{
	const int kind = stream_find(name);

	assert_true(kind >= 0);
	return kind;
}

void expect_status(const char *how, rosa_status got, rosa_status want, const rosa_error *err)
{
	if (got != want)
		fail_msg("%s: got %d (%s: %s), want %d (%s)", how, (int)got, rosa_status_name(got),
			 got != ROSA_OK && err ? err->message : "no message", (int)want, rosa_status_name(want));
	if (want == ROSA_OK || !err)
		return;
	if (err->status != want)
		fail_msg("%s: the error says %d, the result %d", how, (int)err->status, (int)want);
	if (!memchr(err->message, 0, sizeof(err->message)) || err->message[0] == 0)
		fail_msg("%s: the error has no message", how);
}
