/* One setting of a test: streams, options, the oracle's answers, and comparisons that say where they fail. */
#pragma once

#include "support_test.h"

struct trial {
	/* Set by the caller. `options` starts from ROSA_OPTIONS_INIT. */
	rosa_options options;
	int kind; /* of route 0; the routes after it take the kinds after it, so that mixed-up routes are noticed */
	uint64_t seed;
	size_t routes;
	size_t steps;

	/* Made by trial_make, each [routes][steps]. */
	uint16_t *query, *key;
	/* Made by trial_solve: what the oracle says. flips is [routes][steps][bits]. */
	int32_t *tau, *length, *flips;
	char text[256]; /* all of the above in words, for messages */
};

/* The settings that the issue of exactness is tried at. */
extern const int trial_bits[8];
extern const uint32_t trial_cuts[5];
extern const uint32_t trial_delays[6]; /* the last is longer than most streams */
extern const rosa_policy trial_policies[3];
const char *policy_name(rosa_policy policy);

void trial_make(struct trial *trial);
void trial_solve(struct trial *trial);

/* Fail the running test, naming the trial, unless got[i] == want[i] for `count` entries of `width` numbers each. Both
 * belong to route `route` and start at step `first`. `what` names the output, `how` the way it was made. */
void expect_same(const struct trial *trial, const char *how, const char *what, size_t route, size_t first, size_t count,
		 size_t width, const int32_t *got, const int32_t *want);

/* The same for steps first .. first + count - 1 of all routes: `stride` steps lie between those of one and of the next
 * in `got`, the trial's steps in `want`, which begins with step 0. */
void expect_all(const struct trial *trial, const char *how, const char *what, size_t first, size_t count, size_t width,
		const int32_t *got, size_t stride, const int32_t *want);

/* The kind of stream of this name, which there must be. */
int stream_kind(const char *name);

/* Fail the running test unless a call gave this status, and where it failed left a message and the same status. */
void expect_status(const char *how, rosa_status got, rosa_status want, const rosa_error *err);

/* The same of a call that leaves what went wrong in `err` and goes well; `how` names the setting. */
#define must_for(how_, call_) expect_status(how_, call_, ROSA_OK, &err)

/* Whether the environment asks for the long form of the tests (ROSATUNE_TEST_LONG); the factor to do more by. */
size_t test_rounds(size_t rounds);

/* A number below `below`, from a state that any value can start. */
uint64_t test_random(uint64_t *state, uint64_t below);
