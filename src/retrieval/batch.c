/*
 * Retrieval of whole streams at once.
 *
 * Every worker has one route's worth of index, used for one route after the other: it stays in the nearer caches, and
 * memory does not grow with the number of routes. The rows of the counterfactual tables are counted before anything is
 * looked up, so that all routes can write into one array.
 */
#include "retrieval/batch.h"
#include "base/pool.h"
#include "base/status.h"

#include <stdatomic.h>

struct batch {
	const struct route_rules *rules;
	const rosa_options *options;
	const struct batch_sink *sink;
	struct route *scratch; /* [workers]; each worker makes room by itself, since touching new memory takes long */
	size_t routes, steps;
	const void *query, *key;
	atomic_size_t done; /* routes */
	atomic_bool short_of_memory, bad_symbol, cancelled;
};

size_t batch_count_runs(const void *symbols, unsigned bits, size_t steps, bool fold)
{
	size_t runs = 1;

	if (!fold)
		return steps;
	for (size_t t = 1; t < steps; t++)
		runs += symbol_get(symbols, bits, t) != symbol_get(symbols, bits, t - 1);
	return runs;
}

/* Is there a reason to stop? On the calling thread the callback is asked; `steps` are those of its unfinished route. */
static bool stop(struct batch *batch, size_t steps, bool caller)
{
	const rosa_options *options = batch->options;

	if (atomic_load(&batch->short_of_memory) || atomic_load(&batch->bad_symbol) || atomic_load(&batch->cancelled))
		return true;
	if (caller && options->progress) {
		const uint64_t done = (uint64_t)atomic_load(&batch->done) * batch->steps + steps;

		if (options->progress(options->progress_context, done, (uint64_t)batch->routes * batch->steps))
			atomic_store(&batch->cancelled, true);
	}
	return atomic_load(&batch->cancelled);
}

static int stop_caller(void *context, size_t steps)
{
	return stop(context, steps, true);
}

static int stop_other(void *context, size_t steps)
{
	return stop(context, steps, false);
}

static int between_routes(void *context)
{
	return stop(context, 0, true);
}

static void retrieve_route(void *context, size_t r, unsigned worker)
{
	struct batch *batch = context;
	struct route *route = &batch->scratch[worker];
	struct route_output output = {
	    .route = r, .between = worker ? stop_other : stop_caller, .context = batch}; /* worker 0 is the caller */
	const rosa_allocator *allocator = &batch->options->allocator;
	const unsigned bits = batch->rules->bits;
	const void *query = symbols_from(batch->query, bits, r * batch->steps);
	const void *key = symbols_from(batch->key, bits, r * batch->steps);

	if (rules_check_symbols("", query, 1, batch->steps, 0, 0, bits, NULL) ||
	    rules_check_symbols("", key, 1, batch->steps, 0, 0, bits, NULL)) {
		atomic_store(&batch->bad_symbol, true);
		return;
	}
	batch->sink->begin(batch->sink->context, r, worker, &output);
	route_renew(route, batch->rules, allocator);
	if (!route_learn(route, allocator, batch->steps, query, key) ||
	    !route_reserve(route, batch->rules, allocator, batch->steps, false,
			   batch_count_runs(key, bits, batch->steps, batch->rules->fold))) {
		atomic_store(&batch->short_of_memory, true);
		return;
	}
	if (!route_push(route, batch->rules, allocator, batch->steps, query, key, &output))
		return;
	if (batch->sink->end)
		batch->sink->end(batch->sink->context, r, worker);
	atomic_fetch_add(&batch->done, 1);
}

rosa_status batch_check(const rosa_options *full, size_t routes, size_t steps, const void *query, const void *key,
			rosa_error *err)
{
	if (!routes || !steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu routes of %zu steps; there must be at least one of each",
				 routes, steps);
	if (steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps; a stream holds at most %zu", steps, ROSA_MAX_STEPS);
	if (routes > SIZE_MAX / steps / (size_t)(full->bits + 2) / sizeof(int32_t) - 1)
		return rosa_fail(err, ROSA_EINVAL, "%zu routes of %zu steps do not fit into memory", routes, steps);
	if (!query || !key)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", query ? "key" : "query");
	return ROSA_OK;
}

/* The check of all symbols that makes the message. */
static rosa_status check_symbols(const struct batch *batch, rosa_error *err)
{
	rosa_status status = rules_check_symbols("query", batch->query, batch->routes, batch->steps, batch->steps, 0,
						 batch->rules->bits, err);

	return status ? status
		      : rules_check_symbols("key", batch->key, batch->routes, batch->steps, batch->steps, 0,
					    batch->rules->bits, err);
}

unsigned batch_workers(const rosa_options *full, size_t routes)
{
	unsigned workers = pool_threads(full->threads);

	/* of kept ones any may take a route, and needs its scratch */
	return workers > routes && !full->workers ? (unsigned)routes : workers;
}

rosa_status batch_run(const rosa_options *full, const struct route_rules *rules, size_t routes, size_t steps,
		      const void *query, const void *key, unsigned workers, const struct batch_sink *sink,
		      rosa_error *err)
{
	const rosa_allocator *allocator = &full->allocator;
	struct batch batch = {.rules = rules,
			      .options = full,
			      .sink = sink,
			      .routes = routes,
			      .steps = steps,
			      .query = query,
			      .key = key};
	struct pool *pool = NULL;
	rosa_status status = ROSA_OK;

	batch.scratch = memory_resize(allocator, NULL, workers * sizeof(*batch.scratch));
	if (!batch.scratch)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u workers", workers);
	memset(batch.scratch, 0, workers * sizeof(*batch.scratch));
	for (unsigned i = 0; i < workers; i++)
		route_init(&batch.scratch[i], rules);
	pool = pool_for(full, workers);
	if (!pool) {
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", workers);
	} else {
		pool_run(pool, routes, retrieve_route, &batch, between_routes);
		/* the last route may have been another thread's */
		if (!atomic_load(&batch.cancelled) && workers > 1)
			between_routes(&batch);
		if (atomic_load(&batch.cancelled))
			status = rosa_fail(err, ROSA_ECANCELLED, "stopped by the progress callback");
		else if (atomic_load(&batch.short_of_memory))
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for the index of %zu steps", steps);
		else if (atomic_load(&batch.bad_symbol))
			status = check_symbols(&batch, err);
	}
	pool_done(full, pool);
	for (unsigned i = 0; i < workers; i++)
		route_free(&batch.scratch[i], allocator);
	memory_free(allocator, batch.scratch);
	return status;
}

/* rosa_retrieve's sink: everything goes where the caller wants it. */
struct arrays {
	size_t steps;
	int32_t *tau, *length;
	rosa_flips *flips;
};

static void into_arrays(void *context, size_t r, unsigned worker, struct route_output *output)
{
	const struct arrays *arrays = context;
	const rosa_flips *flips = arrays->flips;

	(void)worker;
	output->tau = arrays->tau ? arrays->tau + r * arrays->steps : NULL;
	output->length = arrays->length ? arrays->length + r * arrays->steps : NULL;
	if (flips) {
		output->run_start = flips->start + flips->first[r];
		output->run_tau = flips->tau + flips->first[r];
		output->run_flips = flips->flip + flips->first[r] * (size_t)flips->bits;
	}
}

static rosa_status allocate_flips(rosa_flips *flips, const rosa_options *full, size_t routes, size_t steps,
				  const void *query, rosa_error *err)
{
	const rosa_allocator *allocator = &full->allocator;
	const size_t bits = (size_t)full->bits;
	size_t runs = 0;

	*flips = (rosa_flips){.routes = routes, .bits = full->bits, .allocator = *allocator};
	flips->first = memory_resize(allocator, NULL, (routes + 1) * sizeof(*flips->first));
	if (!flips->first)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu routes", routes);
	for (size_t r = 0; r < routes; r++) {
		flips->first[r] = runs;
		runs += batch_count_runs(symbols_from(query, (unsigned)bits, r * steps), (unsigned)bits, steps,
					 full->fold != 0);
	}
	flips->first[routes] = runs;
	/* the three in one block, of which `flip` is the beginning */
	flips->flip = memory_scratch(allocator, runs * (bits + 2) * sizeof(*flips->flip));
	if (!flips->flip)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the tables of %zu query runs", runs);
	flips->start = flips->flip + runs * bits;
	flips->tau = flips->start + runs;
	return ROSA_OK;
}

rosa_status rosa_retrieve_by(rosa_engine engine, const rosa_options *options, size_t routes, size_t steps,
			     const void *query, const void *key, int32_t *tau, int32_t *length, rosa_flips *flips,
			     rosa_error *err)
{
	struct arrays arrays = {.steps = steps, .tau = tau, .length = length, .flips = flips};
	const struct batch_sink sink = {.context = &arrays, .begin = into_arrays};
	struct route_rules rules;
	rosa_options full;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = batch_check(&full, routes, steps, query, key, err);
	if (!status && flips)
		status = rules_check_flips(&rules, err);
	if (status)
		return status;
	rules.engine = engine;
	if (flips)
		status = allocate_flips(flips, &full, routes, steps, query, err);
	if (!status)
		status = batch_run(&full, &rules, routes, steps, query, key, batch_workers(&full, routes), &sink, err);
	if (status && flips)
		rosa_flips_free(flips);
	return status;
}

rosa_status rosa_retrieve(const rosa_options *options, size_t routes, size_t steps, const void *query, const void *key,
			  int32_t *tau, int32_t *length, rosa_flips *flips, rosa_error *err)
{
	return rosa_retrieve_by(ROSA_ENGINE_AUTO, options, routes, steps, query, key, tau, length, flips, err);
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
