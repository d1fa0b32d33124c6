/*
 * Which index a route uses, and how it is laid out.
 *
 * The chain index is fast on most streams and slow on some. So its work is counted: contexts visited in chains, and
 * words compared beyond the first. Where a look-up takes more than a few of these, chains are picked by one more
 * symbol; where that does not help, or is not worth its memory, the route moves to the ordered index, whose cost no
 * stream can drive up. What a look-up may cost before that is about what it costs there, so staying too long at most
 * doubles the work.
 */
#include "retrieval/route.h"

/* Work per look-up that is allowed. With counterfactuals the ordered index has an advantage: their look-ups share the
 * way to the query. */
#define ALLOWED       16
#define ALLOWED_FLIPS 1
#define ALLOWED_FREE  4096

/* Bits of the longest strings that have a table beside the ordered index. */
#define ORDERED_TABLES 12

/* Work per look-up from which on one more symbol is tried, or one more set of chains, which takes more memory; and
 * look-ups after which that can be judged. */
#define CROWDED      3
#define CROWDED_SETS 6
#define JUDGED       1024

/* Work that a single look-up may take. */
#define PATIENCE 8192

/* Look-ups so far: contexts, which take none here but do in the ordered index, and queries with their flips. */
static uint64_t asked(const struct route *route, size_t steps)
{
	const uint64_t lanes = route->has_flips ? route->alphabet.symbol_bits + 1 : 1;

	return route->at.indexed + steps + (route->at.query_runs + steps) * lanes;
}

void route_allow(struct route *route, const struct route_rules *rules, size_t steps)
{
	const bool pinned = rules->engine == ROSA_ENGINE_CHAINS;

	route->work_allowed =
	    pinned ? UINT64_MAX : (route->has_flips ? ALLOWED_FLIPS : ALLOWED) * asked(route, steps) + ALLOWED_FREE;
	route->chains.patience = pinned ? UINT64_MAX / 2 : PATIENCE;
}

void route_refill(struct route *route, uint32_t contexts)
{
	const unsigned bits = route->contexts.bits;
	uint32_t *single = route->chains.table;

	if (!route->ordered) {
		chain_fill(&route->chains, &route->contexts, contexts);
		return;
	}
	order_clear(route->order);
	/* the table of single symbols tells what is in the order already */
	chain_clear(&route->chains, &route->contexts);
	for (uint32_t c = 1; c <= contexts; c++) {
		const unsigned symbol = packed_get(&route->contexts.key, bits, c - 1);

		order_insert(route->order, symbol, single[symbol]);
		single[symbol] = c;
	}
	chain_fill(&route->chains, &route->contexts, contexts);
}

bool route_move(struct route *route, const rosa_allocator *allocator)
{
	struct chain_layout layout = route->chains.layout;

	/* the ordered index relies on a table of single symbols */
	if (!layout.levels)
		layout.levels = 1;
	/* a search from the match before is cheap where sets are exact, and every table has to be kept up */
	while (route->contexts.bits <= ORDER_EXACT && layout.levels > 1 &&
	       layout.levels * route->contexts.bits > ORDERED_TABLES)
		layout.levels--;
	layout.deeper = 0;
	if (!route->order)
		route->order = order_new(allocator);
	if (!route->order || !order_reserve(route->order, allocator, route->contexts.key.capacity) ||
	    !chain_lay_out(&route->chains, allocator, &route->contexts, layout, 0, route->start != NULL))
		return false;
	route->ordered = true;
	chain_free_links(&route->chains, allocator);
	route_refill(route, route->at.indexed);
	contexts_forget(&route->contexts);
	route->contexts.work = 0;
	route->chains.gave_up = false;
	return true;
}

void route_settle(struct route *route, const rosa_allocator *allocator)
{
	if (route_move(route, allocator))
		return;
	route->chains.gave_up = false;
	route->chains.patience = UINT64_MAX / 2;
	route->work_allowed = UINT64_MAX;
}

/* The layout to use for the present number of contexts. Where chains are picked by more symbols than the number of
 * roots asks for, that stays so. */
static struct chain_layout layout_now(const struct route *route)
{
	struct chain_layout layout =
	    chain_layout_for(&route->contexts, route->alphabet.symbol_bits, route->at.indexed, false);

	if (layout.root_bits < route->chains.layout.root_bits)
		layout.root_bits = route->chains.layout.root_bits;
	if (layout.levels < route->chains.layout.levels)
		layout.levels = route->chains.layout.levels;
	/* more tables may leave fewer symbols for sets of chains */
	for (layout.deeper = 0; layout.deeper < route->chains.layout.deeper;)
		if (!chain_layout_deeper(&route->contexts, &layout))
			break;
	return layout;
}

/* Failing to get memory for a better layout costs speed only. */
static void lay_out(struct route *route, const rosa_allocator *allocator, struct chain_layout layout)
{
	if (layout.root_bits != route->chains.layout.root_bits || layout.levels != route->chains.layout.levels ||
	    layout.deeper != route->chains.layout.deeper)
		chain_lay_out(&route->chains, allocator, &route->contexts, layout, route->at.indexed,
			      route->start != NULL);
	route->work_laid_out = route->contexts.work;
	route->asked_laid_out = asked(route, 0);
}

/* More roots for more contexts, in a stream that grows. That takes a while, and the routes of a stream, which are of
 * one length, are not all to do it in the same step: when it is looked at next is different for each. */
static void grow(struct route *route, const rosa_allocator *allocator)
{
	const uint64_t draw = route->at.key_word * CHAIN_HASH >> 32;
	struct chain_layout layout;

	if (route->start || route->at.indexed < route->laid_out_until)
		return;
	route->laid_out_until = route->at.indexed + 64 + (uint32_t)((route->at.indexed / 16) * draw >> 32);
	layout = layout_now(route);
	if (layout.root_bits > route->chains.layout.root_bits)
		lay_out(route, allocator, layout);
}

/* One more symbol picks a root, if its table has at most `most` entries. Wide codes have no such tables, and the
 * ordered index is slow with them; one more set of chains does the same, if `sets` may be added. */
static bool lengthen(struct route *route, const rosa_allocator *allocator, size_t most, bool sets)
{
	struct chain_layout layout = route->chains.layout;

	if (!chain_layout_longer(&route->contexts, most, &layout) &&
	    !(sets && chain_layout_deeper(&route->contexts, &layout)))
		return false;
	lay_out(route, allocator, layout);
	route->contexts.work = route->work_laid_out = 0;
	route->chains.gave_up = false;
	return route->chains.layout.levels == layout.levels && route->chains.layout.deeper == layout.deeper;
}

void route_adapt(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator)
{
	uint64_t questions;

	if (!route->chains.gave_up)
		grow(route, allocator);
	if (route->ordered)
		return;
	questions = asked(route, 0) - route->asked_laid_out;
	if (questions > JUDGED) {
		const uint64_t work = route->contexts.work - route->work_laid_out;

		if (work > CROWDED * questions &&
		    lengthen(route, allocator, (route->at.indexed + 4096) * (route->start ? 16 : 2),
			     work > CROWDED_SETS * questions))
			return;
		route->work_laid_out = route->contexts.work;
		route->asked_laid_out = asked(route, 0);
	}
	route_allow(route, rules, 0);
	if (rules->engine == ROSA_ENGINE_EAGER && route->at.indexed > 20)
		route_settle(route, allocator);
	/* The ordered index would take more memory than the table of another symbol. Counterfactuals are faster in it
	 * than in sets of chains. */
	else if ((route->chains.gave_up || route->contexts.work > route->work_allowed) &&
		 !lengthen(route, allocator, (route->at.indexed + 4096) * 16, !route->has_flips))
		route_settle(route, allocator);
}

struct match route_match_anew(const struct route *route, uint32_t runs)
{
	const struct contexts *const ctx = &route->contexts;

	/* Match the last m symbols one by one, and again with a larger m if all of them matched, as a longer match
	 * might exist. */
	for (uint32_t m = 16;; m *= 4) {
		struct match best = {0, 0};

		m = least(m, runs);
		for (uint32_t i = 0; i < m; i++) {
			const uint32_t symbol = packed_get(&ctx->query, ctx->bits, runs - m + i);
			uint32_t found = 0;

			best.length =
			    order_find(route->order, best, &symbol, least(i + 1, ctx->max_match), 0, 1, &found);
			best.context = found;
		}
		if (best.length < m || m == runs || best.length == ctx->max_match)
			return best;
	}
}
