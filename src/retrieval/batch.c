/*
 * Retrieval of whole streams at once.
 *
 * Every worker has one route's worth of index, used for one route after the other: it stays in the nearer caches, and
 * memory does not grow with the number of routes. The rows of the counterfactual tables are counted before anything is
 * looked up, so that all routes can write into one array.
 */
#include "pool.h"
#include "rules.h"
#include "status.h"

#include <stdatomic.h>

struct batch {
	const struct route_rules *rules;
	const rosa_options *options;
	struct route *scratch; /* [workers] */
	size_t routes, steps;
	const uint16_t *query, *key;
	int32_t *tau, *length;
	rosa_flips *flips;
	atomic_size_t done; /* routes */
	unsigned workers;
	bool cancelled;
};

static size_t count_runs(const uint16_t *symbols, size_t steps, bool fold)
{
	size_t runs = 1;

	if (!fold)
		return steps;
	for (size_t t = 1; t < steps; t++)
		runs += symbols[t] != symbols[t - 1];
	return runs;
}

static void retrieve_route(void *context, size_t r, unsigned worker)
{
	struct batch *batch = context;
	struct route *route = &batch->scratch[worker];
	struct route_output output = {.tau = batch->tau ? batch->tau + r * batch->steps : NULL,
				      .length = batch->length ? batch->length + r * batch->steps : NULL};

	if (batch->flips) {
		size_t first = batch->flips->first[r];

		output.run_start = batch->flips->start + first;
		output.run_tau = batch->flips->tau + first;
		output.run_flips = batch->flips->flip + first * batch->rules->bits;
	}
	route_clear(route);
	route_push(route, batch->rules, &batch->options->allocator, batch->steps, batch->query + r * batch->steps,
		   batch->key + r * batch->steps, &output);
	atomic_fetch_add(&batch->done, 1);
}

static int report_progress(void *context)
{
	struct batch *batch = context;
	const rosa_options *options = batch->options;
	uint64_t done = (uint64_t)atomic_load(&batch->done) * batch->steps,
		 total = (uint64_t)batch->routes * batch->steps;

	batch->cancelled = options->progress && options->progress(options->progress_context, done, total);
	return batch->cancelled;
}

static rosa_status allocate_flips(struct batch *batch, rosa_error *err)
{
	rosa_flips *flips = batch->flips;
	const rosa_allocator *allocator = &batch->options->allocator;
	size_t runs = 0;

	*flips = (rosa_flips){.routes = batch->routes, .bits = (int)batch->rules->bits, .allocator = *allocator};
	flips->first = memory_resize(allocator, NULL, (batch->routes + 1) * sizeof(*flips->first));
	if (!flips->first)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu routes", batch->routes);
	for (size_t r = 0; r < batch->routes; r++) {
		flips->first[r] = runs;
		runs += count_runs(batch->query + r * batch->steps, batch->steps, batch->rules->fold);
	}
	flips->first[batch->routes] = runs;
	/* the three in one block, of which `flip` is the beginning */
	flips->flip = memory_scratch(allocator, runs * (batch->rules->bits + 2) * sizeof(*flips->flip));
	if (!flips->flip)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu query runs", runs);
	flips->start = flips->flip + runs * batch->rules->bits;
	flips->tau = flips->start + runs;
	return ROSA_OK;
}

static rosa_status run_batch(struct batch *batch, rosa_error *err)
{
	const rosa_allocator *allocator = &batch->options->allocator;
	struct pool *pool = NULL;
	rosa_status status = ROSA_OK;

	batch->scratch = memory_resize(allocator, NULL, batch->workers * sizeof(*batch->scratch));
	if (!batch->scratch)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u workers", batch->workers);
	for (unsigned i = 0; i < batch->workers; i++)
		route_init(&batch->scratch[i], batch->rules);
	for (unsigned i = 0; i < batch->workers && !status; i++)
		if (!route_reserve(&batch->scratch[i], batch->rules, allocator, batch->steps, false, batch->steps))
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for the index of %zu steps", batch->steps);
	if (!status && batch->flips)
		status = allocate_flips(batch, err);
	if (!status) {
		pool = pool_new(allocator, batch->workers);
		if (!pool)
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", batch->workers);
	}
	if (!status) {
		pool_run(pool, batch->routes, retrieve_route, batch, report_progress);
		/* the last route may have been another thread's */
		if (!batch->cancelled && batch->workers > 1)
			report_progress(batch);
		if (batch->cancelled)
			status = rosa_fail(err, ROSA_ECANCELLED, "stopped by the progress callback");
	}
	pool_free(pool, allocator);
	for (unsigned i = 0; i < batch->workers; i++)
		route_free(&batch->scratch[i], allocator);
	memory_free(allocator, batch->scratch);
	return status;
}

rosa_status rosa_retrieve(const rosa_options *options, size_t routes, size_t steps, const uint16_t *query,
			  const uint16_t *key, int32_t *tau, int32_t *length, rosa_flips *flips, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	struct batch batch;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (status)
		return status;
	if (!routes || !steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu routes of %zu steps; there must be at least one of each",
				 routes, steps);
	if (steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps; a stream holds at most %zu", steps, ROSA_MAX_STEPS);
	if (routes > SIZE_MAX / steps / (rules.bits + 2) / sizeof(int32_t) - 1)
		return rosa_fail(err, ROSA_EINVAL, "%zu routes of %zu steps do not fit into memory", routes, steps);
	if (!query || !key)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", query ? "key" : "query");
	status = rules_check_symbols("query", query, routes, steps, steps, 0, full.bits, err);
	if (!status)
		status = rules_check_symbols("key", key, routes, steps, steps, 0, full.bits, err);
	if (status)
		return status;
	batch = (struct batch){.rules = &rules,
			       .options = &full,
			       .routes = routes,
			       .steps = steps,
			       .query = query,
			       .key = key,
			       .tau = tau,
			       .length = length,
			       .flips = flips,
			       .workers = pool_threads(full.threads)};
	if (batch.workers > routes)
		batch.workers = (unsigned)routes;
	if (flips)
		*flips = (rosa_flips){.routes = 0};
	status = run_batch(&batch, err);
	if (status && flips)
		rosa_flips_free(flips);
	return status;
}

rosa_status rosa_flips_expand(const rosa_flips *flips, size_t route, size_t steps, int32_t *table, rosa_error *err)
{
	size_t bits;

	if (!flips || !table)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", flips ? "table" : "flips");
	if (route >= flips->routes)
		return rosa_fail(err, ROSA_EINVAL, "route %zu; the tables have %zu", route, flips->routes);
	bits = (size_t)flips->bits;
	for (size_t run = flips->first[route]; run < flips->first[route + 1]; run++) {
		size_t end = run + 1 < flips->first[route + 1] ? (size_t)flips->start[run + 1] : steps;

		if (end > steps)
			return rosa_fail(err, ROSA_EINVAL, "%zu steps are fewer than the tables were made for", steps);
		for (size_t t = (size_t)flips->start[run]; t < end; t++)
			memcpy(table + t * bits, flips->flip + run * bits, bits * sizeof(*table));
	}
	return ROSA_OK;
}

void rosa_flips_free(rosa_flips *flips)
{
	if (!flips)
		return;
	memory_free(&flips->allocator, flips->first);
	memory_free(&flips->allocator, flips->flip);
	*flips = (rosa_flips){.routes = 0};
}
