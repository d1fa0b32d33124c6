/*
 * The ordered index: the same answers as the chain index, at a cost that no stream can drive up.
 *
 * It keeps all contexts of the key in the order of their symbols, last symbol first, as one list in the leaves of a
 * B+-tree, and with every context how many symbols it shares with its left neighbour. Three ideas make it independent
 * of the length of matches and of the order in which contexts arrive:
 *
 * 1. No context is ever compared symbol by symbol. Context c+1 is context c and one more symbol s, so its place is
 *    beside the successors of those neighbours of c that are followed by s as well: look left and right from c for the
 *    nearest context followed by s. What c shares with it is the least of the shared lengths passed on the way.
 *
 * 2. The query is never inserted. If b is a context that shares as much with the query as any, l symbols, then every
 *    other context f shares with it the lesser of l and what f shares with b. So b stands for the query, and the query
 *    followed by a symbol, flipped or not, is looked for from b as a new context would be.
 *
 * 3. Of the contexts that share as much as the best, a stretch of neighbours, the newest is wanted. Inner nodes know,
 *    for each subtree, the least shared length, the newest context and the set of following symbols, so stretches and
 *    the way to a symbol are crossed a subtree at a time.
 *
 * A step takes O(log n) node visits for symbols of up to six bits, whose sets are exact. Wider symbols share the bits
 * of a set, and a subtree may then be entered in vain.
 *
 * It costs about 27 bytes per context and more time than a table does on streams that are not hostile. So a route moves
 * here only when its streams call for it, and keeps the tables of the chain index: they answer short matches, and
 * know of every symbol whether it has occurred.
 */
#pragma once

#include "base/cpu.h"
#include "retrieval/contexts.h"

#define ORDER_NOT_KNOWN UINT32_MAX
#define ORDER_EXACT     6                 /* bits of the widest symbols that sets tell apart */
#define ORDER_LANES     32                /* of the vectors that nodes are read as: a bit of a 32-bit mask each */
#define ORDER_FANOUT    (ORDER_LANES - 1) /* entries of a node; in the last lane is what else there is to know of it */

/* Entry i is context id[i]; it shares low[i] symbols with the entry before it, and symbol[i] follows it. */
struct order_leaf {
	uint32_t id[ORDER_FANOUT];
	uint32_t parent;
	uint32_t low[ORDER_FANOUT];
	uint16_t place; /* among the parent's children */
	uint16_t count;
	uint32_t symbol[ORDER_LANES];
};

/* The same of subtrees: low is the least of its entries', newest the greatest id, symbols the set of following symbols,
 * of which a search for one symbol needs one half. */
struct order_inner {
	uint32_t id[ORDER_FANOUT];
	uint32_t parent; /* UINT32_MAX: the root */
	uint32_t low[ORDER_FANOUT];
	uint16_t place, count;
	uint32_t newest[ORDER_FANOUT];
	uint32_t height; /* 1: children are leaves */
	uint32_t symbols[2][ORDER_LANES];
};

_Static_assert(sizeof(struct order_leaf) % MEMORY_LINE == 0 && sizeof(struct order_inner) % MEMORY_LINE == 0,
	       "nodes are whole lines of the cache");

struct order_index {
	/* compiled for the processor at hand */
	uint32_t (*shared)(const struct order_index *, uint32_t, uint32_t);
	uint32_t (*find)(const struct order_index *, struct match, const uint32_t *, uint32_t, uint32_t, uint32_t,
			 uint32_t *);
	void (*insert)(struct order_index *, unsigned, uint32_t);
	struct order_leaf *leaf;
	struct order_inner *inner;
	uint32_t *leaf_of; /* of every context, 0 (the empty one) to count */
	size_t leaf_capacity, inner_capacity, context_capacity;
	uint32_t leaves, inners, root;
	uint32_t count;   /* the newest context */
	uint32_t place;   /* its entry in its leaf, ORDER_NOT_KNOWN if that has to be looked for */
	uint64_t symbols; /* the set of all following symbols */
	uint32_t sparse;  /* leaves that removals left less than half full */
};

/* An index of the empty context alone. NULL if memory is short. */
struct order_index *order_new(const rosa_allocator *allocator);
void order_free(struct order_index *order, const rosa_allocator *allocator);
struct order_index *order_copy(const struct order_index *from, const rosa_allocator *allocator);
/* Use the variant for another instruction set, which must be available. */
void order_use(struct order_index *order, rosa_isa isa);
/* Room for `contexts` contexts in all. */
bool order_reserve(struct order_index *order, const rosa_allocator *allocator, size_t contexts);
size_t order_bytes(const struct order_index *order);
/* Back to the empty context alone; the memory stays. */
void order_clear(struct order_index *order);

/* Add the next context, the last one followed by `symbol`; room was made before. `relative` is any context that ends in
 * the same symbol, 0 if there is none. */
void order_insert(struct order_index *order, unsigned symbol, uint32_t relative);
/* Take the newest context out again. */
void order_remove(struct order_index *order);

/* `past` is the best match of the query without its last symbol ({0, 0} if it has none). For each lane in the set
 * `deep`: find the best match of the query with symbols[lane] as its last, cut at `cap`, if it is longer than `known`
 * symbols. Where there is such a match, found[lane] is overwritten with it. Returns the length of lane 0's, 0 if that
 * was not overwritten. */
uint32_t order_find(const struct order_index *order, struct match past, const uint32_t *symbols, uint32_t cap,
		    uint32_t known, uint32_t deep, uint32_t *found);

/* How many symbols two different contexts share. */
uint32_t order_shared(const struct order_index *order, uint32_t a, uint32_t b);
