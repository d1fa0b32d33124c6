/*
 * The tree index: which earlier context shares the longest suffix with this one, and which of those is the newest?
 *
 * A context is what precedes and includes a key run, read backwards. The index keeps all contexts 1..n (context c ends
 * with key run c-1; 0 is nobody) in binary search trees ordered by their symbols, last symbol first. Two facts make
 * this enough:
 *
 *   - Contexts that share at least l symbols with a query are neighbours in that order, so the walk towards the query's
 *     own place meets the longest match.
 *   - Every tree is a heap by age as well, the newest context at its root. Of the contexts that share l symbols with
 * the query the newest is above the others, so the first context the walk meets with the greatest length is the newest
 *     one of that length: the tie rule costs nothing. A context is inserted as the new root, cutting the old tree in
 * two along one path. The shape is a function of the contexts alone (it is their Cartesian tree), which is what lets
 * the newest be removed again by merging its two subtrees.
 *
 * A context costs two child links and its symbol. There is no suffix automaton: its states, twice as many as symbols
 * and each with a transition for every letter, are what makes the usual way slow and large.
 *
 * Near the root trees are replaced by tables. The top `root_bits` bits of a context's word pick one of 2^root_bits
 * trees, and for each whole number of symbols l that fits into these bits a table holds the newest context for every
 * string of l symbols. A match of at most that many symbols is one load; only longer ones walk.
 *
 * Wide symbols leave no bits for a second one, and then a symbol that is frequent, as some words of every text are, has
 * all its contexts in one deep tree. Where the whole length is known, trees are therefore picked by a hash of the last
 * two symbols, beside a table of single ones. Which other contexts are in a tree does not matter as long as all that
 * share two symbols are. An index that grows cuts its trees along their order, so that a hash must be an order too
 * (tree_order()); it goes over to this when it has as many contexts as there are symbols, and the table is worth its
 * memory.
 *
 * An index that grows and lives long is laid out for little memory, and for few lines of the cache on the way of a
 * single look-up, where one for a batch is laid out for a query and its flips (enum tree_use). Links have 24 bits as
 * long as that is enough, and a node 48. Nodes of wide symbols have 64 and a tag in the 16 that are left: the bits of
 * the context's word that follow those its tree was picked by. It tells most contexts of a tree apart, so that a hop is
 * one line instead of two. The roots lie in the order of their strings, so that those of one string of `levels` symbols
 * are neighbours: the newest of them is the newest of the string, and a table would say the same.
 *
 * On most streams a walk compares one word of packed symbols a node. Matches longer than a word are compared word by
 * word; a long match usually continues the one of the step before, so the length found last on the same diagonal (the
 * same distance between the two ends) is remembered and only what is new is compared.
 *
 * What this cannot promise is depth: streams exist that make a tree a list. The work done is counted, and route.c moves
 * a route to the ordered index when it adds up to more than balanced trees would need. Trees can also grow deep
 * unnoticed and then cost a single look-up dearly, so that an operation gives up when its patience is over.
 */
#ifndef ROSATUNE_TREE_INDEX_H
#define ROSATUNE_TREE_INDEX_H

#include "retrieval/packed.h"

#define TREE_DIAGONALS 8
#define TREE_MAX_LANES 17 /* a query and its 16 flips */
#define TREE_MAX_ROOTS 24
/* Symbols of at most so many bits are narrow: two of them fit into a table. */
#define TREE_NARROW 8
/* From so many contexts on no cache holds an index, and asking ahead is worth its instructions. */
#define TREE_BEYOND_CACHES ((uint32_t)3 << 16)
/* Contexts that can be removed from a mixed index before its table has to be filled anew. */
#define TREE_BEFORE 64

/* The last comparison on a diagonal: contexts of a and b symbols share `length`, `sign` tells their order. */
struct diagonal {
	uint32_t a, b, length;
	int sign;
};

/* What an index is for. */
enum tree_use {
	TREE_GROWS,   /* trees that grow with a stream */
	TREE_SCRATCH, /* trees for a batch, whose length is known */
	TREE_TABLES   /* no trees: tables for the ordered index */
};

struct tree_index {
	uint8_t *child;  /* [capacity + 1] nodes: links to lesser and greater, from the lowest bit on; a tag */
	unsigned node;   /* bytes of a node */
	unsigned link;   /* bits of a link */
	size_t capacity; /* contexts */
	enum tree_use use;
	uint32_t *table; /* all tables, those of fewer symbols first, the trees' roots last */
	size_t table_size;
	uint32_t roots; /* where the roots start */
	unsigned root_bits;
	unsigned levels;              /* whole symbols that tables or neighbouring roots know */
	unsigned tables;              /* ... and those that have a table beside the roots */
	bool hashed;                  /* trees are picked by a hash of two symbols */
	bool mixed;                   /* ... and ordered by it, see tree_order() */
	uint32_t before[TREE_BEFORE]; /* mixed: what the table of single symbols had before a context, and ... */
	uint32_t before_from;         /* ... since which context this is known */
	uint64_t work;                /* nodes visited and words compared, see route.c */
	uint64_t patience;            /* what one operation may add to it */
	bool gave_up;                 /* one wanted more, and left its work undone: the trees are of no use any more */
	struct diagonal with_query[TREE_DIAGONALS], with_key[TREE_DIAGONALS];
};

/* Two streams as the index sees them. */
struct contexts {
	struct packed key, query;
	unsigned bits;
	uint32_t max_match; /* UINT32_MAX: no cut */
	uint64_t mask;      /* the part of a word that takes part in comparisons */
	unsigned word;      /* symbols in it */
};

struct match {
	uint32_t context; /* 0: none */
	uint32_t length;
};

/* Room for so many contexts in all, of which there are `indexed`; after tree_set_roots(). */
bool tree_reserve(struct tree_index *tree, const rosa_allocator *allocator, const struct contexts *ctx,
		  uint32_t indexed, size_t contexts);
/* Use 2^root_bits trees. On a filled index that grows, more than before; on an empty one any number, for any use; where
 * there are only tables, root_bits is a whole number of symbols. */
bool tree_set_roots(struct tree_index *tree, const rosa_allocator *allocator, const struct contexts *ctx,
		    unsigned root_bits, uint32_t contexts, enum tree_use use);
void tree_clear(struct tree_index *tree);
/* Copy the arrays of `from` into `to`, which has none. */
bool tree_copy(struct tree_index *to, const struct tree_index *from, const rosa_allocator *allocator);
void tree_free(struct tree_index *tree, const rosa_allocator *allocator);
/* Keep the tables alone: they serve the ordered index too. */
void tree_free_children(struct tree_index *tree, const rosa_allocator *allocator);
/* Fill the tables anew from the first `contexts` contexts; trees are lost. */
void tree_note_all(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts);
/* Insert all contexts into an empty index; it gives up where one takes longer than its patience. */
void tree_fill(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts);
/* Forget remembered comparisons: symbols were taken back. */
void tree_forget(struct tree_index *tree);
/* Of `contexts` contexts take the newest out again, until `kept` are left; then forget. */
void tree_shrink(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts, uint32_t kept);
size_t tree_bytes(const struct tree_index *tree);

/* How many symbols key context a shares with context b of `other` (the query, or the key itself), knowing that the
 * first word is equal. *sign is that of a's order against b's; where one is the other's end, the shorter is the lesser.
 * `memory` has TREE_DIAGONALS entries; the result goes there too if `remember`. */
uint32_t tree_compare_long(struct tree_index *tree, struct diagonal *memory, bool remember, const struct contexts *ctx,
			   uint32_t a, const struct packed *other, uint32_t b, uint32_t from, int *sign);

/* ---- hot paths, compiled for each number of bits ---- */

#if defined(__GNUC__)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNLIKELY(x)   __builtin_expect(!!(x), 0)
#define LIKELY(x)     __builtin_expect(!!(x), 1)
#define PREFETCH(p)   __builtin_prefetch(p)
#else
#define ALWAYS_INLINE static inline
#define UNLIKELY(x)   (x)
#define LIKELY(x)     (x)
#define PREFETCH(p)   ((void)(p))
#endif

static inline unsigned leading_zeros(uint64_t x)
{
	return (unsigned)__builtin_clzll(x);
}

/*
 * What the hot paths read and never change, copied out of the index for the length of a piece of steps: the compiler
 * can then keep it in registers, which it must not do with a structure that stores might alias.
 */
struct tree_view {
	uint32_t *table, *roots;
	uint8_t *child;
	const uint8_t *key;
	uint64_t mask;
	unsigned root_bits, levels, tables, link, node;
	bool hashed, mixed;
	bool rows; /* tables are laid out for flips */
};

/* `scratch`: a constant, true where it is known that the index is that of a batch. */
ALWAYS_INLINE struct tree_view tree_look(const struct tree_index *tree, const struct contexts *ctx, bool scratch)
{
	return (struct tree_view){.table = tree->table,
				  .roots = tree->table + tree->roots,
				  .child = tree->child,
				  .key = ctx->key.bytes,
				  .mask = ctx->mask,
				  .root_bits = tree->root_bits,
				  .levels = tree->levels,
				  .tables = tree->tables,
				  .link = scratch ? 32 : tree->link,
				  .node = scratch ? 8 : tree->node,
				  .hashed = tree->hashed,
				  .mixed = !scratch && tree->mixed,
				  .rows = scratch || tree->use != TREE_GROWS};
}

/* A node is read as a whole, and written as a whole with what lies behind it in the same eight bytes. */
ALWAYS_INLINE uint8_t *tree_node(const struct tree_view *view, uint32_t c)
{
	return view->child + (size_t)c * view->node;
}

ALWAYS_INLINE uint64_t tree_links(const struct tree_view *view, uint32_t c)
{
	uint64_t links;

	memcpy(&links, tree_node(view, c), sizeof(links));
	return links;
}

ALWAYS_INLINE void tree_write(const struct tree_view *view, uint32_t c, uint64_t links)
{
	memcpy(tree_node(view, c), &links, sizeof(links));
}

ALWAYS_INLINE uint32_t tree_child(const struct tree_view *view, uint32_t c, bool greater)
{
	if (view->link == 32) {
		uint32_t child;

		memcpy(&child, tree_node(view, c) + greater * sizeof(child), sizeof(child));
		return child;
	}
	return (uint32_t)(tree_links(view, c) >> greater * view->link & ((UINT64_C(1) << view->link) - 1));
}

ALWAYS_INLINE void tree_hang(const struct tree_view *view, uint32_t c, bool greater, uint32_t child)
{
	if (view->link == 32) {
		memcpy(tree_node(view, c) + greater * sizeof(child), &child, sizeof(child));
	} else {
		const unsigned shift = greater * view->link;
		const uint64_t mask = ((UINT64_C(1) << view->link) - 1) << shift;

		tree_write(view, c, (tree_links(view, c) & ~mask) | (uint64_t)child << shift);
	}
}

/* The bits of a node that links leave, and what stands in them: of the context's word, cut by the mask, the bits behind
 * those that its tree was picked by. */
ALWAYS_INLINE unsigned tree_tag_bits(const struct tree_view *view)
{
	return 8 * view->node - 2 * view->link;
}

ALWAYS_INLINE uint64_t tree_tag(const struct tree_view *view, uint64_t w)
{
	return w << view->root_bits >> (64 - tree_tag_bits(view));
}

/* Make c the newest node, without children. What lies behind it belongs to nobody yet. */
ALWAYS_INLINE void tree_bud(const struct tree_view *view, uint32_t c, uint64_t w)
{
	tree_write(view, c, tree_tag_bits(view) ? tree_tag(view, w) << 2 * view->link : 0);
}

/*
 * The row of a table of the top `top` bits of a word, `past` being the word without its last symbol. Rows are picked by
 * what precedes the last symbol and indexed by that symbol, not the other way round: a query and its flips differ in
 * the last symbol alone, so they share a row, a single cache line at four bits.
 */
ALWAYS_INLINE size_t tree_row(uint64_t past, unsigned bits, unsigned top)
{
	return top > bits ? past >> (64 - (top - bits)) << bits : 0;
}

ALWAYS_INLINE size_t tree_slot(const struct tree_view *view, uint64_t w, unsigned bits, unsigned top)
{
	return view->rows && top > bits ? tree_row(w << bits, bits, top) + (w >> (64 - bits)) : w >> (64 - top);
}

/* Lane 0 of a look-up is the query of word w; lane j+1 has bit j of its last symbol flipped. */
ALWAYS_INLINE uint64_t tree_flip(uint64_t w, unsigned bits, unsigned lane)
{
	return lane ? w ^ UINT64_C(1) << (64 - bits + lane - 1) : w;
}

/*
 * The word that trees are picked and ordered by. Mixed, the last symbol is changed by a hash of the one before it,
 * which spreads the contexts of a frequent one over the trees. Two symbols become two others and no two pairs the same,
 * so that contexts which share them stay neighbours; what shares less is found in a table.
 */
ALWAYS_INLINE uint64_t tree_order(const struct tree_view *view, unsigned bits, uint64_t w)
{
	if (bits <= TREE_NARROW || !view->mixed)
		return w;
	return w ^ (w << bits >> (64 - bits)) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits) << (64 - bits);
}

/* Where the root of the tree of word w is. */
ALWAYS_INLINE size_t tree_root(const struct tree_view *view, unsigned bits, uint64_t w)
{
	if (bits > TREE_NARROW && view->hashed)
		return (w >> (64 - 2 * bits)) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - view->root_bits);
	return tree_slot(view, tree_order(view, bits, w), bits, view->root_bits);
}

ALWAYS_INLINE uint32_t first_bits(unsigned n)
{
	return (uint32_t)((UINT64_C(1) << n) - 1);
}

/* Where the table for l symbols starts: those for fewer symbols come before it. */
ALWAYS_INLINE size_t tree_level(unsigned bits, unsigned l)
{
	return ((((size_t)1 << (l * bits)) - 1) / (((size_t)1 << bits) - 1)) - 1;
}

ALWAYS_INLINE uint64_t tree_word(const struct tree_view *view, unsigned bits, uint32_t c)
{
	struct packed key = {(uint8_t *)view->key, 0};

	return packed_word(&key, bits, c) & view->mask;
}

/* Its place in the order. */
ALWAYS_INLINE uint64_t tree_place(const struct tree_view *view, unsigned bits, uint32_t c)
{
	return tree_order(view, bits, tree_word(view, bits, c));
}

/* The same as far as is needed to tell it from v, the place of one who looks in the tree of c. */
ALWAYS_INLINE uint64_t tree_meet(const struct tree_view *view, unsigned bits, uint32_t c, uint64_t v)
{
	if (tree_tag_bits(view)) {
		const unsigned tag_bits = tree_tag_bits(view);
		const uint64_t tag = tree_links(view, c) >> 2 * view->link & ((UINT64_C(1) << tag_bits) - 1);
		const uint64_t different = tag ^ tree_tag(view, v);

		if (different)
			return v ^ different << (64 - view->root_bits - tag_bits);
	}
	return tree_place(view, bits, c);
}

/* The newest context that has the last `levels` symbols of word w, where roots lie in the order of their strings. */
ALWAYS_INLINE uint32_t tree_newest(const struct tree_view *view, unsigned bits, uint64_t w)
{
	const unsigned more = view->root_bits - view->levels * bits;
	const uint32_t *roots = view->roots + ((size_t)(w >> (64 - view->levels * bits)) << more);
	uint32_t newest = roots[0];

	for (unsigned i = 1; i < 1u << more; i++)
		newest = roots[i] > newest ? roots[i] : newest;
	return newest;
}

/* Symbols that key context c shares with the query, a context of `length` symbols with word w; cut at `cap`. */
ALWAYS_INLINE uint32_t tree_shared(struct tree_index *tree, const struct tree_view *view, const struct contexts *ctx,
				   unsigned bits, uint32_t c, uint64_t w, uint32_t length, uint32_t cap)
{
	uint64_t difference = tree_word(view, bits, c) ^ (w & view->mask);
	uint32_t shared;

	if (UNLIKELY(difference == 0)) {
		int sign;

		shared = tree_compare_long(tree, tree->with_query, true, ctx, c, &ctx->query, length, ctx->word, &sign);
	} else {
		shared = leading_zeros(difference) / bits;
		shared = shared < c ? shared : c;
	}
	return shared < cap ? shared : cap;
}

/*
 * What the tables know of `lanes` queries. Lane 0 is a context with word w, of which `cap` symbols may match; lane j+1
 * has bit j of its last symbol flipped. found[] gets the newest contexts of the longest matches that tables can tell,
 * the length of lane 0's is returned. *deep, if not NULL, gets a bit for each lane whose match is as long as the tables
 * go, or as `cap`: for these there may be a longer one.
 *
 * The loop's bound is a constant where `bits` is one, so that it is unrolled and all shifts are by constants.
 */
ALWAYS_INLINE uint32_t tree_recall(const struct tree_view *view, unsigned bits, uint64_t w, uint32_t cap,
				   unsigned lanes, uint32_t *found, uint32_t *deep)
{
	const unsigned known = view->rows ? view->levels : view->tables, levels = known < cap ? known : cap;
	const unsigned symbol = (unsigned)(w >> (64 - bits));
	const uint64_t past = w << bits;
	const uint32_t *level = view->table; /* the roots, if they are a level, come last */
	uint32_t matched = 0;

	for (unsigned lane = 0; lane < lanes; lane++)
		found[lane] = 0;
	if (deep)
		*deep = first_bits(lanes);
#pragma GCC unroll 6
	for (unsigned l = 1; l <= TREE_MAX_ROOTS / bits; l++) {
		const uint32_t *row = level + (view->rows ? tree_row(past, bits, l * bits) : 0);

		if (l > levels)
			break;
		for (unsigned lane = 0; lane < lanes; lane++) {
			uint32_t c = row[view->rows ? lane ? symbol ^ 1u << (lane - 1) : symbol
						    : tree_flip(w, bits, lane) >> (64 - l * bits)];
			bool good = c >= l;

			found[lane] = good ? c : found[lane];
			if (lane == 0)
				matched += good;
			if (deep)
				*deep = good ? *deep : *deep & ~(1u << lane);
		}
		level += (size_t)1 << (l * bits);
	}
	if (known < view->levels && view->levels <= cap)
		for (unsigned lane = 0; lane < lanes; lane++) {
			uint32_t c = tree_newest(view, bits, tree_flip(w, bits, lane));
			bool good = c >= view->levels;

			found[lane] = good ? c : found[lane];
			if (lane == 0)
				matched += good;
		}
	return matched;
}

/*
 * Look up `lanes` queries at once, lanes as above; the query has `length` symbols. found[] gets the contexts; the
 * length of lane 0's match is returned. The lanes walk in turn, so that their cache misses overlap.
 */
ALWAYS_INLINE uint32_t tree_find(struct tree_index *tree, const struct tree_view *view, const struct contexts *ctx,
				 unsigned bits, uint64_t w, uint32_t length, unsigned lanes, uint32_t *found)
{
	const uint32_t cap = length < ctx->max_match ? length : ctx->max_match;
	const unsigned levels = view->levels < cap ? view->levels : cap, root_bits = view->root_bits;
	const unsigned symbol = (unsigned)(w >> (64 - bits));
	const uint32_t *row = view->roots + tree_row(w << bits, bits, root_bits);
	const unsigned narrow = root_bits < bits ? bits - root_bits : 0;
	const uint32_t nobody = 0;
	uint32_t at[TREE_MAX_LANES], shared_most[TREE_MAX_LANES];
	uint8_t active[TREE_MAX_LANES];
	uint32_t any = 0, matched = tree_recall(view, bits, w, cap, lanes, found, NULL);
	const uint64_t before = tree->work;
	unsigned busy = 0, hops = 0;

	for (unsigned lane = 0; lane < lanes; lane++) {
		if (bits > TREE_NARROW && (view->hashed || view->mixed)) {
			/* a symbol that has not occurred has no tree, and asking a far place for one takes long */
			size_t slot = tree_root(view, bits, tree_flip(w, bits, lane));

			at[lane] = *(found[lane] ? view->roots + slot : &nobody);
		} else if (!view->rows) {
			at[lane] = view->roots[tree_flip(w, bits, lane) >> (64 - root_bits)];
		} else {
			at[lane] = row[(lane ? symbol ^ 1u << (lane - 1) : symbol) >> narrow];
		}
		any |= at[lane];
	}
	if (LIKELY(!any))
		return matched;
	for (unsigned lane = 0; lane < lanes; lane++) {
		active[busy] = (uint8_t)lane;
		busy += at[lane] != 0;
	}
	/* In a tree only matches longer than the tables' are news. */
	for (unsigned lane = 0; lane < lanes; lane++)
		shared_most[lane] = levels;
	shared_most[0] = matched;
	while (busy) {
		unsigned still = 0;

		if (UNLIKELY(hops + (tree->work - before) > tree->patience)) {
			tree->gave_up = true;
			break;
		}
		hops += busy;
		for (unsigned i = 0; i < busy; i++) {
			unsigned lane = active[i];
			uint64_t v = tree_order(view, bits, tree_flip(w, bits, lane)) & view->mask;
			uint32_t c = at[lane], shared;
			uint64_t other = tree_meet(view, bits, c, v);
			bool greater = v > other, better;

			if (UNLIKELY(v == other)) {
				int sign = 0;

				shared = tree_compare_long(tree, tree->with_query, lane == 0, ctx, c, &ctx->query,
							   length, ctx->word, &sign);
				greater = sign < 0;
			} else {
				shared = leading_zeros(v ^ other) / bits;
				shared = shared < c ? shared : c;
			}
			shared = shared < cap ? shared : cap;
			better = shared > shared_most[lane];
			found[lane] = better ? c : found[lane];
			shared_most[lane] = better ? shared : shared_most[lane];
			c = tree_child(view, c, greater);
			at[lane] = c;
			active[still] = (uint8_t)lane;
			still += c != 0;
		}
		busy = still;
	}
	tree->work += hops;
	return shared_most[0];
}

/* Bring the slots of word w, soon to be asked for or written, towards the processor. The smaller tables are near
 * anyway. */
ALWAYS_INLINE void tree_prefetch(const struct tree_view *view, unsigned bits, uint64_t w)
{
	PREFETCH(view->roots + tree_root(view, bits, w));
}

/* Let the tables know context c, the newest, whose word is w. */
ALWAYS_INLINE void tree_note(const struct tree_view *view, unsigned bits, uint64_t w, uint32_t c)
{
	uint32_t *level = view->table;

#pragma GCC unroll 6
	for (unsigned l = 1; l <= TREE_MAX_ROOTS / bits; l++) {
		if (l > (view->rows ? view->levels : view->tables))
			break;
		level[tree_slot(view, w, bits, l * bits)] = c;
		level += (size_t)1 << (l * bits);
	}
}

/* Add context c, the newest, whose word is w. */
ALWAYS_INLINE void tree_insert(struct tree_index *tree, const struct tree_view *view, const struct contexts *ctx,
			       unsigned bits, uint64_t w, uint32_t c)
{
	uint32_t *root = view->roots + tree_root(view, bits, w);
	uint32_t at = *root;
	uint32_t lesser = c, greater = c; /* where the next that is less is to hang, and the next that is not */
	const uint64_t before = tree->work;
	unsigned hops = 0;

	if (bits > TREE_NARROW && view->mixed) {
		tree->before[c % TREE_BEFORE] = view->table[w >> (64 - bits)];
		if (c >= tree->before_from + TREE_BEFORE)
			tree->before_from = c - TREE_BEFORE + 1;
	}
	tree_note(view, bits, w, c);
	*root = c;
	w = tree_order(view, bits, w) & view->mask;
	tree_bud(view, c, w);
	while (UNLIKELY(at)) {
		if (UNLIKELY(hops + (tree->work - before) > tree->patience)) {
			tree->gave_up = true;
			break;
		}
		uint64_t other = tree_meet(view, bits, at, w);
		bool below = other < w;

		if (UNLIKELY(other == w)) {
			int sign;

			tree_compare_long(tree, tree->with_key, true, ctx, at, &ctx->key, c, ctx->word, &sign);
			below = sign < 0;
		}
		if (below) {
			tree_hang(view, lesser, lesser != c, at);
			lesser = at;
		} else {
			tree_hang(view, greater, greater == c, at);
			greater = at;
		}
		at = tree_child(view, at, below);
		hops++;
	}
	tree_hang(view, lesser, lesser != c, 0);
	tree_hang(view, greater, greater == c, 0);
	tree->work += hops;
}

#endif
