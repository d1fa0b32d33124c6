/*
 * Scouts for single steps of many routes.
 *
 * Each route is visited once, and all of its memory is cold. Where that is more than the processor's tables of pages
 * reach, asking for a line waits for its page to be found; several such waits overlap only if few instructions lie
 * between them. So scouts go through some routes together, one short stage after the other.
 */
#include "retrieval/scout.h"
#include "retrieval/widths.h"

/* Hops that scouts go. Few trees are as deep, but for symbols that are frequent and wide, of a text for example, where
 * the last routes on their way set the pace. */
#define HOPS 64

struct party {
	struct tree_view view;
	struct scout scout;
};

ALWAYS_INLINE void party_send(struct party *party, const struct route *route, unsigned bits, unsigned query)
{
	const struct tree_view view = tree_look(&route->tree, &route->contexts, false);
	const uint64_t words[2] = {packed_push(route->query_word, bits, query), route->ready_word};

	party->view = view;
	if (!view.child)
		return;
	scout_send(&party->scout, &view, bits, 1, words[0], words[1]);
	for (int i = 0; i < 2; i++) {
		const uint32_t *level = view.table;

		/* the tables that the scout has not asked for itself */
		for (unsigned l = 1; l < view.tables; level += (size_t)1 << (l++ * bits))
			PREFETCH(level + tree_slot(&view, words[i], bits, l * bits));
	}
}

ALWAYS_INLINE void party_land(struct party *party, const struct route *route, unsigned bits)
{
	if (party->view.child)
		scout_land(&party->scout, &party->view, route, NULL, bits, 1, false);
}

ALWAYS_INLINE bool party_on(struct party *party, const struct route *route, unsigned bits)
{
	return party->view.child && scout_on(&party->scout, &party->view, route, NULL, bits);
}

/* What the tables may answer, which have had more time to come, and where the step will write. */
ALWAYS_INLINE void party_end(const struct party *party, const struct route *route, unsigned bits)
{
	if (!party->view.child)
		return;
	scout_ask_start(route, NULL, answer_below(&party->view, bits, party->scout.word[0]));
	PREFETCH(route->contexts.query.bytes + PACKED_PAD + (size_t)route->query_runs * bits / 8);
	PREFETCH(route->contexts.key.bytes + PACKED_PAD + (size_t)route->key_runs * bits / 8);
	PREFETCH(route->key_starts.bits + route->steps / STARTS_WORD);
	PREFETCH(route->query_starts.bits + route->steps / STARTS_WORD);
	PREFETCH(tree_node(&party->view, route->indexed + 1));
}

ALWAYS_INLINE void scout_step(const struct route *route, unsigned bits, size_t routes, const uint16_t *query,
			      size_t stride)
{
	struct party party[SCOUT_ROUTES];
	bool busy = true;

	for (size_t r = 0; r < routes; r++)
		party_send(&party[r], &route[r], bits, query[r * stride]);
	for (size_t r = 0; r < routes; r++)
		party_land(&party[r], &route[r], bits);
	for (int hop = 0; hop < HOPS && busy; hop++) {
		busy = false;
		for (size_t r = 0; r < routes; r++)
			busy |= party_on(&party[r], &route[r], bits);
	}
	for (size_t r = 0; r < routes; r++)
		party_end(&party[r], &route[r], bits);
}

#define SCOUT(M)                                                                                                       \
	static void scout_##M(const struct route *r, size_t n, const uint16_t *q, size_t s)                            \
	{                                                                                                              \
		scout_step(r, M, n, q, s);                                                                             \
	}
FOR_EACH_WIDTH(SCOUT)

void scout_routes(const struct route *route, size_t routes, const uint16_t *query, size_t stride)
{
	static void (*const scouts[])(const struct route *, size_t, const uint16_t *, size_t) = EACH_WIDTH(scout);

	scouts[route->contexts.bits](route, routes, query, stride);
}
