/* A grid of settings over which a form of retrieval is compared with the library's engine and with the oracle. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* The retrieval under test: query and key are [routes][steps], so are tau and length; flips is [routes][steps][bits].
 * length and flips may be NULL. *handed receives the routes that were left to the library's engine. */
typedef rosa_status grid_retrieve(void *context, const rosa_options *options, size_t routes, size_t steps,
				  const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
				  size_t *handed, rosa_error *err);

/* Tries every kind of stream with every policy, folding on and off, `rounds` times with other bits, cuts, delays and
 * numbers of steps each; where the streams are short the oracle is asked, else the engine. Streams are as long as
 * `longest` at most; half of the settings want tables, if `tables`. Prints a line per kind, and the first differences.
 * Returns how many settings failed. */
size_t grid_run(grid_retrieve *retrieve, void *context, uint64_t seed, size_t rounds, size_t longest, bool tables);

/* Retrieval in pieces by a stream on a CUDA device, `context` being the rosa_cuda; without tables. The pieces are drawn
 * from the settings: all at once, single steps, pieces of one size, or of sizes that vary. */
grid_retrieve grid_pieces;
