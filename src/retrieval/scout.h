/*
 * Scouts walk ahead of a route, the query's way and the new context's, and do nothing but bring what they meet towards
 * the processor.
 *
 * Of a long history every look-up goes to memory that no cache holds: the row of a table, then the contexts found
 * there, one hop after the other, then the steps these lead to. What a step to come will ask for is known, but for what
 * happens until then, and a guess that turns out wrong costs no more than that. One hop needs what the last one asked
 * for, so several scouts are on their way, and each is sent on a hop at a time: then their walks wait for memory
 * together, and not one after the other. Where a route takes many steps they are those of steps to come (struct
 * vanguard); where many routes take one, those of other routes (scout_routes()).
 */
#ifndef ROSATUNE_SCOUT_H
#define ROSATUNE_SCOUT_H

#include "retrieval/route.h"

/* Bring near what the next single step of these routes will need; `query` has their symbols, `stride` apart. No more
 * than SCOUT_ROUTES routes at a time. */
#define SCOUT_ROUTES 8

void scout_routes(const struct route *route, size_t routes, const uint16_t *query, size_t stride);

struct scout {
	uint64_t word[2]; /* of the query and of the context to be indexed */
	uint32_t at[2];
};

/* Where the table next below the roots knows word w; NULL if there is none. */
ALWAYS_INLINE const uint32_t *slot_below(const struct tree_view *view, unsigned bits, uint64_t w)
{
	const unsigned below = view->tables;

	return below ? view->table + tree_level(bits, below) + tree_slot(view, w, bits, below * bits) : NULL;
}

/* What the tables will say of word w if its tree does not say more; 0 if that is not worth asking for. */
ALWAYS_INLINE uint32_t answer_below(const struct tree_view *view, unsigned bits, uint64_t w)
{
	const uint32_t *below;

	if (view->tables < view->levels && !view->rows)
		return tree_newest(view, bits, w);
	below = slot_below(view, bits, w);
	return below ? *below : 0;
}

/* Ask for the roots that the query of word `query`, and its flips, and the context of word `key` will need. */
ALWAYS_INLINE void scout_send(struct scout *scout, const struct tree_view *view, unsigned bits, unsigned lanes,
			      uint64_t query, uint64_t key)
{
	scout->word[0] = query;
	scout->word[1] = key;
	tree_prefetch(view, bits, query);
	tree_prefetch(view, bits, key);
	/* the first four flips of a row are in the query's line */
	for (unsigned lane = bits > TREE_NARROW && view->hashed ? 1 : 5; lane < lanes; lane++)
		tree_prefetch(view, bits, tree_flip(query, bits, lane));
	PREFETCH(slot_below(view, bits, query));
	PREFETCH(slot_below(view, bits, key));
}

/* Ask for a context; its symbols too where there are no tags, which mostly tell as much. */
ALWAYS_INLINE void scout_ask(const struct tree_view *view, unsigned bits, uint32_t at)
{
	PREFETCH(tree_node(view, at));
	if (!tree_tag_bits(view))
		PREFETCH(view->key + (size_t)at * bits / 8);
}

/* Ask for the first step after a context that may be the answer: about here, if runs are of even length. */
ALWAYS_INLINE void scout_ask_start(const struct route *route, const int32_t *start, uint32_t answer)
{
	if (!answer)
		return;
	if (start) {
		PREFETCH(start + answer);
	} else {
		PREFETCH(route->key_starts.sample + answer / STARTS_SAMPLE);
		PREFETCH(route->key_starts.bits +
			 (uint64_t)answer * route->steps / (route->key_runs + 1) / STARTS_WORD);
	}
}

/* The roots have come. Where a tree is found in vain the tables have the answer: `answers` asks for what these lead to,
 * unless the steps have an array of their own, in a batch, whose trees are so small that this is rare. */
ALWAYS_INLINE void scout_land(struct scout *scout, const struct tree_view *view, const struct route *route,
			      const int32_t *start, unsigned bits, unsigned lanes, bool answers)
{
	for (unsigned lane = 0; lane < lanes; lane++) {
		const uint64_t v = tree_flip(scout->word[0], bits, lane);
		const uint32_t at = view->roots[tree_root(view, bits, v)];

		scout_ask(view, bits, at);
		scout_ask_start(route, start, at);
		if (answers && (!at || !start))
			scout_ask_start(route, start, answer_below(view, bits, v));
		if (lane == 0)
			scout->at[0] = at;
	}
	scout->at[1] = view->roots[tree_root(view, bits, scout->word[1])];
	scout_ask(view, bits, scout->at[1]);
}

/* One hop further: the contexts asked for have come. False when there is no further one. */
ALWAYS_INLINE bool scout_on(struct scout *scout, const struct tree_view *view, const struct route *route,
			    const int32_t *start, unsigned bits)
{
	for (int i = 0; i < 2; i++) {
		const uint32_t at = scout->at[i];
		uint64_t v;

		if (!at)
			continue;
		v = tree_order(view, bits, scout->word[i]) & view->mask;
		scout->at[i] = tree_child(view, at, v > tree_meet(view, bits, at, v));
		scout_ask(view, bits, scout->at[i]);
		if (i == 0)
			scout_ask_start(route, start, scout->at[0]);
	}
	return scout->at[0] | scout->at[1];
}

/* Within a route scouts go ahead in time: FAR steps, of which each hop is given GAP. */
#define FAR 16
#define GAP 4

struct vanguard {
	struct scout scout[FAR];
	uint64_t query_word, key_word;
	unsigned query_symbol, key_symbol;
};

ALWAYS_INLINE void vanguard_send(struct vanguard *ahead, const struct tree_view *view, unsigned bits, unsigned lanes,
				 bool fold, size_t i, unsigned query, unsigned key)
{
	if (!fold || query != ahead->query_symbol)
		ahead->query_word = packed_push(ahead->query_word, bits, query);
	if (!fold || key != ahead->key_symbol)
		ahead->key_word = packed_push(ahead->key_word, bits, key);
	ahead->query_symbol = query;
	ahead->key_symbol = key;
	scout_send(&ahead->scout[i % FAR], view, bits, lanes, ahead->query_word, ahead->key_word);
}

#endif
