/*
 * What the rules `linear` and `soft` share: both weigh all candidates of a step by D_td = theta_t . P[d].
 *
 * theta = dL/dy (e1 - e0) and P = sigmoid(v) are computed once, in float32, for the batch entries in work. Only
 * differences from a mean over d count, so P may be shifted by the same amount for all d; P - 1/2 is stored, which
 * avoids most of the cancellation in those differences.
 */
#pragma once

#include "rosa/backward.h"
#include "rosa/scratch.h"
#include "base/sizes.h"

#define BLOCK_CHANNELS 128 /* of a block of routes, about: enough columns for an efficient product */

struct weighing {
	const struct backward *call;
	size_t steps, channels, bits, routes;
	bool all; /* credit */
	float suffix;
	size_t block, blocks;         /* routes in a block; blocks of a batch entry */
	size_t first, entries, group; /* batch entries in work: the first, how many, and how many at most */
	float *theta, *p;             /* [entries][steps][channels] */
	uint16_t *query, *key;        /* [entries][routes][steps]: symbols */
};

/* `step_bytes`: what else the rule needs per step of a batch entry. */
void weighing_init(struct weighing *job, const struct backward *call, size_t step_bytes, struct scratch *scratch);

/* Fill theta, P and the symbols of some steps of a batch entry of the group. */
void weighing_load(const struct weighing *job, size_t entry, size_t t, size_t steps);

/* Write s'(x) gradient, x being q or k, to the channels of `routes` routes at a step. */
void weighing_store(const struct weighing *job, void *to, const void *x, size_t entry, size_t t, size_t route,
		    size_t routes, const float *gradient);

rosa_status weighing_failed(const struct weighing *job, rosa_error *err);

/* The symbols of a route. */
static inline const uint16_t *weighing_symbols(const struct weighing *job, const uint16_t *symbols, size_t entry,
					       size_t route)
{
	return symbols + (entry * job->routes + route) * job->steps;
}

/* to[j] = x * sgn(bit j), x not being negative */
static inline void spread_signs(float *to, float x, unsigned symbol, size_t bits)
{
	static const uint32_t masks[ROSA_MAX_BITS] = {
	    1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
	    1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15,
	};
	uint32_t plus;

	/* By masks, since old vector instructions cannot shift each lane by another number. */
	memcpy(&plus, &x, sizeof(plus));
	for (size_t j = 0; j < bits; j++) {
		const uint32_t signed_x = plus | (symbol & masks[j] ? 0 : 0x80000000);

		memcpy(to + j, &signed_x, sizeof(signed_x));
	}
}
