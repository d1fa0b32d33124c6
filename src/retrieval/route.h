/*
 * A route: two symbol streams, their runs, and an index of the key's past. It takes steps and gives destinations.
 *
 * Everything else stands on this. Batch retrieval feeds a route all steps at once, streaming feeds it as they come; the
 * state after a number of steps does not depend on how they came, so both give the same answers.
 *
 * A route can be undone to an earlier step and can be rebuilt from its symbols, and does both by the same means: the
 * index is brought back to before the query run in question, and the steps from there on are taken again.
 */
#ifndef ROSATUNE_ROUTE_H
#define ROSATUNE_ROUTE_H

#include "retrieval/engine.h"
#include "retrieval/order_index.h"
#include "retrieval/starts.h"
#include "retrieval/tree_index.h"

struct route_rules {
	unsigned bits;
	rosa_policy policy;
	bool fold;
	uint32_t max_match; /* UINT32_MAX: no cut */
	rosa_engine engine;
	uint64_t
	    flips_skipped; /* of 2^32 query runs so many, by draw, get no counterfactuals but repeat tau; 0: none */
	uint64_t draw_seed;
};

struct route {
	struct contexts contexts;
	struct tree_index tree;
	struct order_index *order;
	uint64_t
	    *seen; /* beside it: a bit for each string of one symbol more than tables know that has occurred, by hash */
	unsigned seen_bits;
	bool ordered; /* the route has moved to the ordered index; of the other the tables are left */
	/* Where runs begin. What stays for long keeps both in little memory; what is scratch keeps the key's as a list,
	 * the first step of key run c at c, and -1, what "no context" leads to, at 0. */
	struct starts key_starts, query_starts;
	int32_t *start; /* NULL where the others are kept */
	size_t start_capacity;
	uint32_t steps, key_runs, query_runs;
	uint32_t indexed;     /* contexts in the index, 1 .. indexed */
	uint64_t work_limit;  /* leave the tree index when it has worked more */
	uint32_t roots_until; /* contexts for which the number of roots is settled */
	size_t room;          /* steps in all that there is memory for */
	uint64_t key_word;    /* last symbols of the key, newest in the highest bits */
	uint64_t ready_word;  /* the same for the context that waits to be indexed */
	uint64_t query_word;  /* last symbols of the query */
	uint16_t key_symbol, query_symbol;
	bool ready;        /* a context became readable, to be indexed with the next step */
	struct match best; /* for the current query run */
	bool has_flips;    /* ... and these are its counterfactuals */
	int32_t flips[ROSA_MAX_BITS];
};

/* Where results go; any pointer may be NULL. Run-level tables have a row a query run that begins within the steps. */
struct route_output {
	int32_t *tau, *length;                    /* [steps] */
	int32_t *step_flips;                      /* [steps][bits] */
	int32_t *run_start, *run_tau, *run_flips; /* [runs], [runs], [runs][bits] */
	size_t route;                             /* its number, for drawing */
};

/* Two empty streams; no memory yet. */
struct contexts contexts_for(unsigned bits, uint32_t max_match);

/* An empty route; no memory yet. */
void route_init(struct route *route, const struct route_rules *rules);

/* Make room so that `steps` more steps cannot fail. `keep_starts`: the route may be undone, copied or saved; the same
 * on every call. Where the whole length is known, `total` sizes the index for it; 0 lets it grow with the history.
 * False if memory is short; nothing is lost. */
bool route_reserve(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		   bool keep_starts, size_t total);

/* The same where it is known how many runs will begin within the steps. */
bool route_reserve_runs(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
			size_t steps, size_t key_runs, size_t query_runs, bool keep_starts, size_t total);

/* Take `steps` steps; room was made before. */
void route_push(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		const uint16_t *query, const uint16_t *key, const struct route_output *output);

/* Forget all steps, keep the memory. */
void route_clear(struct route *route);

/* Go back to the state after the first `steps` steps. `with_flips`: the tables of the run must be there again. */
void route_rewind(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  bool with_flips);

/* Copy a route that keeps its starts into one that owns nothing. */
bool route_copy(struct route *to, const struct route *from, const struct route_rules *rules,
		const rosa_allocator *allocator);

void route_free(struct route *route, const rosa_allocator *allocator);
size_t route_bytes(const struct route *route, unsigned bits);

#endif
