/*
 * Batch retrieval: looks up all steps of all routes of whole sequences in one call, for training and
 * rosa_layer_forward.
 *
 * The places are kept for the backward pass, in the few bytes of destinations.h. For texts that grow there is finder.h.
 * Both give the same places, in the form that a layer gathers from (places.h).
 */
#pragma once

#include "rosa/places.h"

#include <stdbool.h>

/* The shape of a source over a batch: routes per sequence, steps of each, and links of the chain. */
struct lookup_shape {
	size_t count, routes, steps, links;
	bool lengths; /* are the lengths of matches kept? */
};

static inline bool lookup_shape_same(const struct lookup_shape *a, const struct lookup_shape *b)
{
	return a->count == b->count && a->routes == b->routes && a->steps == b->steps && a->links == b->links &&
	       a->lengths == b->lengths;
}

struct lookup {
	struct lookup_shape shape;
	int width;       /* bytes of a destination */
	void *read;      /* [links][count * routes][steps] destinations */
	uint8_t *length; /* the same, cut at PLACES_LONGEST; NULL: not kept */
	void *flips;     /* the tables of rosa_find; NULL until ROSA_QK_FLIPS fills them */
	size_t read_bytes, length_bytes, flips_bytes;
};

/* Memory for the places; that of tables depends on the symbols and comes with lookup_find. All of it is taken from
 * options.allocator. A lookup that failed is still to be freed. */
rosa_status lookup_reserve(const rosa_options *options, const struct lookup_shape *shape, struct lookup *lookup,
			   rosa_error *err);
void lookup_free(const rosa_options *options, struct lookup *lookup); /* safe on a zeroed one */
size_t lookup_bytes(const struct lookup *lookup);

/* Places of all steps, from symbols [count * routes][steps]; options.workers is set. `learning` as in rosa_find. Random
 * draws depend on seed, route and step. `seeds` NULL: learning.seed, the routes being those of the whole batch; else
 * every sequence has a seed of its own, and what it draws does not depend on the rest of the batch. */
rosa_status lookup_find(const rosa_options *options, const rosa_learning *learning, const uint64_t *seeds,
			const void *query, const void *key, struct lookup *lookup, rosa_error *err);

/* The places of one sequence of the batch, for which `places` has been reserved. False if one is neither -1 nor below
 * the steps. */
bool lookup_places(const struct lookup *lookup, size_t sequence, struct places *places);
