/*
 * Where destinations come from, for a text that grows: the past of one layer and one sequence.
 *
 * Retrieval (rosa_stream) keeps the query and key streams and answers with steps; what stood there is looked up here.
 * Of the values only the symbols are kept, 2 bytes per route and step. The other source, for whole sequences, is
 * lookup.h.
 */
#ifndef ROSATUNE_PAST_H
#define ROSATUNE_PAST_H

#include "rosa/places.h"

/* Value symbols are kept in blocks of so many steps, so that a growing text never moves what is there. */
#define PAST_BLOCK ((size_t)4096)

struct past {
	size_t routes, steps;
	rosa_stream *stream;
	uint16_t **blocks; /* [steps / PAST_BLOCK][routes][PAST_BLOCK] */
	size_t block_count;
};

rosa_status past_new(struct past *past, size_t routes, const rosa_options *options, rosa_error *err);
void past_free(struct past *past); /* safe on a zeroed one */

/* Append steps: symbols [routes][steps] of q, k and v. `found`, of the same shape, receives for each the value symbol
 * at its destination, with BACKEND_FOUND; 0 where nothing was found. */
rosa_status past_find(struct past *past, size_t steps, const uint16_t *q, const uint16_t *k, const uint16_t *v,
		      struct past_control control, uint32_t *found, rosa_error *err);

/* Bytes in use; all of them grow with the text. */
uint64_t past_bytes(const struct past *past);

/* For saving: the value symbols of one route, [steps]. */
void past_values(const struct past *past, size_t route, uint16_t *values);
/* For loading: a past of `steps` steps around a stream, which it owns from then on; its values are to be set. */
rosa_status past_restore(struct past *past, rosa_stream *stream, size_t routes, size_t steps, rosa_error *err);
void past_set_values(struct past *past, size_t route, const uint16_t *values);

#endif
