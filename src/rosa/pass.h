/*
 * A backward pass whose every argument has been checked, as the rules for q and k receive it.
 *
 * Route r of batch entry b owns channels r*bits .. r*bits + bits-1 of the rows of b. A rule overwrites pass->gq and
 * pass->gk (either may be NULL) for all of them. Whatever is summed over time or over routes is summed in an order that
 * does not depend on the number of workers.
 */
#ifndef ROSATUNE_PASS_H
#define ROSATUNE_PASS_H

#include "rosatune.h"

#include <stdbool.h>

struct pool;

/* Can the operator take such activations? */
rosa_status pass_check(rosa_dtype dtype, size_t batch, size_t steps, size_t channels, unsigned bits, rosa_error *err);

struct pass {
	const rosa_read_pass *args;
	const rosa_learning *learning;
	const rosa_allocator *allocator;
	struct pool *pool;
	unsigned workers; /* of the pool */
	unsigned bits;    /* M */
	size_t routes;    /* R, a batch entry */
	bool fold;
};

/* The rules by which q and k learn; each fills gq and gk. ROSA_ENOMEM is all that can go wrong. */
rosa_status grad_qk_flips(const struct pass *pass, rosa_error *err);
rosa_status grad_qk_soft(const struct pass *pass, rosa_error *err);
rosa_status grad_qk_linear(const struct pass *pass, rosa_error *err);

#endif
