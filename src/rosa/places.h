/*
 * What retrieval found, for some steps of one source: places, each a step of the past with the length of its match.
 *
 * A source gives one place to each of its routes at each step, or a chain of them: the place found, the place that had
 * been found there, and so on. The i-th places of the chains are called link i.
 */
#pragma once

#include "rosatune.h"

/* What is read. The last two are controls: a memory shows in what they lose. */
enum past_reads {
	READS_FOUND,   /* the values at the places found */
	READS_NOTHING, /* nothing: no step finds anything */
	READS_RANDOM   /* each place is replaced by a uniformly drawn earlier step, as old as the delay wants */
};

struct past_control {
	enum past_reads reads;
	uint64_t seed; /* random reads are a function of seed, link, route and step */
};

#define PLACES_LONGEST 255 /* longer matches count as this long */

struct places {
	size_t links, routes, steps;
	int32_t *tau;    /* [links][routes][steps]; -1: nothing found */
	uint8_t *length; /* the same: of the match, in runs, at most PLACES_LONGEST; 0 where nothing was found */
	size_t room;     /* places that the memory holds */
};

/* Memory for this many places, none of them set. A failed call leaves `places` to be freed. */
rosa_status places_reserve(struct places *places, size_t links, size_t routes, size_t steps, rosa_error *err);
void places_free(struct places *places); /* safe on a zeroed one */

/* Replace the places as a control wants it; step 0 of them is step `first` of the text. */
void places_control(struct places *places, struct past_control control, size_t first, uint32_t delay);
