/*
 * Switches for the tests, not part of the interface and not exported from the shared library.
 *
 * A route starts on the chain index and moves to the ordered index when its streams turn out to be hostile; both give
 * the same answers. The tests pin one of the two, or have routes move at once, to compare them all.
 */
#pragma once

#include "rosatune.h"

typedef enum rosa_engine {
	ROSA_ENGINE_AUTO = 0,    /* move when the chain index has done too much work */
	ROSA_ENGINE_CHAINS = 1,  /* never move */
	ROSA_ENGINE_ORDERED = 2, /* ordered index from the first step */
	ROSA_ENGINE_EAGER = 3    /* move after a few steps, so that moving itself is tested on short streams */
} rosa_engine;

/* Takes effect for the steps pushed from now on; call it on a fresh stream. */
void rosa_stream_set_engine(rosa_stream *stream, rosa_engine engine);

/* rosa_retrieve() by an engine of choice. */
rosa_status rosa_retrieve_by(rosa_engine engine, const rosa_options *options, size_t routes, size_t steps,
			     const void *query, const void *key, int32_t *tau, int32_t *length, rosa_flips *flips,
			     rosa_error *err);
