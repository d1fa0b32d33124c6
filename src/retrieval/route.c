/*
 * The step: fold, index, find, emit. The overview is in route.h.
 *
 *   fold    does this step begin a run of the key, of the query?
 *   index   a context became a candidate: put it into the index
 *   find    the query began a run: look up its longest match, and those of its flips. Otherwise only a context that was
 *           just indexed can change the answer: as the newest of all it wins if it matches as long as the best so far.
 *   emit    the destinations that the matches lead to
 *
 * Under the policy `readable` a context becomes a candidate a step after its successor began, under `inclusive` with
 * its successor, and under `literal` with its own run. So the key is folded behind the look-up or before it. With a
 * delay all this happens as many steps later: the key's step that lies `delay` back decides which context comes in.
 */
#include "retrieval/route.h"
#include "base/draw.h"
#include "retrieval/widths.h"

/* What does not change, from the rules and the route. */
struct manner {
	rosa_policy policy;
	bool fold;
	uint32_t delay;
	int32_t *start; /* of route->start; NULL: there is none */
	struct packed key, query;
};

/* ---- fold ---- */

/* The key at step t. */
ALWAYS_INLINE void fold_key(struct cursor *at, struct route *route, unsigned bits, struct manner how, unsigned symbol,
			    uint32_t t)
{
	const bool begins = !how.fold || !at->key_runs || symbol != at->key_symbol;

	if (how.start) {
		if (begins && at->key_runs)
			how.start[at->key_runs] = (int32_t)t;
	} else {
		starts_push(&route->key_starts, begins);
	}
	if (!begins)
		return;
	at->ready_word = at->key_word;
	at->key_symbol = symbol;
	at->key_word = packed_push(at->key_word, bits, symbol);
	packed_put(&how.key, bits, at->key_runs, at->key_word);
	at->ready = at->key_runs++ != 0;
	if (how.policy == ROSA_LITERAL) {
		at->ready_word = at->key_word;
		at->ready = true;
	}
}

/* With a delay: did a context become a candidate with step t? */
ALWAYS_INLINE bool admits(const struct cursor *at, const struct route *route, struct manner how, uint32_t t)
{
	const uint64_t lag = (uint64_t)how.delay + (how.policy == ROSA_READABLE);
	/* the run whose beginning lets a context in: the one after it, or its own */
	const uint32_t run = at->indexed + (how.policy != ROSA_LITERAL);

	if (t < lag || run >= at->key_runs)
		return false;
	if (!run || t == lag)
		return !run && t == lag;
	return how.start ? (uint32_t)how.start[run] == t - lag : starts_begins(&route->key_starts, t - lag);
}

/* The query. True if it begins a run. */
ALWAYS_INLINE bool fold_query(struct cursor *at, struct route *route, unsigned bits, struct manner how, unsigned symbol)
{
	const bool begins = !how.fold || !at->query_runs || symbol != at->query_symbol;

	if (!how.start)
		starts_push(&route->query_starts, begins);
	if (!begins)
		return false;
	at->query_symbol = symbol;
	at->query_word = packed_push(at->query_word, bits, symbol);
	packed_put(&how.query, bits, at->query_runs, at->query_word);
	at->query_runs++;
	return true;
}

/* ---- index ---- */

ALWAYS_INLINE void index_context(struct route *route, const struct chain_view *view, unsigned bits, bool ordered,
				 uint64_t word, uint32_t context)
{
	if (ordered) {
		const unsigned symbol = (unsigned)(word >> (64 - bits));

		order_insert(route->order, symbol, view->table[symbol]);
	}
	chain_insert(view, bits, word, context);
}

/* ---- find ---- */

/* The tables answer what they can; only a match that may be longer than they go is looked for in the order, and only in
 * the lanes of the set `wanted`. */
ALWAYS_INLINE uint32_t find_ordered(const struct route *route, const struct chain_view *view, unsigned bits,
				    uint64_t word, uint32_t length, struct match past, uint32_t wanted, unsigned lanes,
				    const uint32_t *symbols, uint32_t *found)
{
	const uint32_t cap = least(length, route->contexts.max_match), levels = least(view->levels, cap);
	const size_t row = chain_row(view, bits, word << bits);
	uint32_t deep, longer, matched = chain_recall(view, bits, word << bits, cap, lanes, symbols, found, &deep);

	if (past.length < levels || cap <= levels)
		return matched;
	deep &= wanted;
	/* A string of one symbol more than tables know that has no root has not occurred. One that has occurred once is
	 * the answer for a flip, of which the length does not matter. */
	for (uint32_t left = deep; left; left &= left - 1) {
		const unsigned lane = (unsigned)__builtin_ctz(left);
		const uint32_t c = view->root[row ^ chain_entry(view, bits, symbols[lane])];
		const uint64_t v = (word << bits) >> bits | (uint64_t)symbols[lane] << (64 - bits);

		if (c & CHAIN_SEVERAL || (c && !lane))
			continue;
		deep &= ~(1u << lane);
		if (c > levels && (chain_word(view, bits, c) ^ v) >> (64 - (levels + 1) * bits) == 0)
			found[lane] = c;
	}
	if (!deep)
		return matched;
	longer = order_find(route->order, past, symbols, cap, levels, deep, found);
	return longer ? longer : matched;
}

/* The chains gave up on a look-up. */
static uint32_t rescue(struct route *route, const rosa_allocator *allocator, uint32_t indexed, uint64_t word,
		       uint32_t length, struct match past, uint32_t wanted, unsigned lanes, const uint32_t *symbols,
		       uint32_t *found)
{
	const unsigned bits = route->contexts.bits;
	struct chain_view view;

	route->at.indexed = indexed;
	route_settle(route, allocator);
	view = chain_look(&route->chains, &route->contexts);
	if (route->ordered) {
		if (past.length == ROUTE_UNKNOWN)
			past = route_match_anew(route, length - 1);
		return find_ordered(route, &view, bits, word, length, past, wanted, lanes, symbols, found);
	}
	return chain_find(&route->chains, &view, &route->contexts, bits, word, length,
			  least(length, route->contexts.max_match), wanted, lanes, symbols, found);
}

/*
 * Does the match of the query before its last symbol go on? Then the context after the best one is the answer, and no
 * search is needed: a context that shares L + 1 symbols follows one that shares L, and of those `past` was the newest.
 * (At most one context has come in since, so any other that follows one of them is older.) A match that was cut at
 * max_match is not the only one of its length, so there this does not hold.
 */
ALWAYS_INLINE bool match_goes_on(const struct contexts *ctx, const struct cursor *at, unsigned bits)
{
	const struct match past = at->best;

	return past.context && past.context < at->indexed && past.length < ctx->max_match &&
	       packed_get(&ctx->key, bits, past.context) == at->query_symbol;
}

/* The longest matches of the query and of its flips, whose last symbols are in symbols[]. False if the chains gave up:
 * the route has then changed its index. */
ALWAYS_INLINE bool find_matches(struct route *route, const rosa_allocator *allocator, const struct chain_view *view,
				unsigned bits, bool ordered, struct cursor *at, unsigned lanes, const uint32_t *symbols,
				uint32_t *found)
{
	const struct match past = at->best;
	struct contexts *const ctx = &route->contexts;
	const uint32_t cap = least(at->query_runs, ctx->max_match);
	/* A match is at most one symbol longer than that of the query before its last symbol. */
	const uint32_t bound = past.length >= cap ? cap : past.length + 1;
	const bool goes_on = match_goes_on(ctx, at, bits);
	const uint32_t wanted = first_bits(lanes) & ~(uint32_t)goes_on;
	bool good = true;

	if (lanes > 1 || !goes_on) {
		if (ordered) {
			at->best.length = find_ordered(route, view, bits, at->query_word, at->query_runs, past, wanted,
						       lanes, symbols, found);
		} else {
			at->best.length = chain_find(&route->chains, view, ctx, bits, at->query_word, at->query_runs,
						     bound, wanted, lanes, symbols, found);
			good = LIKELY(!route->chains.gave_up);
			if (!good)
				at->best.length = rescue(route, allocator, at->indexed, at->query_word, at->query_runs,
							 past, wanted, lanes, symbols, found);
		}
		at->best.context = found[0];
	}
	if (goes_on) {
		at->best = (struct match){past.context + 1, past.length + 1};
		found[0] = at->best.context;
	}
	return good;
}

/* The longest match of the query alone, where its flips are not drawn: rare enough to be compiled once, for any number
 * of bits. What the steps keep in registers is given as a copy. *gave_up: the chains did. */
static NEVER_INLINE struct match find_alone(struct route *route, const rosa_allocator *allocator, bool ordered,
					    struct cursor at, bool *gave_up)
{
	const struct chain_view view = chain_look(&route->chains, &route->contexts);
	const uint32_t symbol = at.query_symbol;
	uint32_t found;

	*gave_up = !find_matches(route, allocator, &view, route->contexts.bits, ordered, &at, 1, &symbol, &found);
	return at.best;
}

/* The query stands still and a context became a candidate: as the newest of all it wins with as long a match. */
ALWAYS_INLINE struct match challenge(struct route *route, unsigned bits, const struct cursor *at)
{
	struct contexts *const ctx = &route->contexts;
	const uint64_t difference = (at->ready_word ^ at->query_word) & ctx->mask;
	const uint32_t cap = least(at->query_runs, ctx->max_match);
	const uint32_t shared = least(contexts_shared(ctx, bits, difference, at->indexed, at->query_runs, true), cap);

	return shared && shared >= at->best.length ? (struct match){at->indexed, shared} : at->best;
}

/* The same in the ordered index. */
static struct match challenge_ordered(struct route *route, struct match best, uint32_t context, uint32_t length)
{
	const uint32_t cap = least(length, route->contexts.max_match);
	uint32_t shared = best.context ? order_shared(route->order, context, best.context) : 0;

	if (shared < best.length)
		return best;
	/* Beyond what the best shares only the symbols themselves can tell. */
	if (shared > best.length || shared >= cap)
		shared = best.length;
	else
		shared = contexts_shared_long(&route->contexts, context, length, shared, true);
	return shared ? (struct match){context, least(shared, cap)} : best;
}

/* ---- emit ---- */

/* The destination that a match leads to at step t; context 0, none, leads to -1. */
ALWAYS_INLINE int32_t destination(const struct route *route, struct manner how, uint32_t key_runs, uint32_t context,
				  uint32_t t)
{
	int32_t tau;

	/* The successor of the newest run has not begun, and one that begins just now cannot be read. */
	if (how.policy == ROSA_LITERAL && context >= key_runs)
		return -1;
	if (LIKELY(how.start))
		tau = how.start[context];
	else
		tau = context ? (int32_t)starts_select(&route->key_starts, context) : -1;
	return how.policy == ROSA_LITERAL && (int64_t)tau + how.delay >= t ? -1 : tau;
}

/* The same for the best match. Where it takes a search, in a stream, it is kept until the match is another one. */
ALWAYS_INLINE int32_t best_destination(struct cursor *at, const struct route *route, struct manner how, uint32_t t)
{
	if (how.start || how.policy == ROSA_LITERAL)
		return destination(route, how, at->key_runs, at->best.context, t);
	if (at->answered != at->best.context) {
		at->answered = at->best.context;
		at->answer = destination(route, how, at->key_runs, at->answered, t);
	}
	return at->answer;
}

/* The destinations that the matches in found[] lead to: of lane_of[j] for flip j, and of a lane each without it. Lane 0
 * of lane_of[] is no match. */
ALWAYS_INLINE void flip_destinations(const struct route *route, struct manner how, uint32_t key_runs,
				     const uint32_t *found, const uint8_t *lane_of, uint32_t t, unsigned flips,
				     int32_t *row)
{
	for (unsigned j = 0; j < flips; j++) {
		const unsigned lane = lane_of ? lane_of[j] : j + 1;
		const uint32_t context = found[lane];

		row[j] = destination(route, how, key_runs, lane ? context : 0, t);
	}
}

/* The same where it takes a search or depends on the step: once, not compiled into every version. */
static NEVER_INLINE void flip_destinations_of(const struct route *route, struct manner how, uint32_t key_runs,
					      const uint32_t *found, const uint8_t *lane_of, uint32_t t, unsigned flips,
					      int32_t *row)
{
	flip_destinations(route, how, key_runs, found, lane_of, t, flips, row);
}

/* The table of a query run that begins at step t, the run-th of the output; all as the query, if it was not drawn. */
ALWAYS_INLINE void emit_flips(struct route *route, struct manner how, const struct cursor *at, const uint32_t *found,
			      const uint8_t *lane_of, bool drawn, unsigned flips, uint32_t t, size_t run,
			      const struct route_output *out)
{
	int32_t *const row = out->run_flips ? out->run_flips + run * flips : route->flips;
	const int32_t tau = destination(route, how, at->key_runs, at->best.context, t);

	if (!drawn)
		for (unsigned j = 0; j < flips; j++)
			row[j] = tau;
	else if (LIKELY(how.start && how.policy != ROSA_LITERAL))
		flip_destinations(route, (struct manner){.start = how.start}, at->key_runs, found, lane_of, t, flips,
				  row);
	else
		flip_destinations_of(route, how, at->key_runs, found, lane_of, t, flips, row);
	if (out->run_start) {
		out->run_start[run] = (int32_t)t;
		out->run_tau[run] = tau;
	}
}

/* ---- all together ---- */

/* Counterfactuals: none; where a symbol is its own code; where a flipped symbol may have no code. */
enum lanes { QUERY_ONLY, FLIPS, CODED_FLIPS };

/* The last symbols of the query and of those of its flips that have a code. lane_of[j] is where flip j is, 0: nowhere.
 */
ALWAYS_INLINE unsigned lane_symbols(const struct route *route, unsigned bits, enum lanes kind, unsigned symbol,
				    uint32_t *symbols, uint8_t *lane_of)
{
	const unsigned flips = kind == FLIPS ? bits : route->alphabet.symbol_bits;
	unsigned lanes = 1;

	symbols[0] = symbol;
	if (kind == FLIPS)
		for (unsigned j = 0; j < bits; j++)
			symbols[lanes++] = symbol ^ 1u << j;
	if (kind != CODED_FLIPS)
		return lanes;
	symbol = alphabet_symbol(&route->alphabet, symbol);
	for (unsigned j = 0; j < flips; j++) {
		const uint32_t code = alphabet_code(&route->alphabet, symbol ^ 1u << j);

		symbols[lanes] = code;
		lane_of[j] = code == ALPHABET_NONE ? 0 : (uint8_t)lanes;
		lanes += code != ALPHABET_NONE;
	}
	return lanes;
}

/* Take steps until all are taken or the index has to be looked at; how many were. */
ALWAYS_INLINE size_t take_steps(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
				unsigned bits, enum lanes kind, bool ordered, size_t steps, const void *query,
				const void *key, const struct route_output *output)
{
	const struct chain_view view = chain_look(&route->chains, &route->contexts);
	const struct route_output out = *output;
	const struct manner how = {.policy = rules->policy,
				   .fold = rules->fold,
				   .delay = rules->delay,
				   .start = route->start,
				   .key = route->contexts.key,
				   .query = route->contexts.query};
	const bool draws = rules->flips_skipped;
	const unsigned flips = kind == CODED_FLIPS ? route->alphabet.symbol_bits : bits;
	const uint64_t work_allowed = route->work_allowed;
	struct cursor at = route->at;
	size_t run = 0;

	for (size_t i = 0; i < steps; i++) {
		const uint32_t t = route->steps + (uint32_t)i;
		bool news;

		if (how.policy != ROSA_READABLE)
			fold_key(&at, route, bits, how, symbol_get(key, bits, i), t);
		if (how.delay) {
			at.ready = admits(&at, route, how, t);
			if (at.ready)
				at.ready_word = packed_word(&how.key, bits, at.indexed + 1);
		}
		news = at.ready;
		at.ready = false;
		if (news)
			index_context(route, &view, bits, ordered, at.ready_word, ++at.indexed);
		if (fold_query(&at, route, bits, how, symbol_get(query, bits, i))) {
			uint32_t symbols[MAX_LANES], found[MAX_LANES];
			uint8_t lane_of[ROSA_MAX_BITS];
			const bool drawn =
			    !draws || draw(rules->draw_seed, out.route, at.query_runs - 1) >= rules->flips_skipped;
			const unsigned lanes = lane_symbols(route, bits, kind, at.query_symbol, symbols, lane_of);

			if (kind != QUERY_ONLY && UNLIKELY(!drawn)) {
				bool gave_up;

				at.best = find_alone(route, allocator, ordered, at, &gave_up);
				if (gave_up)
					steps = i + 1;
			} else if (!find_matches(route, allocator, &view, bits, ordered, &at, lanes, symbols, found)) {
				steps = i + 1;
			}
			if (kind != QUERY_ONLY)
				emit_flips(route, how, &at, found, kind == FLIPS ? NULL : lane_of, drawn, flips, t, run,
					   &out);
			run++;
		} else if (news) {
			at.best = ordered ? challenge_ordered(route, at.best, at.indexed, at.query_runs)
					  : challenge(route, bits, &at);
		}
		if (out.tau || out.length) {
			const int32_t tau = best_destination(&at, route, how, t);

			if (out.tau)
				out.tau[i] = tau;
			if (out.length)
				out.length[i] = tau < 0 ? 0 : (int32_t)at.best.length;
		}
		if (kind != QUERY_ONLY && out.step_flips)
			memcpy(out.step_flips + i * flips, route->flips, flips * sizeof(*route->flips));
		if (how.policy == ROSA_READABLE)
			fold_key(&at, route, bits, how, symbol_get(key, bits, i), t);
		if (!ordered && UNLIKELY(route->contexts.work > work_allowed))
			steps = i + 1;
	}
	route->at = at;
	route->steps += (uint32_t)steps;
	if (run)
		route->has_flips = kind != QUERY_ONLY;
	return steps;
}

/* The compiled versions (widths.h). */
#define VERSION(NAME, BITS, LANES, ORDERED)                                                                            \
	static size_t NAME(struct route *r, const struct route_rules *u, const rosa_allocator *a, size_t n,            \
			   const void *q, const void *k, const struct route_output *o)                                 \
	{                                                                                                              \
		return take_steps(r, u, a, BITS, LANES, ORDERED, n, q, k, o);                                          \
	}
#define CHAINS(M)        VERSION(chains_##M, M, QUERY_ONLY, false)
#define CHAINS_FLIPS(M)  VERSION(chains_flips_##M, M, FLIPS, false)
#define CHAINS_CODED(M)  VERSION(chains_coded_##M, M, CODED_FLIPS, false)
#define ORDERED(M)       VERSION(ordered_##M, M, QUERY_ONLY, true)
#define ORDERED_FLIPS(M) VERSION(ordered_flips_##M, M, FLIPS, true)
#define ORDERED_CODED(M) VERSION(ordered_coded_##M, M, CODED_FLIPS, true)
FOR_EACH_WIDTH(CHAINS)
FOR_EACH_WIDTH_OF_FLIPS(CHAINS_FLIPS)
FOR_EACH_WIDTH_OF_CODES(CHAINS_CODED)
FOR_EACH_WIDTH_OF_CODES(ORDERED)
FOR_EACH_WIDTH_OF_CODES(ORDERED_FLIPS)
FOR_EACH_WIDTH_OF_CODES(ORDERED_CODED)
VERSION(chains_any, r->contexts.bits, QUERY_ONLY, false)
VERSION(chains_flips_any, r->contexts.bits, FLIPS, false)
VERSION(chains_coded_any, r->contexts.bits, CODED_FLIPS, false)
VERSION(ordered_any, r->contexts.bits, QUERY_ONLY, true)
VERSION(ordered_flips_any, r->contexts.bits, FLIPS, true)
VERSION(ordered_coded_any, r->contexts.bits, CODED_FLIPS, true)

typedef size_t take_steps_fn(struct route *, const struct route_rules *, const rosa_allocator *, size_t, const void *,
			     const void *, const struct route_output *);

size_t route_take(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  const void *query, const void *key, const struct route_output *output)
{
	static take_steps_fn *const versions[][ROSA_MAX_SYMBOL_BITS + 1] = {
	    EACH_WIDTH(chains),           EACH_WIDTH_OF_FLIPS(chains_flips),  EACH_WIDTH_OF_CODES(chains_coded),
	    EACH_WIDTH_OF_CODES(ordered), EACH_WIDTH_OF_CODES(ordered_flips), EACH_WIDTH_OF_CODES(ordered_coded)};
	const bool flips = output->step_flips || output->run_flips, plain = alphabet_is_plain(&route->alphabet);
	take_steps_fn *const *const version = versions[(route->ordered ? 3 : 0) + (!flips ? 0 : plain ? 1 : 2)];
	take_steps_fn *const take = version[route->contexts.bits] ? version[route->contexts.bits] : version[0];

	return take(route, rules, allocator, steps, query, key, output);
}
