/*
 * A route: two symbol streams, their runs, and an index of the key's past. It takes steps and gives destinations.
 *
 * With a delay of D steps both streams still come together, and the key is kept up to its last step, but its contexts
 * become candidates D steps later: at step t by what the key was at step t - D.
 *
 * Batch retrieval passes all steps in one call, streaming in several. The state depends only on the steps so far, not
 * on how they were divided into calls, so both give the same results.
 *
 *   route.c         the step itself: fold, index, find, emit
 *   route_push.c    pushing: steps of symbols become pieces of codes
 *   route_index.c   which index a route uses, and how it is laid out
 *   route_ahead.c   prefetching
 *   route_memory.c  room for steps, copies, and going back
 *
 * A route starts on the chain index. When its streams make that work too much, it moves to the ordered index, and stays
 * there until it is emptied.
 */
#pragma once

#include "retrieval/alphabet.h"
#include "retrieval/chain_index.h"
#include "retrieval/engine.h"
#include "retrieval/order_index.h"
#include "retrieval/starts.h"

struct route_rules {
	unsigned bits;
	rosa_policy policy;
	bool fold;
	uint32_t max_match; /* UINT32_MAX: no cut */
	rosa_engine engine;
	/* Of 2^32 query runs so many, by draw, get no counterfactuals but repeat tau; 0: none. */
	uint64_t flips_skipped;
	uint64_t draw_seed;
	uint32_t delay; /* steps that the key is seen late */
};

/* What changes from step to step. The step works on a copy: stores to the outputs cannot touch it, so that the compiler
 * may keep it in registers. */
struct cursor {
	uint64_t key_word;   /* last symbols of the key, newest in the highest bits */
	uint64_t ready_word; /* the same for the context that waits to be indexed */
	uint64_t query_word; /* last symbols of the query */
	uint32_t key_runs, query_runs;
	uint32_t indexed; /* contexts in the index, 1 .. indexed */
	uint32_t key_symbol, query_symbol;
	struct match best; /* for the current query run; length ROUTE_UNKNOWN: not known */
	uint32_t answered; /* a context, and the destination that it leads to; 0 leads to -1 */
	int32_t answer;
	/* A context became a candidate, to be indexed with the next look-up. With a delay that is found out at the
	 * step itself. */
	bool ready;
};

/* Symbols are kept as codes of the alphabet; `contexts.bits` is the width of a code. */
struct route {
	struct alphabet alphabet;
	struct contexts contexts;
	struct chain_index chains;
	struct order_index *order;
	bool ordered; /* the route has moved to the ordered index; of the other only the tables are left */
	/* Where runs begin. A stream keeps both in little memory. Where the length is known, in a batch, there is a
	 * list instead: the first step of key run c at c, and -1, what "no context" leads to, at 0. */
	struct starts key_starts, query_starts;
	int32_t *start; /* NULL where the others are kept */
	size_t start_capacity;
	uint32_t steps;
	uint64_t work_allowed;   /* switch to the ordered index once contexts.work exceeds this */
	uint64_t work_laid_out;  /* contexts.work, and look-ups, when the index was laid out last */
	uint64_t asked_laid_out; /* (see route_adapt()) */
	uint32_t laid_out_until; /* contexts until which the layout is not looked at again */
	size_t room;             /* steps in all that there is memory for */
	struct cursor at;
	bool has_flips; /* these are the counterfactuals of the current query run */
	int32_t flips[ROSA_MAX_BITS];
};

#define ROUTE_UNKNOWN UINT32_MAX

/* Where results go; any pointer may be NULL. Run-level tables have a row per query run that begins within the steps. */
struct route_output {
	int32_t *tau, *length;                    /* [steps] */
	int32_t *step_flips;                      /* [steps][bits] */
	int32_t *run_start, *run_tau, *run_flips; /* [runs], [runs], [runs][bits] */
	size_t route;                             /* its number, for drawing */
	/* called every few thousand steps with the number taken so far; nonzero: take no more */
	int (*between)(void *context, size_t steps);
	void *context;
};

/* An empty route; no memory yet. */
void route_init(struct route *route, const struct route_rules *rules);

/* Give codes to the symbols of steps to come. False if memory is short; nothing is lost. */
bool route_learn(struct route *route, const rosa_allocator *allocator, size_t steps, const void *query,
		 const void *key);

/* Make room so that `steps` more steps cannot fail; their symbols were learnt. `keep_starts`: keep the starts of runs,
 * which rewind, copy and save need; the same value in every call for a route. Where the whole length is known, `total`
 * sizes the index for it; 0 lets it grow with the history. False if memory is short; nothing is lost. */
bool route_reserve(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		   bool keep_starts, size_t total);

/* The same where it is known how many runs will begin within the steps. */
bool route_reserve_runs(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
			size_t steps, size_t key_runs, size_t query_runs, bool keep_starts, size_t total);

/* Take `steps` steps; room was made before. False if `between` stopped it: the route is then of no use. */
bool route_push(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		const void *query, const void *key, const struct route_output *output);

/* Bring the memory that the next single step of these routes will need into the caches. `query` has their symbols,
 * `stride` apart. No more than ROUTE_AHEAD routes at a time. */
#define ROUTE_AHEAD 16

void route_prefetch(const struct route *route, const struct route_rules *rules, size_t routes, const void *query,
		    size_t stride);

/* Forget all steps and the alphabet, keep the memory: the next stream is another one. */
void route_renew(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator);

/* Go back to the state after the first `steps` steps. `with_flips`: the tables of the run must be there again. */
void route_rewind(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  bool with_flips);

/* Copy a route that keeps its starts into one that owns nothing. */
bool route_copy(struct route *to, const struct route *from, const struct route_rules *rules,
		const rosa_allocator *allocator);

void route_free(struct route *route, const rosa_allocator *allocator);
size_t route_bytes(const struct route *route);

/* ---- between the files of a route ---- */

/* Take steps, given as codes, until all are taken or the index has to be looked at; how many were. */
size_t route_take(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  const void *query, const void *key, const struct route_output *output);

/* Bring the roots and tables that the next steps of one route need, given as codes, into the caches. */
void route_prefetch_steps(const struct route *route, const struct route_rules *rules, bool flips, size_t steps,
			  const void *query, const void *key);

/* Before `steps` steps: what they may work. */
void route_allow(struct route *route, const struct route_rules *rules, size_t steps);
/* After some steps: more roots for more contexts, more symbols for long chains, or the ordered index. */
void route_adapt(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator);
/* Move to the ordered index. False if memory is short. */
bool route_move(struct route *route, const rosa_allocator *allocator);
/* The chains gave up on a look-up: move, or, where there is no memory to, let them take their time. */
void route_settle(struct route *route, const rosa_allocator *allocator);
/* Fill the index again with the first `contexts` contexts. */
void route_refill(struct route *route, uint32_t contexts);
/* The best match of the first `runs` runs of the query in the ordered index, from nothing. */
struct match route_match_anew(const struct route *route, uint32_t runs);
