/*
 * The backward pass of the read-out, its arguments checked, as the rules for q and k receive it.
 *
 * Route r of batch entry b owns channels r*bits .. r*bits + bits-1 of the rows of b. A rule overwrites args->gq and
 * args->gk (either may be NULL) for all of them. Sums over time or over routes are taken in an order that does not
 * depend on the number of workers.
 */
#pragma once

#include "base/pool.h"

/* The caller's progress function, which may stop the call. */
struct backward_stop {
	rosa_progress ask;
	void *context;
	uint64_t total; /* route-steps */
	bool told;      /* it said so */
};

struct backward {
	const rosa_read_pass *args;
	const rosa_learning *learning;
	const rosa_allocator *allocator;
	struct pool *pool;
	unsigned workers; /* of the pool */
	unsigned bits;    /* M */
	size_t routes;    /* R, per batch entry */
	bool fold;
	struct backward_stop *stop; /* NULL: the call cannot be stopped */
};

/* Do pieces 0 .. count-1 on all workers, as pool_run does. Once the call has been stopped, no further piece is begun,
 * nor in any later run; what the pieces would have computed is then undefined. */
void backward_run(const struct backward *call, size_t count, pool_work *work, void *context);

struct reads_pass;

/* The backward pass of a layer's reads (reads_back.h), and of the q and k of one of its sources; either may be NULL. Of
 * `qk` the fields of q and k, v, e0, e1, flips and gy count: gy, e0 and e1 are those of the source's first link.
 * `full` and `learning` have been checked. */
rosa_status backward_pass(const rosa_options *full, const rosa_learning *learning, const struct reads_pass *reads,
			  const rosa_read_pass *qk, rosa_error *err);

/* The rules by which q and k learn; each fills gq and gk. They fail if there is no memory (ROSA_ENOMEM) or the
 * caller's table of destinations is invalid (ROSA_EINVAL). */
rosa_status grad_qk_flips(const struct backward *call, rosa_error *err);
rosa_status grad_qk_soft(const struct backward *call, rosa_error *err);
rosa_status grad_qk_linear(const struct backward *call, rosa_error *err);
