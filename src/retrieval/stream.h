/* The inside of a stream, for the files that make one (stream.c, state.c), and what cuda_stream.c shares with it. */
#pragma once

#include "base/pool.h"
#include "retrieval/rules.h"

#include <stdatomic.h>

struct rosa_stream {
	struct route_rules rules;
	rosa_allocator allocator;
	unsigned threads;
	rosa_workers *workers; /* whose the pool is; NULL: its own */
	size_t routes, steps;
	bool flips;        /* counterfactuals have been asked for, so those of the current runs are kept alive */
	struct pool *pool; /* NULL with one thread */
	atomic_bool busy;  /* routes are taking steps: in a child of fork() this never ends */
	struct route *route;
};

/* A stream without steps. */
rosa_status stream_new(const struct route_rules *rules, const rosa_options *options, size_t routes,
		       rosa_stream **stream, rosa_error *err);

/* Refuses a stream that another thread was changing when the process was forked: its routes are half changed. */
rosa_status stream_check_idle(const rosa_stream *stream, rosa_error *err);

/* The arguments of the functions that describe a stream, on the host or on a device. */
rosa_status stream_info_check(const void *stream, const rosa_stream_info *info, rosa_error *err);

/* Do something for every route, on all threads. */
void stream_for_routes(rosa_stream *stream, pool_work *work, void *context);
