/* A long batch in passes over parts that fit into a cache; the essay is in passes.c. */
#ifndef ROSATUNE_PASSES_H
#define ROSATUNE_PASSES_H

#include "retrieval/route.h"

/* The scratch of one worker, kept from route to route. All zeros: none yet. */
struct passes {
	struct contexts contexts;   /* the packed streams, for comparisons beyond a word */
	struct tree_index compared; /* of this, what comparisons remember and the count of work */
	struct event *events;       /* of all parts, one part after the other; answers come to lie in the same memory */
	struct node *nodes;         /* of one part at a time */
	uint32_t *tables;           /* the same */
	uint32_t *shallow;          /* what is answered without parts */
	struct ledger *ledger;      /* what each part has */
	uint64_t limit;             /* of work */
	size_t event_room, node_room, table_room, shallow_room;
};

/* Take all steps of a route at once. False if that is not worth it, if it turned out to take too long, or if memory is
 * short: then the outputs hold nothing of use, and route_push() is to be asked. */
bool passes_take(struct passes *passes, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		 const uint16_t *query, const uint16_t *key, const struct route_output *output);

void passes_free(struct passes *passes, const rosa_allocator *allocator);

#endif
