/*
 * Batch retrieval as those above it see it: the routes are shared out to workers, and a sink says, route by route,
 * where results go and what becomes of them. So a caller who keeps them in another form needs no room for all of them
 * in this one.
 */
#pragma once

#include "retrieval/rules.h"

struct batch_sink {
	void *context;
	/* before and after a route, on the worker's thread; `end` may be NULL */
	void (*begin)(void *context, size_t route, unsigned worker, struct route_output *output);
	void (*end)(void *context, size_t route, unsigned worker);
};

/* Sizes that retrieval can take, and arrays that are there. */
rosa_status batch_check(const rosa_options *full, size_t routes, size_t steps, const void *query, const void *key,
			rosa_error *err);

/* The number of workers that so many routes are worth. */
unsigned batch_workers(const rosa_options *full, size_t routes);

/* Retrieve all routes; arguments were checked, but for the symbols: a worker checks a route before it takes it, so that
 * the check too is shared out. */
rosa_status batch_run(const rosa_options *full, const struct route_rules *rules, size_t routes, size_t steps,
		      const void *query, const void *key, unsigned workers, const struct batch_sink *sink,
		      rosa_error *err);

/* The runs of one route's symbols, of `bits` bits. */
size_t batch_count_runs(const void *symbols, unsigned bits, size_t steps, bool fold);
