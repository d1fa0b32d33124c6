/*
 * What a search on a CUDA device is asked for, and where it keeps what: the same for all routes of a call.
 *
 * A route has three kinds of memory: its history, that is, its symbols and where runs begin; scratch, which only the
 * steps of this call need; and the index. In a batch each team has a piece of device memory with one after the other,
 * used for one route after the other. Numbers of runs and of steps are kept in 16 bits where a route has less than
 * 65,536 steps, else in 32: half the memory, and an index that fits into the memory of a multiprocessor.
 *
 * A stream, whose steps come in several calls, keeps history and index of every route. Both have room for a number of
 * steps; when that is used up, the room is doubled and the index built anew. Numbers have 32 bits.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_RUNGS  8   /* lengths of strings that are indexed, at most */
#define PLAN_EFFORT 512 /* work that a look-up is entitled to, on average (search_template.h) */
#define PLAN_VISIT  4   /* work of visiting a context, comparing a further word being 1 */

/* One route of a stream, between two calls. What is `new` counts from the next call on, unless this one is refused. */
struct search_state {
	uint32_t query_runs, key_runs;
	uint32_t new_query_runs, new_key_runs;
	uint32_t top;     /* the highest rung */
	uint32_t indexed; /* contexts in the chains */
	uint32_t gone;    /* nonzero: given up, the processor has it */
	struct {
		uint32_t context, run, length;
	} diagonal;     /* search_template.h, "Long matches" */
	uint64_t work;  /* so far, for the same file's "Hostile streams" */
	uint64_t index; /* where its rungs lie */
};

struct search_plan {
	/* the rules (rosa_options) */
	uint32_t bits;
	rosa_policy policy;
	bool fold;
	uint32_t max_match; /* UINT32_MAX: no cut */
	uint32_t delay;
	/* the symbols and the results; [routes][steps], a row being `stride` numbers after the one before it; tables
	 * [routes][steps][bits]; length and flips may be NULL */
	size_t routes, steps, stride;
	const void *query, *key;
	int32_t *tau, *length, *flips;
	/* outcomes: [routes], nonzero where the team gave up; the first symbols out of range, UINT64_MAX: none */
	uint8_t *given_up;
	unsigned long long *bad_query, *bad_key;
	/* how symbols are packed */
	uint32_t cell, cell_shift, word; /* bits of a symbol's cell, and their logarithm; cells of a word of 64 bits */
	/* the index */
	uint32_t rungs, slot_bits;
	uint32_t effort;         /* PLAN_EFFORT, or less for tests */
	uint32_t visit, further; /* PLAN_VISIT and 1; 0 where work is not counted, and so never too much */
	size_t room;             /* steps that history and index have room for */
	size_t done;             /* steps taken by the calls before; 0 in a batch */
	bool build;              /* the index is to be made from nothing; always in a batch */
	bool narrow;             /* numbers of 16 bits, which less than 65,536 steps can have */
	/* offsets in the history, and in the scratch */
	size_t key_words, query_words, key_start, key_count;
	size_t query_start, query_count;
	size_t history_bytes, scratch_bytes; /* of a route */
	size_t index_bytes;                  /* of one rung */
	size_t bytes;                        /* of a team, in a batch */
	/* of a stream: memory of the routes, one after the other; NULL in a batch */
	struct search_state *states;
	char *histories, *scratches, *indexes;
	uint32_t *counts; /* where the index is to be built: one per route and slot */
};

#ifdef __CUDACC__
#define PLAN_CODE static __host__ __device__ inline
#else
#define PLAN_CODE static inline
#endif

/* The length of the strings on a rung. Neighbouring lengths differ by half at most, so that a chain of one rung holds
 * few contexts that belong to the next one as well. */
PLAN_CODE uint32_t plan_rung(uint32_t rung)
{
	return rung < 4 ? rung + 1 : (rung & 1 ? 4u : 3u) << (rung / 2 - 1);
}

/* Lay out the memory. The rules, sizes, pointers and `narrow` have been filled in. */
static inline void plan_lay_out(struct search_plan *plan)
{
	const size_t line = 128, steps = plan->steps, room = plan->room;
	size_t number, words, at = 0;

	plan->cell_shift = plan->bits <= 4 ? 2 : plan->bits <= 8 ? 3 : plan->bits <= 16 ? 4 : 5;
	plan->cell = 1u << plan->cell_shift;
	plan->word = 64 / plan->cell;
	number = plan->narrow ? 2 : 4;
	/* a word of zeros before the first symbol, and one that is read, though not used, after the last */
	words = (room * plan->cell + 63) / 64 + 2;
	/* A slot for two contexts. At 16,384 steps four teams then fit into the memory of a multiprocessor. */
	plan->slot_bits = 4;
	while ((size_t)4 << plan->slot_bits <= room && plan->slot_bits < 30)
		plan->slot_bits++;
	plan->rungs = PLAN_RUNGS;
	/* strings are read from two words */
	while (plan_rung(plan->rungs - 1) > 2 * plan->word)
		plan->rungs--;
	/* room for the counts by which the rungs are chosen, too: 4 bytes a slot */
	plan->index_bytes = (((size_t)1 << plan->slot_bits) + room + 1) * number;
	if (plan->index_bytes < (size_t)4 << plan->slot_bits)
		plan->index_bytes = (size_t)4 << plan->slot_bits;
	plan->index_bytes = (plan->index_bytes + line - 1) / line * line;
#define PLAN_PUT(member, size) (plan->member = at, at += ((size_t)(size) + line - 1) / line * line)
	PLAN_PUT(key_words, words * 8);
	PLAN_PUT(query_words, words * 8);
	PLAN_PUT(key_start, (room + 1) * number);
	PLAN_PUT(key_count, room * number);
	plan->history_bytes = at;
	at = 0;
	PLAN_PUT(query_start, plan->flips ? (steps + 1) * number : 0);
	PLAN_PUT(query_count, steps * number);
	plan->scratch_bytes = at;
#undef PLAN_PUT
	plan->bytes = plan->history_bytes + plan->scratch_bytes + plan->index_bytes * plan->rungs;
}
