/* Runs, policies and the step itself. The overview is in route.h. */
#include "retrieval/route.h"
#include "base/draw.h"
#include "retrieval/scout.h"
#include "retrieval/widths.h"

/*
 * How many trees. A stream that grows has a root for every two to four contexts, at most two bytes a context; from MANY
 * contexts on, when no cache holds them and every hop of a single step waits for memory, somewhat more. Where the whole
 * length is known the table is scratch memory, and worth being larger: a look-up that ends in a table is cheaper than
 * one that walks.
 */
#define MANY ((size_t)1 << 19)

static unsigned roots_for(const struct route_rules *rules, size_t contexts, bool scratch)
{
	unsigned root_bits = 4;
	uint64_t most = (uint64_t)rules->max_match * rules->bits;

	if (scratch) {
		while (root_bits < 20 && ((size_t)1 << root_bits >> (rules->bits <= 4 ? 4 : 2)) < contexts)
			root_bits++;
		while (root_bits < TREE_MAX_ROOTS && (size_t)1 << root_bits >> 2 < contexts)
			root_bits++;
	} else {
		while (root_bits < TREE_MAX_ROOTS && (size_t)(contexts > MANY ? 3 : 4) << root_bits <= contexts)
			root_bits++;
	}
	return root_bits < most ? root_bits : (unsigned)most;
}

/* Nodes or words a look-up may visit on average before the route moves to the ordered index. With counterfactuals the
 * ordered index has an advantage: their look-ups share the way to the query. */
#define HOPS_ALLOWED       16
#define HOPS_ALLOWED_FLIPS 2

/* What a single operation may visit. */
#define PATIENCE 8192

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

struct contexts contexts_for(unsigned bits, uint32_t max_match)
{
	unsigned word = packed_word_symbols(bits);

	if (word > max_match)
		word = max_match;
	return (struct contexts){.bits = bits, .max_match = max_match, .word = word, .mask = packed_mask(bits, word)};
}

void route_init(struct route *route, const struct route_rules *rules)
{
	memset(route, 0, sizeof(*route));
	route->contexts = contexts_for(rules->bits, rules->max_match);
}

void route_clear(struct route *route)
{
	tree_clear(&route->tree);
	starts_truncate(&route->key_starts, 0);
	starts_truncate(&route->query_starts, 0);
	route->steps = route->key_runs = route->query_runs = route->indexed = 0;
	route->key_word = route->ready_word = route->query_word = 0;
	route->ready = route->has_flips = false;
	route->best = (struct match){0, 0};
	route->ordered = false;
	route->roots_until = 0;
	route->room = 0; /* a route that had moved has no memory for trees */
}

/* What the tree index may have worked after `steps` more steps. Hops count, and so do words of long comparisons. What a
 * look-up may cost is about what it costs in the ordered index, so that staying too long at most doubles the work. */
static uint64_t allowed(const struct route *route, const struct route_rules *rules, size_t steps)
{
	uint64_t lanes = route->has_flips ? rules->bits + 1 : 1;

	if (rules->engine == ROSA_ENGINE_TREE)
		return UINT64_MAX;
	return (route->has_flips ? HOPS_ALLOWED_FLIPS : HOPS_ALLOWED) *
		   (route->indexed + steps + (route->query_runs + steps) * lanes) +
	       4096;
}

/* Should the route move to the ordered index? */
static bool overworked(const struct route *route, const struct route_rules *rules)
{
	return (rules->engine == ROSA_ENGINE_EAGER && route->indexed > 20) ||
	       route->tree.work > allowed(route, rules, 0);
}

/*
 * The set `seen` of strings of one symbol more than the tables know. All symbols but the last choose a line of the
 * cache, so that a query and its flips are told from one; the last chooses a bit of it.
 */
#define SEEN_LINE 512 /* bits */

struct seen {
	uint64_t *line;
	unsigned salt;
};

ALWAYS_INLINE struct seen seen_by(const struct route *route, const struct tree_view *view, unsigned bits, uint64_t word)
{
	const uint64_t past = word << bits >> (64 - view->levels * bits), hash = past * UINT64_C(0x9e3779b97f4a7c15);

	return (struct seen){route->seen + (hash >> (64 - route->seen_bits)) * (SEEN_LINE / 64),
			     (unsigned)(hash >> 20)};
}

/* Linear in the symbol, and different for a symbol and its flips. */
ALWAYS_INLINE unsigned seen_place(struct seen seen, unsigned symbol)
{
	return (seen.salt ^ symbol ^ symbol >> 7) % SEEN_LINE;
}

ALWAYS_INLINE void seen_note(const struct route *route, const struct tree_view *view, unsigned bits, uint64_t word)
{
	if (bits > ORDER_EXACT && route->seen) {
		const struct seen seen = seen_by(route, view, bits, word);
		const unsigned place = seen_place(seen, (unsigned)(word >> (64 - bits)));

		seen.line[place / 64] |= UINT64_C(1) << place % 64;
	}
}

/* The lanes whose match may be longer than the tables go: one is left out only if its string has not occurred. */
ALWAYS_INLINE uint32_t seen_lanes(const struct route *route, const struct tree_view *view, unsigned bits, uint64_t word,
				  unsigned lanes)
{
	const struct seen seen = seen_by(route, view, bits, word);
	const unsigned symbol = (unsigned)(word >> (64 - bits));
	uint32_t mask = 0;

	for (unsigned lane = 0; lane < lanes; lane++) {
		const unsigned place = seen_place(seen, lane ? symbol ^ 1u << (lane - 1) : symbol);

		mask |= (uint32_t)(seen.line[place / 64] >> place % 64 & 1) << lane;
	}
	return mask;
}

/* Most counterfactuals of a hostile stream never occurred. Where the sets of following symbols are not exact, the
 * ordered index finds that out by entering subtrees in vain; eight bits a context tell it at once. Where the length is
 * known these are scratch; a stream that grows does without. */
static bool clear_seen(struct route *route, const rosa_allocator *allocator)
{
	unsigned seen_bits = 1;

	if (!route->start || route->contexts.bits <= ORDER_EXACT)
		return true;
	while (seen_bits < 25 && ((size_t)SEEN_LINE << seen_bits) / 8 < route->contexts.key.capacity)
		seen_bits++;
	if (!route->seen || seen_bits != route->seen_bits) {
		memory_free(allocator, route->seen);
		route->seen = memory_resize(allocator, NULL, ((size_t)SEEN_LINE << seen_bits) / 8);
		if (!route->seen)
			return false;
		route->seen_bits = seen_bits;
	}
	memset(route->seen, 0, ((size_t)SEEN_LINE << seen_bits) / 8);
	return true;
}

/* Put the first contexts into the ordered index, which is empty, and into the tables. If the tables know just these
 * already, as those of the trees do, only the one of single symbols is made anew: it tells what is in the order. */
static void fill_ordered(struct route *route, uint32_t contexts, bool noted)
{
	const unsigned bits = route->contexts.bits;
	struct tree_view view;

	if (!noted)
		tree_clear(&route->tree);
	view = tree_look(&route->tree, &route->contexts, false);
	memset(view.table, 0, ((size_t)1 << bits) * sizeof(*view.table));
	for (uint32_t context = 1; context <= contexts; context++) {
		const uint64_t word = packed_word(&route->contexts.key, bits, context);
		const unsigned symbol = (unsigned)(word >> (64 - bits));

		order_insert(route->order, symbol, view.table[symbol]);
		view.table[symbol] = context;
		if (!noted)
			tree_note(&view, bits, word, context);
		seen_note(route, &view, bits, word);
	}
}

/* Move to the ordered index. A route that will be used again for another stream, as in batch retrieval, keeps its
 * trees. */
static bool move(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator)
{
	/* The ordered index relies on a table of single symbols, and a table where there were roots. */
	const bool noted = route->tree.use == TREE_SCRATCH && route->tree.levels > 0;
	const unsigned levels = route->tree.levels ? route->tree.levels : 1;

	if (!route->order)
		route->order = order_new(allocator);
	if (!route->order || !order_reserve(route->order, allocator, route->contexts.key.capacity) ||
	    !clear_seen(route, allocator))
		return false;
	if (!noted && !tree_set_roots(&route->tree, allocator, &route->contexts, levels * rules->bits, 0, TREE_TABLES))
		return false;
	order_clear(route->order);
	fill_ordered(route, route->indexed, noted);
	route->ordered = true;
	if (!route->start)
		tree_free_children(&route->tree, allocator);
	tree_forget(&route->tree);
	route->tree.work = 0;
	route->tree.gave_up = false;
	return true;
}

/* Room for a list of first steps of `runs` runs. */
static bool reserve_list(struct route *route, const rosa_allocator *allocator, size_t runs)
{
	size_t capacity = route->start ? memory_grown(route->start_capacity, runs + 1) : runs + 1;
	int32_t *start;

	if (route->start && runs + 1 <= route->start_capacity)
		return true;
	start = memory_resize(allocator, route->start, capacity * sizeof(*start));
	if (!start)
		return false;
	start[0] = -1;
	route->start = start;
	route->start_capacity = capacity;
	return true;
}

bool route_reserve_runs(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
			size_t steps, size_t key_runs, size_t query_runs, bool keep_starts, size_t total)
{
	steps += route->steps;
	key_runs += route->key_runs;
	query_runs += route->query_runs;
	if (keep_starts) {
		if (!starts_reserve(&route->key_starts, allocator, steps, key_runs, true) ||
		    !starts_reserve(&route->query_starts, allocator, steps, query_runs, false))
			return false;
	} else if (!reserve_list(route, allocator, key_runs)) {
		return false;
	}
	if (!packed_reserve(&route->contexts.key, allocator, rules->bits, key_runs) ||
	    !packed_reserve(&route->contexts.query, allocator, rules->bits, query_runs))
		return false;
	if ((!route->tree.table || total || (route->tree.use == TREE_TABLES && !route->ordered)) &&
	    !tree_set_roots(&route->tree, allocator, &route->contexts, roots_for(rules, total, total != 0), 0,
			    total ? TREE_SCRATCH : TREE_GROWS))
		return false;
	if (!route->ordered && rules->engine == ROSA_ENGINE_ORDERED && !move(route, rules, allocator))
		return false;
	if (!(route->ordered ? order_reserve(route->order, allocator, route->contexts.key.capacity)
			     : tree_reserve(&route->tree, allocator, &route->contexts, route->indexed, key_runs)))
		return false;
	if (steps > route->room)
		route->room = steps;
	return true;
}

bool route_reserve(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		   bool keep_starts, size_t total)
{
	return route_reserve_runs(route, rules, allocator, steps, steps, steps, keep_starts, total);
}

/* More trees for more contexts. */
static void add_roots(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator)
{
	unsigned root_bits;

	if (route->indexed < route->roots_until)
		return;
	/* Growing takes long. The routes of a stream, which are of one length, are not all to do it in the same step.
	 */
	route->roots_until =
	    route->indexed + 64 +
	    (uint32_t)((uint64_t)(route->indexed / 16) * (route->key_word * UINT64_C(0x9e3779b97f4a7c15) >> 32) >> 32);
	root_bits = roots_for(rules, route->indexed, false);
	if (route->ordered)
		root_bits -= root_bits % rules->bits;
	if (root_bits <= route->tree.root_bits)
		return;
	if (!route->ordered)
		tree_set_roots(&route->tree, allocator, &route->contexts, root_bits, route->indexed, TREE_GROWS);
	else if (tree_set_roots(&route->tree, allocator, &route->contexts, root_bits, 0, TREE_TABLES))
		tree_note_all(&route->tree, &route->contexts, route->indexed);
}

/* The first step of the key run after a context, from whichever the route keeps. Context 0, none, leads to -1. */
ALWAYS_INLINE int32_t first_step(const int32_t *start, const struct starts *starts, uint32_t context)
{
	if (LIKELY(start))
		return start[context];
	return context ? (int32_t)starts_select(starts, context) : -1;
}

/* Does this symbol begin a run? Asked again wherever the answer is used: kept over a step it costs a register. */
ALWAYS_INLINE bool begins(bool fold, uint32_t runs, unsigned symbol, unsigned last)
{
	return !fold || !runs || symbol != last;
}

/* Keep whether key run number `run` begins at step t. */
ALWAYS_INLINE void note_start(int32_t *start, struct starts *starts, uint32_t run, bool here, uint32_t t)
{
	if (UNLIKELY(!start))
		starts_push(starts, here);
	else if (here && run)
		start[run] = (int32_t)t;
}

/* The equation of the paper: the destination that a match leads to at step t. */
ALWAYS_INLINE int32_t destination(const int32_t *start, const struct starts *starts, rosa_policy policy,
				  uint32_t key_runs, uint32_t context, uint32_t t)
{
	int32_t tau;

	if (policy != ROSA_LITERAL)
		return first_step(start, starts, context);
	/* The successor of the newest run has not begun, and one that begins just now cannot be read. */
	if (context >= key_runs)
		return -1;
	tau = first_step(start, starts, context);
	return tau < (int32_t)t ? tau : -1;
}

/* Where among the contexts that end in the same symbol, if they are few and a word tells, does this one belong? They
 * lie in the order of what precedes that symbol. */
static bool find_gap(const struct route *route, const struct tree_view *view, unsigned bits, uint64_t word,
		     uint32_t context, struct order_gap *gap)
{
	uint32_t members[ORDER_FEW];
	const uint32_t relative = view->table[word >> (64 - bits)];
	const unsigned count = relative ? order_few(route->order, relative, 1, members) : 0;
	const uint64_t own = word & view->mask;

	*gap = (struct order_gap){0};
	for (unsigned i = 0; i < count; i++) {
		const uint64_t other = tree_word(view, bits, members[i]);
		uint32_t shared;

		/* what is shorter than a word does not show all in it */
		if (own == other || least(members[i], context) <= route->contexts.word)
			return false;
		shared = leading_zeros(own ^ other) / bits;
		/* of several that it shares as much with, the last before it, or the first behind it */
		if (shared < 2 || shared < gap->shared)
			continue;
		if (order_before(route->order, members[i] - 1, context - 1))
			*gap = (struct order_gap){members[i], shared, false};
		else if (shared > gap->shared)
			*gap = (struct order_gap){members[i], shared, true};
	}
	if (count && !gap->neighbour)
		*gap = (struct order_gap){members[count - 1], 1, false};
	return count > 0;
}

ALWAYS_INLINE void index_context(struct route *route, struct tree_index *tree, const struct tree_view *view,
				 unsigned bits, bool ordered, uint64_t word, uint32_t context)
{
	if (ordered) {
		const unsigned symbol = (unsigned)(word >> (64 - bits));
		struct order_gap gap;

		if (bits > TREE_NARROW && find_gap(route, view, bits, word, context, &gap))
			order_insert_into(route->order, symbol, gap);
		else
			order_insert(route->order, symbol, view->table[symbol]);
		tree_note(view, bits, word, context);
		seen_note(route, view, bits, word);
	} else {
		tree_insert(tree, view, &route->contexts, bits, word, context);
	}
}

/* The trees are no longer to be used: move, or, where there is no memory to, build them anew and let them take their
 * time. */
static void settle(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator)
{
	struct tree_index *tree = &route->tree;

	if (move(route, rules, allocator) || !tree->gave_up)
		return;
	tree_clear(tree);
	tree->patience = UINT64_MAX;
	tree_fill(tree, &route->contexts, route->indexed);
}

/* How many symbols context `c` shares with the query, the best match of which was `past` a symbol ago: with the context
 * before it as many as that one shares with `past`, but no more than `past` shares with the query. */
static uint32_t shared_by_past(const struct route *route, struct match past, uint32_t c)
{
	uint32_t shared = c - 1 == past.context ? past.length : order_shared(route->order, c - 1, past.context);

	return least(shared, past.length) + 1;
}

/* Among the contexts that share `levels` symbols with what the tables found, the longest match of a query with word
 * `word`, if they are few: then found is set to it and its length returned, and otherwise 0. */
ALWAYS_INLINE uint32_t match_few(const struct route *route, const struct tree_view *view, unsigned bits, uint64_t word,
				 struct match past, uint32_t cap, uint32_t levels, bool want_length, uint32_t *found)
{
	uint32_t members[ORDER_FEW], longest = 0, best = 0;
	const unsigned count = order_few(route->order, *found, levels, members);

	if (count == 1 && !want_length)
		return levels; /* at least; nobody else comes into question */
	for (unsigned i = 0; i < count; i++) {
		const uint64_t different = tree_word(view, bits, members[i]) ^ (word & view->mask);
		uint32_t shared = different ? least(leading_zeros(different) / bits, members[i])
					    : shared_by_past(route, past, members[i]);

		shared = least(shared, cap);
		if (shared > longest || (shared == longest && members[i] > best)) {
			longest = shared;
			best = members[i];
		}
	}
	if (longest)
		*found = best;
	return longest;
}

/*
 * The tables answer what they can; only a match that may be longer than they go is looked for in the order.
 *
 * A symbol of many bits is often rare, and the few contexts that end in it are quicker compared one by one than sought
 * from where the query was: the order's sets of following symbols do not tell wide symbols well apart.
 */
ALWAYS_INLINE uint32_t find_ordered(const struct route *route, const struct tree_view *view, unsigned bits,
				    uint64_t word, uint32_t length, struct match past, unsigned lanes, uint32_t *found)
{
	const uint32_t cap = least(length, route->contexts.max_match), levels = least(view->levels, cap);
	uint32_t deep, longer = 0, matched = tree_recall(view, bits, word, cap, lanes, found, &deep);

	if (past.length < levels || cap <= levels)
		return matched;
	if (bits > ORDER_EXACT && route->seen && deep)
		deep &= seen_lanes(route, view, bits, word, lanes);
	for (uint32_t left = bits > TREE_NARROW ? deep : 0; left; left &= left - 1) {
		const unsigned lane = (unsigned)__builtin_ctz(left);
		const uint64_t flip = lane ? UINT64_C(1) << (64 - bits + lane - 1) : 0;
		const uint32_t length =
		    found[lane] ? match_few(route, view, bits, word ^ flip, past, cap, levels, lane == 0, &found[lane])
				: 0;

		if (length)
			deep &= ~(1u << lane);
		if (length && lane == 0)
			longer = length;
	}
	if (deep) {
		uint32_t length =
		    order_find(route->order, past, (unsigned)(word >> (64 - bits)), cap, levels, deep, found);

		longer = length ? length : longer;
	}
	return longer ? longer : matched;
}

/* The trees gave up on a look-up, or before it. */
static uint32_t rescue(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
		       uint32_t indexed, uint64_t word, uint32_t length, struct match past, unsigned lanes,
		       uint32_t *found)
{
	struct tree_view view;

	route->indexed = indexed;
	settle(route, rules, allocator);
	view = tree_look(&route->tree, &route->contexts, false);
	if (route->ordered)
		return find_ordered(route, &view, rules->bits, word, length, past, lanes, found);
	return tree_find(&route->tree, &view, &route->contexts, rules->bits, word, length, lanes, found);
}

/* The query stands still and a context became a candidate: as the newest of all it wins with as long a match. */
static struct match challenge_ordered(struct route *route, struct match best, uint32_t context, uint32_t length,
				      uint32_t cap)
{
	uint32_t shared = best.context ? order_shared(route->order, context, best.context) : 0;
	int sign;

	if (shared < best.length)
		return best;
	/* Beyond what the best shares only the symbols themselves can tell. */
	if (shared > best.length || shared >= cap)
		shared = best.length;
	else
		shared = tree_compare_long(&route->tree, route->tree.with_query, true, &route->contexts, context,
					   &route->contexts.query, length, shared, &sign);
	return shared ? (struct match){context, least(shared, cap)} : best;
}

ALWAYS_INLINE size_t take_steps(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator,
				unsigned bits, bool flips, bool ordered, bool lean, bool far, size_t steps,
				const uint16_t *query, const uint16_t *key, const struct route_output *output)
{
	/* Locals whose address nobody takes: stores to the outputs cannot touch them, so they may live in registers. */
	const struct tree_view view = tree_look(&route->tree, &route->contexts, lean);
	struct tree_index *const tree = &route->tree;
	struct contexts *const ctx = &route->contexts;
	struct packed key_symbols = ctx->key, query_symbols = ctx->query;
	const rosa_policy policy = lean ? ROSA_READABLE : rules->policy;
	const bool fold = lean || rules->fold;
	const struct route_output out = *output;
	int32_t *const start = route->start;
	struct starts *const key_starts = &route->key_starts, *const query_starts = &route->query_starts;
	uint64_t key_word = route->key_word, ready_word = route->ready_word, query_word = route->query_word;
	uint32_t key_runs = route->key_runs, query_runs = route->query_runs, indexed = route->indexed;
	unsigned key_symbol = route->key_symbol, query_symbol = route->query_symbol;
	struct match best = route->best;
	bool ready = route->ready;
	const uint64_t work_limit = route->work_limit;
	const unsigned lanes = flips ? bits + 1 : 1;
	struct vanguard ahead;
	size_t run = 0;

	if (far) {
		ahead.query_word = query_word;
		ahead.key_word = key_word;
		ahead.query_symbol = query_symbol;
		ahead.key_symbol = key_symbol;
	}
	for (size_t i = 0; far && i < FAR && i < steps; i++)
		vanguard_send(&ahead, &view, bits, lanes, fold, i, query[i], key[i]);
	for (size_t i = 0; far && i < FAR - GAP && i < steps; i++)
		scout_land(&ahead.scout[i], &view, route, start, bits, lanes, true);
	for (size_t i = 0; i < steps; i++) {
		const uint32_t t = route->steps + (uint32_t)i;
		bool news = false;

		if (far) {
			if (i + FAR - GAP < steps)
				scout_land(&ahead.scout[(i + FAR - GAP) % FAR], &view, route, start, bits, lanes, true);
			/* where the length was known there are more trees than contexts, and no further hops */
			for (size_t hop = FAR - 2 * GAP; hop > 0 && !lean; hop -= GAP)
				if (i + hop < steps)
					scout_on(&ahead.scout[(i + hop) % FAR], &view, route, start, bits);
			if (i + FAR < steps)
				vanguard_send(&ahead, &view, bits, lanes, fold, i + FAR, query[i + FAR], key[i + FAR]);
		} else if (!ordered && i + 1 < steps) {
			tree_prefetch(&view, bits,
				      packed_push(packed_push(query_word, bits, query[i]), bits, query[i + 1]));
			tree_prefetch(&view, bits, packed_push(key_word, bits, key[i]));
		}
		if (policy == ROSA_READABLE) {
			news = ready;
			if (ready)
				index_context(route, tree, &view, bits, ordered, ready_word, ++indexed);
		}
		if (policy != ROSA_READABLE)
			note_start(start, key_starts, key_runs, begins(fold, key_runs, key[i], key_symbol), t);
		if (policy != ROSA_READABLE && begins(fold, key_runs, key[i], key_symbol)) {
			ready_word = key_word;
			key_symbol = key[i];
			key_word = packed_push(key_word, bits, key_symbol);
			packed_put(&key_symbols, bits, key_runs, key_word);
			news = key_runs++ || policy == ROSA_LITERAL;
			if (news)
				index_context(route, tree, &view, bits, ordered,
					      policy == ROSA_LITERAL ? key_word : ready_word, ++indexed);
		}
		if (!lean && !start)
			starts_push(query_starts, begins(fold, query_runs, query[i], query_symbol));
		if (begins(fold, query_runs, query[i], query_symbol)) {
			uint32_t found[TREE_MAX_LANES];
			const bool drawn =
			    flips && (lean || !rules->flips_skipped ||
				      draw(rules->draw_seed, out.route, query_runs) >= rules->flips_skipped);

			query_symbol = query[i];
			query_word = packed_push(query_word, bits, query_symbol);
			packed_put(&query_symbols, bits, query_runs, query_word);
			query_runs++;
			if (ordered) {
				best.length = find_ordered(route, &view, bits, query_word, query_runs, best,
							   drawn ? bits + 1 : 1, found);
			} else {
				const struct match past = best;

				/* two calls, for the number of lanes to be a constant in each */
				if (LIKELY(!tree->gave_up))
					best.length =
					    drawn ? tree_find(tree, &view, ctx, bits, query_word, query_runs, bits + 1,
							      found)
						  : tree_find(tree, &view, ctx, bits, query_word, query_runs, 1, found);
				if (UNLIKELY(tree->gave_up)) {
					best.length = rescue(route, rules, allocator, indexed, query_word, query_runs,
							     past, drawn ? bits + 1 : 1, found);
					/* what `view` shows may be gone, and the next step belongs to the order */
					steps = i + 1;
				}
			}
			best.context = found[0];
			if (flips && !drawn)
				for (unsigned j = 0; j < bits; j++)
					found[j + 1] = found[0];
			if (flips) {
				int32_t *row = lean || out.run_flips ? out.run_flips + run * bits : route->flips;

				for (unsigned j = 0; j < bits; j++)
					row[j] =
					    lean ? start[found[j + 1]]
						 : destination(start, key_starts, policy, key_runs, found[j + 1], t);
				if (lean || out.run_start) {
					out.run_start[run] = (int32_t)t;
					out.run_tau[run] =
					    lean ? start[found[0]]
						 : destination(start, key_starts, policy, key_runs, found[0], t);
				}
			}
			run++;
		} else if (news) {
			uint32_t cap = least(query_runs, ctx->max_match);

			if (ordered) {
				best = challenge_ordered(route, best, indexed, query_runs, cap);
			} else {
				uint32_t shared =
				    tree_shared(tree, &view, ctx, bits, indexed, query_word, query_runs, cap);

				if (shared && shared >= best.length)
					best = (struct match){indexed, shared};
			}
		}
		if (lean) {
			out.tau[i] = start[best.context];
		} else if (out.tau || out.length) {
			int32_t tau = destination(start, key_starts, policy, key_runs, best.context, t);

			if (out.tau)
				out.tau[i] = tau;
			if (out.length)
				out.length[i] = tau < 0 ? 0 : (int32_t)best.length;
		}
		if (!lean && flips && out.step_flips)
			memcpy(out.step_flips + i * bits, route->flips, bits * sizeof(*route->flips));
		if (policy == ROSA_READABLE) {
			ready = false;
			if (lean)
				start[key_runs ? key_runs : 1] = (int32_t)t; /* written again until a run begins */
			else
				note_start(start, key_starts, key_runs, begins(fold, key_runs, key[i], key_symbol), t);
			if (begins(fold, key_runs, key[i], key_symbol)) {
				ready_word = key_word;
				key_symbol = key[i];
				key_word = packed_push(key_word, bits, key_symbol);
				packed_put(&key_symbols, bits, key_runs, key_word);
				ready = key_runs++ != 0;
			}
		}
		if (!ordered && UNLIKELY(tree->work > work_limit || tree->gave_up))
			steps = i + 1;
	}
	route->key_word = key_word;
	route->ready_word = ready_word;
	route->query_word = query_word;
	route->key_runs = key_runs;
	route->query_runs = query_runs;
	route->indexed = indexed;
	route->key_symbol = (uint16_t)key_symbol;
	route->query_symbol = (uint16_t)query_symbol;
	route->best = best;
	route->ready = ready;
	route->steps += (uint32_t)steps;
	if (run)
		route->has_flips = flips;
	return steps;
}

typedef size_t take_steps_fn(struct route *, const struct route_rules *, const rosa_allocator *, size_t,
			     const uint16_t *, const uint16_t *, const struct route_output *);

/* One compiled version a number of bits, with and without counterfactuals: for any rules and outputs, for the usual
 * ones of batch retrieval, lean of all questions, and both with scouts. */
#define VERSION(NAME, M, FLIPS, ORDERED, LEAN, SCOUTS)                                                                 \
	static size_t NAME(struct route *r, const struct route_rules *u, const rosa_allocator *a, size_t n,            \
			   const uint16_t *q, const uint16_t *k, const struct route_output *o)                         \
	{                                                                                                              \
		return take_steps(r, u, a, M, FLIPS, ORDERED, LEAN, SCOUTS, n, q, k, o);                               \
	}
#define VERSIONS(M)                                                                                                    \
	VERSION(take_##M, M, false, false, false, false)                                                               \
	VERSION(take_flips_##M, M, true, false, false, false)                                                          \
	VERSION(lean_##M, M, false, false, true, false)                                                                \
	VERSION(lean_flips_##M, M, true, false, true, false)                                                           \
	VERSION(far_##M, M, false, false, false, true)                                                                 \
	VERSION(far_flips_##M, M, true, false, false, true)                                                            \
	VERSION(lean_far_##M, M, false, false, true, true)                                                             \
	VERSION(lean_far_flips_##M, M, true, false, true, true)                                                        \
	VERSION(ordered_##M, M, false, true, false, false)                                                             \
	VERSION(ordered_flips_##M, M, true, true, false, false)                                                        \
	VERSION(lean_ordered_##M, M, false, true, true, false)                                                         \
	VERSION(lean_ordered_flips_##M, M, true, true, true, false)
FOR_EACH_WIDTH(VERSIONS)

enum kind { TREE, TREE_LEAN, TREE_FAR, TREE_LEAN_FAR, ORDERED, ORDERED_LEAN, KINDS };

static take_steps_fn *const versions[KINDS][2][ROSA_MAX_BITS + 1] = {
    [TREE] = {EACH_WIDTH(take), EACH_WIDTH(take_flips)},
    [TREE_LEAN] = {EACH_WIDTH(lean), EACH_WIDTH(lean_flips)},
    [TREE_FAR] = {EACH_WIDTH(far), EACH_WIDTH(far_flips)},
    [TREE_LEAN_FAR] = {EACH_WIDTH(lean_far), EACH_WIDTH(lean_far_flips)},
    [ORDERED] = {EACH_WIDTH(ordered), EACH_WIDTH(ordered_flips)},
    [ORDERED_LEAN] = {EACH_WIDTH(lean_ordered), EACH_WIDTH(lean_ordered_flips)},
};

/* Single steps have scouts of their own (scout.c); where a test pins the trees, scouts go from the start. */
static enum kind kind_for(const struct route *route, const struct route_rules *rules, bool lean, size_t steps)
{
	const bool far = steps > 1 && (route->indexed > TREE_BEYOND_CACHES || rules->engine == ROSA_ENGINE_TREE);

	if (route->ordered)
		return lean ? ORDERED_LEAN : ORDERED;
	return far ? lean ? TREE_LEAN_FAR : TREE_FAR : lean ? TREE_LEAN : TREE;
}

/* Between pieces of this many steps the index may be given more roots, or left for the other one: hostile streams can
 * make every step of a piece expensive, so it is short. */
#define PIECE 128

/* Steps taken again at a time when a route is undone. */
#define REPLAY 256

static void advance(int32_t **output, size_t by)
{
	if (*output)
		*output += by;
}

void route_push(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		const uint16_t *query, const uint16_t *key, const struct route_output *output)
{
	struct route_output part = *output;
	const bool flips = part.step_flips || part.run_flips;
	const bool lean = rules->policy == ROSA_READABLE && rules->fold && route->start && part.tau && !part.length &&
			  !part.step_flips && (!flips || (part.run_start && !rules->flips_skipped));

	while (steps) {
		size_t most = rules->engine == ROSA_ENGINE_EAGER ? 7 : PIECE, piece = steps < most ? steps : most;
		uint32_t runs = route->query_runs;

		route->work_limit = allowed(route, rules, piece);
		route->tree.patience = rules->engine == ROSA_ENGINE_TREE ? UINT64_MAX : PATIENCE;
		piece = versions[kind_for(route, rules, lean, piece)][flips][rules->bits](route, rules, allocator,
											  piece, query, key, &part);
		runs = route->query_runs - runs;
		/* Failing to get memory for this costs speed only. */
		if (!route->tree.gave_up)
			add_roots(route, rules, allocator);
		if (!route->ordered && (route->tree.gave_up || overworked(route, rules)))
			settle(route, rules, allocator);
		query += piece;
		key += piece;
		steps -= piece;
		advance(&part.tau, piece);
		advance(&part.length, piece);
		advance(&part.step_flips, piece * rules->bits);
		advance(&part.run_start, runs);
		advance(&part.run_tau, runs);
		advance(&part.run_flips, runs * rules->bits);
	}
}

/* Bring the index back to its first `indexed` contexts: undo one by one, or fill it anew where that is less. */
static void shrink_index(struct route *route, uint32_t indexed)
{
	struct tree_index *tree = &route->tree;
	bool anew = route->indexed - indexed > indexed;

	if (anew && route->ordered) {
		order_clear(route->order);
		fill_ordered(route, indexed, false);
	} else if (anew) {
		tree_clear(tree);
		tree->patience = UINT64_MAX;
		tree_fill(tree, &route->contexts, indexed);
	} else if (route->ordered) {
		for (uint32_t left = route->indexed; left > indexed; left--)
			order_remove(route->order);
		/* Without trees a table does not know what was there before. */
		tree_note_all(tree, &route->contexts, indexed);
	} else {
		tree_shrink(tree, &route->contexts, route->indexed, indexed);
	}
	route->indexed = indexed;
	tree_forget(tree);
}

/* The query's best match in the ordered index, from nothing: match its last m symbols one by one, and again with a
 * larger m if all of them matched, as a longer match might exist. */
static struct match match_anew(const struct route *route, const struct route_rules *rules)
{
	for (uint32_t m = 16;; m *= 4) {
		struct match best = {0, 0};

		m = least(m, route->query_runs);
		for (uint32_t i = 0; i < m; i++) {
			unsigned symbol = packed_get(&route->contexts.query, rules->bits, route->query_runs - m + i);

			uint32_t found = 0;

			best.length =
			    order_find(route->order, best, symbol, least(i + 1, rules->max_match), 0, 1, &found);
			best.context = found;
		}
		if (best.length < m || m == route->query_runs || best.length == rules->max_match)
			return best;
	}
}

/* Forget the steps from `steps` on, which begin a query run: what was the best match does not matter then. */
static void undo(struct route *route, const struct route_rules *rules, uint32_t steps)
{
	const unsigned bits = rules->bits;
	uint32_t indexed;

	starts_truncate(&route->key_starts, steps);
	starts_truncate(&route->query_starts, steps);
	route->key_runs = route->key_starts.runs;
	route->query_runs = route->query_starts.runs;
	route->steps = steps;
	route->ready =
	    rules->policy == ROSA_READABLE && route->key_runs > 1 && starts_begins(&route->key_starts, steps - 1);
	indexed = route->key_runs - (rules->policy != ROSA_LITERAL && route->key_runs) - route->ready;
	route->key_word = packed_word(&route->contexts.key, bits, route->key_runs);
	route->ready_word = packed_word(&route->contexts.key, bits, route->key_runs ? route->key_runs - 1 : 0);
	route->query_word = packed_word(&route->contexts.query, bits, route->query_runs);
	route->key_symbol = (uint16_t)(route->key_word >> (64 - bits));
	route->query_symbol = (uint16_t)(route->query_word >> (64 - bits));
	route->best = (struct match){0, 0}; /* of no use to the tree index */
	route->has_flips = false;
	shrink_index(route, indexed);
	route->room = 0; /* the steps to come may begin more runs than those undone */
	if (route->ordered)
		route->best = match_anew(route, rules);
}

void route_rewind(struct route *route, const struct route_rules *rules, const rosa_allocator *allocator, size_t steps,
		  bool with_flips)
{
	const unsigned bits = rules->bits;
	uint16_t query[REPLAY], key[REPLAY];
	int32_t flips[REPLAY * ROSA_MAX_BITS];
	struct route_output output = {.step_flips = with_flips ? flips : NULL};
	uint32_t from = (uint32_t)steps, run;
	unsigned symbol;

	if (steps == route->steps)
		return;
	if (!steps) {
		route_clear(route);
		return;
	}
	/* Back to before the query run that the last step kept lies in, then forward again over the run. */
	do
		from--;
	while (!starts_begins(&route->query_starts, from));
	undo(route, rules, from);
	run = route->key_runs;
	symbol = packed_get(&route->contexts.query, bits, route->query_runs);
	while (from < steps) {
		uint32_t n = least((uint32_t)steps - from, REPLAY);
		uint8_t *behind;
		uint64_t kept;

		for (uint32_t i = 0; i < n; i++) {
			run += starts_begins(&route->key_starts, from + i);
			query[i] = (uint16_t)symbol;
			key[i] = (uint16_t)packed_get(&route->contexts.key, bits, run - 1);
		}
		/* A symbol is written with whole words: those behind the last are saved for the next turn. */
		behind = route->contexts.key.bytes + PACKED_PAD + (size_t)run * bits / 8;
		memcpy(&kept, behind, sizeof(kept));
		route_push(route, rules, allocator, n, query, key, &output);
		memcpy(behind, &kept, sizeof(kept));
		from += n;
	}
}

/* A copy of `size` bytes. */
static void *duplicate(const rosa_allocator *allocator, const void *from, size_t size)
{
	void *to = memory_resize(allocator, NULL, size);

	if (to)
		memcpy(to, from, size);
	return to;
}

bool route_copy(struct route *to, const struct route *from, const struct route_rules *rules,
		const rosa_allocator *allocator)
{
	const struct contexts *ctx = &from->contexts;
	bool starts;

	if (!from->steps) {
		route_init(to, rules);
		return true;
	}
	*to = *from;
	to->contexts.key.bytes = to->contexts.query.bytes = NULL;
	to->tree.child = NULL;
	to->tree.table = NULL;
	to->order = NULL;
	starts = starts_copy(&to->key_starts, &from->key_starts, allocator);
	starts &= starts_copy(&to->query_starts, &from->query_starts, allocator);
	to->contexts.key.bytes = duplicate(allocator, ctx->key.bytes, packed_bytes(ctx->key.capacity, rules->bits));
	to->contexts.query.bytes =
	    duplicate(allocator, ctx->query.bytes, packed_bytes(ctx->query.capacity, rules->bits));
	if (from->ordered)
		to->order = order_copy(from->order, allocator);
	if (starts && to->contexts.key.bytes && to->contexts.query.bytes && (!from->ordered || to->order) &&
	    tree_copy(&to->tree, &from->tree, allocator))
		return true;
	route_free(to, allocator);
	return false;
}

void route_free(struct route *route, const rosa_allocator *allocator)
{
	memory_free(allocator, route->contexts.key.bytes);
	memory_free(allocator, route->contexts.query.bytes);
	memory_free(allocator, route->start);
	starts_free(&route->key_starts, allocator);
	starts_free(&route->query_starts, allocator);
	tree_free(&route->tree, allocator);
	order_free(route->order, allocator);
	memory_free(allocator, route->seen);
	memset(route, 0, sizeof(*route));
}

size_t route_bytes(const struct route *route, unsigned bits)
{
	return sizeof(*route) + tree_bytes(&route->tree) + order_bytes(route->order) +
	       (route->seen ? ((size_t)1 << route->seen_bits) / 8 : 0) + route->start_capacity * sizeof(*route->start) +
	       starts_bytes(&route->key_starts) + starts_bytes(&route->query_starts) +
	       (route->contexts.key.bytes ? packed_bytes(route->contexts.key.capacity, bits) : 0) +
	       (route->contexts.query.bytes ? packed_bytes(route->contexts.query.capacity, bits) : 0);
}
