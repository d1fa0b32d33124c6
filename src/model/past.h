/* The adapter's past of one layer and one sequence: what retrieval searches, and what it reads. */
#ifndef ROSATUNE_PAST_H
#define ROSATUNE_PAST_H

#include "rosatune.h"

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

/* The next steps: symbols [routes][steps] of q, k and v. For every one the value symbol it reads (`found`) and whether
 * there is any (`hit`), in the same layout; `tau` is room for as many. */
rosa_status past_read(struct past *past, size_t steps, const uint16_t *q, const uint16_t *k, const uint16_t *v,
		      int32_t *tau, uint16_t *found, uint8_t *hit, rosa_error *err);

/* Bytes in use, all of them growing with the text. */
uint64_t past_bytes(const struct past *past);

/* Value symbols of one route, [steps], out and in: for saving. */
void past_values(const struct past *past, size_t route, uint16_t *values);
/* A past of `steps` steps from a stream, which it takes, and room for values, to be filled in by past_set_values. */
rosa_status past_restore(struct past *past, rosa_stream *stream, size_t routes, size_t steps, rosa_error *err);
void past_set_values(struct past *past, size_t route, const uint16_t *values);

#endif
