/*
 * Retrieval as the steps come.
 *
 * A push either happens on all routes or on none: symbols are checked and memory is taken before the first route moves,
 * and a route with room cannot fail.
 */
#include "retrieval/stream.h"
#include "base/status.h"

/* Steps between two looks at a route's memory. */
#define LOOK 64

/* Do something `count` times, on all threads. */
static void share_out(rosa_stream *stream, size_t count, pool_work *work, void *context)
{
	if (stream->pool)
		pool_run(stream->pool, count, work, context, NULL);
	else
		for (size_t i = 0; i < count; i++)
			work(context, i, 0);
}

void stream_for_routes(rosa_stream *stream, pool_work *work, void *context)
{
	share_out(stream, stream->routes, work, context);
}

rosa_status stream_new(const struct route_rules *rules, const rosa_options *options, size_t routes,
		       rosa_stream **stream, rosa_error *err)
{
	const rosa_allocator *allocator = &options->allocator;
	rosa_stream *new;

	*stream = NULL;
	if (!routes || routes > SIZE_MAX / sizeof(struct route))
		return rosa_fail(err, ROSA_EINVAL, "%zu routes; a stream has at least one and must fit into memory",
				 routes);
	new = memory_resize(allocator, NULL, sizeof(*new));
	if (!new)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a stream");
	*new = (rosa_stream){.rules = *rules, .allocator = *allocator, .workers = options->workers, .routes = routes};
	new->threads = pool_threads(options->threads);
	new->route = memory_resize(allocator, NULL, routes * sizeof(*new->route));
	if (!new->route) {
		memory_free(allocator, new);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes", routes);
	}
	for (size_t r = 0; r < routes; r++)
		route_init(&new->route[r], rules);
	if (new->threads > 1) {
		new->pool = pool_for(options, new->threads);
		if (!new->pool) {
			rosa_stream_free(new);
			return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", pool_threads(options->threads));
		}
	}
	*stream = new;
	return ROSA_OK;
}

rosa_status rosa_stream_new(const rosa_options *options, size_t routes, rosa_stream **stream, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	rosa_status status;

	if (!options || !stream)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", options ? "stream" : "options");
	*stream = NULL;
	status = rules_from_options(options, &full, &rules, err);
	return status ? status : stream_new(&rules, &full, routes, stream, err);
}

void rosa_stream_free(rosa_stream *stream)
{
	rosa_allocator allocator;

	if (!stream)
		return;
	allocator = stream->allocator;
	if (!stream->workers)
		pool_free(stream->pool, &allocator);
	for (size_t r = 0; r < stream->routes; r++)
		route_free(&stream->route[r], &allocator);
	memory_free(&allocator, stream->route);
	memory_free(&allocator, stream);
}

rosa_status stream_check_idle(const rosa_stream *stream, rosa_error *err)
{
	if (!atomic_load(&stream->busy))
		return ROSA_OK;
	return rosa_fail(
	    err, ROSA_EINVAL,
	    "the stream is being changed, or was when this process was forked; use it from one thread at a "
	    "time, and fork() between two calls");
}

struct push {
	rosa_stream *stream;
	const void *query, *key;
	size_t steps, stride;
	int32_t *tau, *length, *flips;
	size_t group; /* routes handed to a worker at a time */
};

/* Route-steps that are worth waking a worker for. */
#define GROUP 32

/* All routes to a worker that is alone, since the first routes of a group find their memory cold; else a quarter of its
 * share, since workers wake at different times. */
static size_t group_size(const rosa_stream *stream, size_t steps)
{
	const size_t fair = stream->routes / (4 * stream->threads), least = (GROUP + steps - 1) / steps;

	return stream->threads == 1 ? stream->routes : fair < least ? least : fair;
}

/* The symbols of one route. */
static const void *row_of(const struct push *push, const void *symbols, size_t r)
{
	return symbols_from(symbols, push->stream->rules.bits, r * push->stride);
}

static void push_route(const struct push *push, size_t r)
{
	rosa_stream *stream = push->stream;
	struct route_output output = {
	    .tau = push->tau ? push->tau + r * push->stride : NULL,
	    .length = push->length ? push->length + r * push->stride : NULL,
	    .step_flips = push->flips ? push->flips + r * push->steps * stream->rules.bits : NULL,
	};

	route_push(&stream->route[r], &stream->rules, &stream->allocator, push->steps, row_of(push, push->query, r),
		   row_of(push, push->key, r), &output);
}

/* A group of routes. Where each takes a single step, memory is prefetched for some of them together. */
static void push_group(void *context, size_t group, unsigned worker)
{
	const struct push *push = context;
	const rosa_stream *stream = push->stream;
	const size_t begin = group * push->group, left = stream->routes - begin;
	const size_t end = begin + (left < push->group ? left : push->group);

	(void)worker;
	for (size_t from = begin; from < end && push->steps == 1; from += ROUTE_AHEAD) {
		const size_t to = from + ROUTE_AHEAD < end ? from + ROUTE_AHEAD : end;

		route_prefetch(&stream->route[from], &stream->rules, to - from, row_of(push, push->query, from),
			       push->stride);
		for (size_t r = from; r < to; r++)
			push_route(push, r);
	}
	for (size_t r = begin; r < end && push->steps > 1; r++)
		push_route(push, r);
}

/* Room for `steps` more steps on all routes. Routes are alike, so their arrays would all grow in the same step, and
 * that step would be slow. Each is therefore given room for a while when it is its turn, a few routes per step. */
static rosa_status make_room(const struct push *push, rosa_error *err)
{
	rosa_stream *const stream = push->stream;
	const size_t steps = push->steps;

	for (size_t r = 0; r < stream->routes; r++) {
		struct route *route = &stream->route[r];
		size_t need = steps;

		if (!route_learn(route, &stream->allocator, steps, row_of(push, push->query, r),
				 row_of(push, push->key, r)))
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the symbols of route %zu", r);
		if (stream->steps % LOOK == r % LOOK)
			need += LOOK + stream->steps / 32;
		else if (stream->steps + steps <= route->room)
			continue;
		if (!route_reserve(route, &stream->rules, &stream->allocator, need, true, 0) &&
		    (need == steps || !route_reserve(route, &stream->rules, &stream->allocator, steps, true, 0)))
			return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu more steps of route %zu", steps, r);
	}
	return ROSA_OK;
}

/* A table cannot be given for a run that began when none were asked for. */
static rosa_status check_flips(const rosa_stream *stream, const void *query, size_t stride, rosa_error *err)
{
	const unsigned bits = stream->rules.bits;
	const rosa_status status = rules_check_flips(&stream->rules, err);

	if (status)
		return status;
	if (!stream->steps || !stream->rules.fold)
		return ROSA_OK;
	for (size_t r = 0; r < stream->routes; r++)
		if (symbol_get(query, bits, r * stride) ==
			alphabet_symbol(&stream->route[r].alphabet, stream->route[r].at.query_symbol) &&
		    !stream->route[r].has_flips)
			return rosa_fail(err, ROSA_EINVAL,
					 "the query run of route %zu at step %zu began in a push without flips; "
					 "ask for flips from the first step on",
					 r, stream->steps);
	return ROSA_OK;
}

rosa_status rosa_stream_push(rosa_stream *stream, size_t steps, const void *query, const void *key, size_t stride,
			     int32_t *tau, int32_t *length, int32_t *flips, rosa_error *err)
{
	struct push push = {stream, query, key, steps, stride ? stride : steps, tau, length, flips, 0};
	rosa_status status;

	if (!stream || !query || !key)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", !stream ? "stream" : query ? "key" : "query");
	status = stream_check_idle(stream, err);
	if (status)
		return status;
	if (!steps)
		return rosa_fail(err, ROSA_EINVAL, "0 steps; push at least one");
	if (push.stride < steps)
		return rosa_fail(err, ROSA_EINVAL, "stride %zu is less than the %zu steps of a row", stride, steps);
	if (steps > ROSA_MAX_STEPS - stream->steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps after %zu; a stream holds at most %zu", steps,
				 stream->steps, ROSA_MAX_STEPS);
	status = rules_check_symbols("query", query, stream->routes, steps, push.stride, stream->steps,
				     stream->rules.bits, err);
	if (!status)
		status = rules_check_symbols("key", key, stream->routes, steps, push.stride, stream->steps,
					     stream->rules.bits, err);
	if (!status && flips)
		status = check_flips(stream, query, push.stride, err);
	if (status)
		return status;
	atomic_store(&stream->busy, true);
	status = make_room(&push, err);
	if (!status) {
		push.group = group_size(stream, steps);
		share_out(stream, (stream->routes + push.group - 1) / push.group, push_group, &push);
		stream->steps += steps;
		stream->flips |= flips != NULL;
	}
	atomic_store(&stream->busy, false);
	return status;
}

rosa_status rosa_stream_fork(const rosa_stream *stream, rosa_stream **copy, rosa_error *err)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_status status;

	if (!stream || !copy)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", stream ? "copy" : "stream");
	status = stream_check_idle(stream, err);
	if (status)
		return status;
	options.allocator = stream->allocator;
	options.threads = (int)stream->threads;
	options.workers = stream->workers;
	status = stream_new(&stream->rules, &options, stream->routes, copy, err);
	if (status)
		return status;
	(*copy)->steps = stream->steps;
	(*copy)->flips = stream->flips;
	for (size_t r = 0; r < stream->routes; r++)
		if (!route_copy(&(*copy)->route[r], &stream->route[r], &stream->rules, &stream->allocator)) {
			rosa_stream_free(*copy);
			*copy = NULL;
			return rosa_fail(err, ROSA_ENOMEM, "no memory for a copy of route %zu", r);
		}
	return ROSA_OK;
}

struct rewind {
	rosa_stream *stream;
	size_t steps;
};

static void rewind_route(void *context, size_t r, unsigned worker)
{
	const struct rewind *rewind = context;
	rosa_stream *stream = rewind->stream;

	(void)worker;
	route_rewind(&stream->route[r], &stream->rules, &stream->allocator, rewind->steps, stream->flips);
}

rosa_status rosa_stream_rewind(rosa_stream *stream, size_t steps, rosa_error *err)
{
	struct rewind rewind = {stream, steps};
	rosa_status status;

	if (!stream)
		return rosa_fail(err, ROSA_EINVAL, "stream is NULL");
	status = stream_check_idle(stream, err);
	if (status)
		return status;
	if (steps > stream->steps)
		return rosa_fail(err, ROSA_EINVAL, "cannot rewind to step %zu: the stream has %zu", steps,
				 stream->steps);
	atomic_store(&stream->busy, true);
	stream_for_routes(stream, rewind_route, &rewind);
	stream->steps = steps;
	atomic_store(&stream->busy, false);
	return ROSA_OK;
}

rosa_status stream_info_check(const void *stream, const rosa_stream_info *info, rosa_error *err)
{
	if (!stream || !info)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", stream ? "info" : "stream");
	if (info->size < offsetof(rosa_stream_info, routes) + sizeof(info->routes))
		return rosa_fail(err, ROSA_EINVAL, "info.size is %zu; set it to sizeof(rosa_stream_info), %zu",
				 info->size, sizeof(*info));
	return ROSA_OK;
}

rosa_status rosa_stream_describe(const rosa_stream *stream, rosa_stream_info *info, rosa_error *err)
{
	rosa_stream_info full;
	rosa_status status = stream_info_check(stream, info, err);

	if (status)
		return status;
	full = (rosa_stream_info){
	    .size = info->size,
	    .routes = stream->routes,
	    .steps = stream->steps,
	    .bits = (int)stream->rules.bits,
	    .policy = stream->rules.policy,
	    .fold = stream->rules.fold,
	    .max_match = stream->rules.max_match == UINT32_MAX ? 0 : stream->rules.max_match,
	    .bytes = sizeof(*stream),
	    .delay = stream->rules.delay,
	};
	for (size_t r = 0; r < stream->routes; r++) {
		const struct route *route = &stream->route[r];

		full.key_runs += route->at.key_runs;
		full.query_runs += route->at.query_runs;
		full.bytes += route_bytes(route);
		full.ordered += route->ordered;
	}
	memcpy(info, &full, info->size < sizeof(full) ? info->size : sizeof(full));
	return ROSA_OK;
}

void rosa_stream_set_engine(rosa_stream *stream, rosa_engine engine)
{
	stream->rules.engine = engine;
}
