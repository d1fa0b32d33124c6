/*
 * The symbols that are measured on, when the program makes them itself.
 *
 * Made streams differ from route to route but not from run to run: two measurements with the same options have worked
 * on the same symbols.
 *
 * A history of a million steps of 512 routes would be 2 GB of symbols beside the index that is to be measured. So a
 * long history is made a piece at a time, each piece a stream of the same kind from another seed, one after the other.
 * It is not the stream that the kind would give in one: a period may change at the seam, and a kind that takes nothing
 * from the seed begins again. Within the first piece the two are the same.
 */
#include "cli/bench.h"

#include "cli/interrupt.h"
#include "eval/streams.h"
#include "retrieval/symbol_array.h"

#define SEED_STEP 1000003u /* from piece to piece; far from the small seeds that people choose */

/* Makes symbols of `narrow` bits into symbols of `bits` bits, spread over the range, in the same memory. */
static void spread(int bits, int narrow, size_t steps, void *symbols)
{
	if (bits <= ROSA_MAX_BITS) {
		if (narrow < bits)
			stream_spread(bits, steps, symbols);
		return;
	}
	/* from the end, since the wide ones overwrite narrow ones before them that are done */
	for (size_t t = steps; t-- > 0;)
		((uint32_t *)symbols)[t] = ((uint16_t *)symbols)[t] * 0x9e3779b1u & ((UINT32_C(1) << bits) - 1);
}

bool bench_make(const struct bench *bench, size_t piece, size_t steps, rosa_error *why)
{
	const struct symbol_pair *pair = &bench->pair;
	const int bits = (int)bench->retrieval.bits, all = bits < ROSA_MAX_BITS ? bits : ROSA_MAX_BITS;
	const int narrow = bench->alphabet_bits ? bench->alphabet_bits : all;
	/* An odd factor far from 1, so that routes of neighbouring seeds do not coincide. */
	uint64_t seed = (bench->seed + piece * SEED_STEP) * 0x9e3779b97f4a7c15u;

	for (size_t r = 0; r < pair->routes; r++) {
		if (interrupted())
			return refuse(why, "interrupted");
		/* wide symbols take twice the room: the narrow ones that they are made of lie at its beginning */
		uint16_t *query = (void *)((char *)pair->query + r * pair->steps * symbol_size(pair->bits));
		uint16_t *key = (void *)((char *)pair->key + r * pair->steps * symbol_size(pair->bits));

		stream_fill(bench->kind, narrow, seed + r, steps, query, key);
		spread(bits, narrow, steps, query);
		spread(bits, narrow, steps, key);
	}
	return true;
}
