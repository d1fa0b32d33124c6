/* The definition of retrieval, computed the slow way: what every engine is compared with. */
#pragma once

#include "rosatune.h"

/* One route. tau and length have `steps` entries; flips has steps * bits, at every step the table of the run it lies
 * in. Any output may be NULL. Of the options bits, policy, fold, max_match and delay are used. Symbols are uint32_t
 * where bits is above 16, else uint16_t. */
void oracle_route(const rosa_options *options, size_t steps, const void *query, const void *key, int32_t *tau,
		  int32_t *length, int32_t *flips);

/* The chain of one route whose query and key are `symbols`, straight from the definition: each link is looked up anew.
 * places and lengths are [links][steps]. Options as above. */
void oracle_chain(const rosa_options *options, int links, size_t steps, const void *symbols, int32_t *places,
		  int32_t *lengths);

/* The runs of one stream: their first steps and symbols, room for `steps` of each. Returns how many there are. */
size_t oracle_runs(const uint16_t *symbols, size_t steps, int fold, size_t *start, uint16_t *symbol);
