/*
 * Incremental retrieval for one source of one sequence: the symbol streams and the results of earlier steps.
 *
 * A rosa_stream keeps the query and key streams and returns places. A chain of more than one link also needs the
 * results without delay of every earlier step, because the link after place d is the result of step d - 1. They are
 * kept, 5 bytes per route and step. With a delay they come from a second stream, which has none. The other way to find
 * places, for whole sequences at once, is lookup.h.
 */
#pragma once

#include "rosa/places.h"

struct finder {
	rosa_options options;
	size_t routes, links, steps;
	rosa_stream *stream;
	rosa_stream *undelayed; /* NULL: there is no delay, or no chain */
	/* [block_count] what was found without delay, in blocks; none without a chain */
	struct finder_block **blocks;
	size_t block_count;
	int32_t *scratch; /* [2][routes][scratch_steps] */
	size_t scratch_steps;
};

/* `links` more than 1 only where the query is the key. `options` as rosa_stream_new takes them. */
rosa_status finder_new(struct finder *finder, const rosa_options *options, size_t routes, size_t links,
		       rosa_error *err);
void finder_free(struct finder *finder); /* safe on a zeroed one */

/* Append steps: symbols [routes][steps] of query and key, and find their places, for which `places` is reserved. A call
 * that fails leaves the finder as it was. */
rosa_status finder_find(struct finder *finder, size_t steps, const void *query, const void *key,
			struct past_control control, struct places *places, rosa_error *err);

/* Goes back to the first `steps` steps; more than there are is an error. On failure the finder is of no further use. */
rosa_status finder_rewind(struct finder *finder, size_t steps, rosa_error *err);

/* A copy of the first `steps` steps. On failure there is nothing to release. */
rosa_status finder_fork(const struct finder *finder, size_t steps, struct finder *copy, rosa_error *err);

/* Bytes in use; all of them grow with the text. */
uint64_t finder_bytes(const struct finder *finder);

/* For saving: everything as bytes, to be released with free(). */
rosa_status finder_save(const struct finder *finder, void **image, size_t *size, rosa_error *err);
/* A finder from such an image. ROSA_EFORMAT: it was not made with these options, routes, links and `steps` steps, or it
 * has been altered. */
rosa_status finder_load(struct finder *finder, const rosa_options *options, size_t routes, size_t links, size_t steps,
			const void *image, size_t size, rosa_error *err);
