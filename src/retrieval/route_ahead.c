/*
 * Prefetching: memory that the next steps will need is brought into the caches before they are taken.
 *
 * Cache misses of one step depend on each other: a root leads to a context, which leads to its successor's first step.
 * Those of different steps do not. So several steps are gone through together, one short stage after the other, and the
 * misses of a stage overlap. These are the next steps of one route, or the next single step of several routes.
 */
#include "retrieval/route.h"

/* ---- many steps of one route ---- */

/* The entry of the longest string in the tables, and the root, of the context with this word. `longest` is the table of
 * the longest strings. */
ALWAYS_INLINE void prefetch_entries(const struct chain_view *view, const uint32_t *longest, unsigned bits,
				    uint64_t word)
{
	if (view->levels)
		PREFETCH(longest + chain_table_row(bits, view->distinct, view->levels, word << bits) +
			 (word >> (64 - bits)));
	for (unsigned set = 0; set <= view->deeper; set++)
		PREFETCH(chain_root_of(view, bits, word, set));
}

void route_prefetch_steps(const struct route *route, const struct route_rules *rules, bool flips, size_t steps,
			  const void *query, const void *key)
{
	const unsigned bits = route->contexts.bits;
	const unsigned lanes = flips && alphabet_is_plain(&route->alphabet) ? bits : 0;
	const struct chain_view view = chain_look(&route->chains, &route->contexts);
	const uint32_t *const longest = view.table + (view.levels ? chain_level(bits, view.distinct, view.levels) : 0);
	uint64_t word = route->at.query_word, key_word = route->at.key_word;

	for (size_t i = 0; i < steps; i++) {
		const uint32_t symbol = symbol_get(query, bits, i), key_symbol = symbol_get(key, bits, i);

		if (!rules->fold || symbol != word >> (64 - bits)) {
			word = packed_push(word, bits, symbol);
			prefetch_entries(&view, longest, bits, word);
			/* flips of the lowest four bits are in the same cache line */
			for (unsigned j = 4; j < lanes; j++)
				prefetch_entries(&view, longest, bits, word ^ UINT64_C(1) << (64 - bits + j));
		}
		if (rules->delay) {
			/* at most one context becomes a candidate with each step */
			if (route->at.indexed + i < route->at.key_runs)
				prefetch_entries(&view, longest, bits,
						 packed_word(&route->contexts.key, bits, route->at.indexed + i + 1));
		} else if (!rules->fold || key_symbol != key_word >> (64 - bits)) {
			key_word = packed_push(key_word, bits, key_symbol);
			prefetch_entries(&view, longest, bits, key_word);
		}
	}
}

/* ---- single steps of many routes ---- */

/* Each route is visited once, and all of its memory is cold. */
struct ahead {
	struct chain_view view;
	uint64_t word, ready_word;
	uint32_t at;     /* in the chain; 0: it need not be walked, or has ended */
	uint32_t answer; /* where the chain has nothing better */
};

/* The entry of the longest string that the tables know, for the context with this word. */
static const uint32_t *longest_entry(const struct chain_view *view, unsigned bits, uint64_t word)
{
	return view->table + chain_level(bits, view->distinct, view->levels) +
	       chain_table_row(bits, view->distinct, view->levels, word << bits) + (word >> (64 - bits));
}

static void ahead_roots(struct ahead *ahead, const struct route *route, bool delayed, unsigned symbol)
{
	const unsigned bits = route->contexts.bits;
	const uint32_t code = alphabet_code(&route->alphabet, symbol);
	const struct chain_view view = chain_look(&route->chains, &route->contexts);

	ahead->view = view;
	ahead->ready_word = delayed && route->at.indexed < route->at.key_runs
				? packed_word(&route->contexts.key, bits, route->at.indexed + 1)
				: route->at.ready_word;
	ahead->word = packed_push(route->at.query_word, bits, code == ALPHABET_NONE ? 0 : code);
	/* Of the tables the largest is asked first; the others are small. */
	if (view.levels) {
		PREFETCH(longest_entry(&view, bits, ahead->word));
		PREFETCH(longest_entry(&view, bits, ahead->ready_word));
	}
	for (unsigned set = 0; set <= view.deeper; set++) {
		PREFETCH(chain_root_of(&view, bits, ahead->word, set));
		PREFETCH(chain_root_of(&view, bits, ahead->ready_word, set));
	}
	/* what tells whether the match goes on */
	PREFETCH(view.key + PACKED_PAD + (size_t)route->at.best.context * bits / 8);
	/* where the step will write */
	PREFETCH(route->contexts.query.bytes + PACKED_PAD + (size_t)route->at.query_runs * bits / 8);
	PREFETCH(view.key + PACKED_PAD + (size_t)route->at.key_runs * bits / 8);
	PREFETCH(route->key_starts.bits + route->steps / STARTS_WORD);
	PREFETCH(route->query_starts.bits + route->steps / STARTS_WORD);
	PREFETCH(view.link + (size_t)(route->at.indexed + 1) * view.link_stride);
}

/* A context of the chain. */
static void ahead_context(const struct ahead *ahead, const struct route *route)
{
	PREFETCH(ahead->view.link + (size_t)ahead->at * ahead->view.link_stride);
	PREFETCH(ahead->view.key + (size_t)ahead->at * route->contexts.bits / 8);
}

/* The roots have come. */
static void ahead_chain(struct ahead *ahead, const struct route *route)
{
	const struct chain_view *const view = &ahead->view;
	const unsigned bits = route->contexts.bits;
	const uint32_t root = *chain_root(view, bits, ahead->word), first = root & view->id_mask;

	ahead->answer = view->exact && first ? first : view->levels ? *longest_entry(view, bits, ahead->word) : 0;
	PREFETCH(route->key_starts.sample + ahead->answer / STARTS_SAMPLE);
	if (!((root | view->unmarked) & chain_mark(view, ahead->word)))
		return;
	ahead->at = view->deeper ? *chain_root_of(view, bits, ahead->word, view->deeper) : first;
	ahead_context(ahead, route);
}

/* The sample has come: about here the answer begins, since runs are mostly short. */
static void ahead_answer(const struct ahead *ahead, const struct route *route)
{
	const struct starts *const starts = &route->key_starts;
	const uint32_t run = ahead->answer;

	if (run < starts->runs)
		PREFETCH(starts->bits + (starts->sample[run / STARTS_SAMPLE] + run % STARTS_SAMPLE) / STARTS_WORD);
}

/* Contexts of a chain that are prefetched. */
#define HOPS 6

void route_prefetch(const struct route *route, const struct route_rules *rules, size_t routes, const void *query,
		    size_t stride)
{
	struct ahead ahead[ROUTE_AHEAD];
	bool more = true;

	for (size_t r = 0; r < routes; r++) {
		ahead[r].at = 0;
		ahead[r].view.link = NULL;
		if (route[r].chains.link && !route[r].ordered && route[r].steps)
			ahead_roots(&ahead[r], &route[r], rules->delay != 0,
				    symbol_get(query, rules->bits, r * stride));
	}
	for (size_t r = 0; r < routes; r++)
		if (ahead[r].view.link)
			ahead_chain(&ahead[r], &route[r]);
	for (size_t r = 0; r < routes; r++)
		if (ahead[r].view.link)
			ahead_answer(&ahead[r], &route[r]);
	for (int hop = 1; hop < HOPS && more; hop++) {
		more = false;
		for (size_t r = 0; r < routes; r++) {
			if (!ahead[r].at)
				continue;
			ahead[r].at = chain_next(&ahead[r].view, ahead[r].at, ahead[r].view.deeper);
			ahead_context(&ahead[r], &route[r]);
			more |= ahead[r].at != 0;
		}
	}
}
