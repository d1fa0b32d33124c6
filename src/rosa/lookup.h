/*
 * Where destinations come from, for whole sequences: every step of every route is looked up at once.
 *
 * What is found is kept for the backward pass, in the few bytes of destinations.h. The other source, for texts that
 * grow, is past.h. Both end in the same form, an array of what each route found (BACKEND_FOUND), which is all that the
 * layer reads from.
 */
#ifndef ROSATUNE_LOOKUP_H
#define ROSATUNE_LOOKUP_H

#include "rosatune.h"

#include <stdbool.h>

struct pool;

/* The shape of a batch: routes per sequence, and steps of each. */
struct lookup_shape {
	size_t count, routes, steps;
};

struct lookup {
	void *read;  /* [count * routes][steps] destinations of rosa_width(steps) bytes */
	void *flips; /* the tables of rosa_find; NULL until ROSA_QK_FLIPS fills them */
	size_t read_bytes, flips_bytes;
};

/* Memory for the destinations; that of tables depends on the symbols and comes with lookup_find. All of it is taken
 * from options.allocator. A lookup that failed is still to be freed. */
rosa_status lookup_reserve(const rosa_options *options, const struct lookup_shape *shape, struct lookup *lookup,
			   rosa_error *err);
void lookup_free(const rosa_options *options, struct lookup *lookup); /* safe on a zeroed one */

/* Destinations of all steps, from symbols [count * routes][steps]. `learning` as in rosa_find. Random draws depend on
 * seed, route and step. `seeds` NULL: learning.seed, the routes being those of the whole batch; else every sequence has
 * a seed of its own, and what it draws does not depend on the rest of the batch. */
rosa_status lookup_find(const rosa_options *options, const rosa_learning *learning, const uint64_t *seeds,
			const struct lookup_shape *shape, const uint16_t *query, const uint16_t *key,
			struct lookup *lookup, rosa_error *err);

/* found[row][t] = the value symbol at the destination, with BACKEND_FOUND; 0 where that is -1. `read` is
 * [rows][steps], its destinations of rosa_width(value_steps) bytes; `value` is [rows][value_steps]. False if a
 * destination is not below value_steps. */
bool lookup_gather(struct pool *pool, size_t rows, size_t steps, const void *read, const uint16_t *value,
		   size_t value_steps, uint32_t *found);

#endif
