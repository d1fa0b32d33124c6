/*
 * The ways through the ordered index, compiled once for each instruction set.
 *
 * A node is never walked entry by entry: its arrays are turned into masks, a bit an entry, and the bit nearest to a
 * place is what is looked for. Before inclusion are defined
 *
 *     ORDER_NAME     suffix of the functions
 *     ORDER_TARGET   function attribute, or nothing
 *
 * and with that suffix, for arrays of ORDER_FANOUT entries,
 *
 *     below_(v, x)      which v[i] < x
 *     equal_(v, x)      which v[i] == x
 *     holds_(v, bit)    which v[i] & bit
 *     vector_           a vector of partial minima or maxima: the horizontal reduction is the most expensive operation,
 *                       so it is done once, at the end
 *     all_(x)           such a vector of x alone
 *     lower_(a, v, m)   a and those v[i] that are in the mask m, for the least of all
 *     higher_(a, v, m)  the same for the greatest
 *     under_(a, x)      is the least below x?
 *     least_(a)         the least
 *     most_(a)          the greatest
 *     put_(v, i, x)     x at v[i]; what is there and behind it moves on a place
 *     put2_(v, i, x, y) the same, and y takes the place of the first that moved
 */
#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(f)      PASTE(f, ORDER_NAME)
#define BELOW        NAME(below_)
#define EQUAL        NAME(equal_)
#define HOLDS        NAME(holds_)
#define VECTOR       NAME(vector_)
#define ALL          NAME(all_)
#define LOWER        NAME(lower_)
#define HIGHER       NAME(higher_)
#define UNDER        NAME(under_)
#define LEAST        NAME(least_)
#define MOST         NAME(most_)
/* the entries behind a, before b */
#define BETWEEN(a, b) (first_bits(b) & ~first_bits((a) + 1))
#define PUT           NAME(put_)
#define PUT2          NAME(put2_)

ORDER_TARGET static inline struct place NAME(place_of_)(const struct order_index *order, uint32_t context)
{
	uint32_t leaf = order->leaf_of[context];
	uint32_t here = EQUAL(order->leaf[leaf].id, context) & first_bits(order->leaf[leaf].count);

	return (struct place){leaf, lowest(here)};
}

/* ---- the nearest context followed by a symbol ---- */

/* A search for it. The least of `run` is the least shared length passed; the search ends when that falls below `floor`.
 */
struct NAME(search_) {
	VECTOR run;
	unsigned symbol;
	uint32_t floor;
	uint32_t found; /* NOBODY: none */
};

/* Search the entries of a leaf left of, or right of, entry `from`. */
ORDER_TARGET ALWAYS_INLINE bool NAME(search_leaf_)(const struct order_index *order, uint32_t id, int from,
						   enum direction direction, struct NAME(search_) * search)
{
	const struct order_leaf *leaf = &order->leaf[id];
	uint32_t side = direction == LEFT ? first_bits((unsigned)from)
					  : first_bits(leaf->count) & ~first_bits((unsigned)(from + 1));
	uint32_t hits = EQUAL(leaf->symbol, search->symbol) & side;
	uint32_t passed = side;
	unsigned hit = 0;

	/* nothing follows the newest context yet */
	if (hits && id == order->leaf_of[order->count])
		hits &= ~EQUAL(leaf->id, order->count);
	if (hits) {
		hit = direction == LEFT ? highest(hits) : lowest(hits);
		passed &= direction == LEFT ? ~first_bits(hit + 1) : first_bits(hit + 1);
	}
	search->run = LOWER(search->run, leaf->low, passed);
	if (UNDER(search->run, search->floor))
		return true;
	if (hits)
		search->found = leaf->id[hit];
	return hits != 0;
}

/* Search the children of an inner node left of, or right of, child `from`. True when the search is over. */
ORDER_TARGET static bool NAME(search_inner_)(const struct order_index *order, const struct order_inner *inner, int from,
					     enum direction direction, struct NAME(search_) * search)
{
	uint32_t side = direction == LEFT ? first_bits((unsigned)from)
					  : first_bits(inner->count) & ~first_bits((unsigned)(from + 1));
	const unsigned symbol = symbol_place(search->symbol);
	uint32_t hits = HOLDS(inner->symbols[symbol / 32], 1u << symbol % 32) & side;

	while (hits) {
		unsigned hit = direction == LEFT ? highest(hits) : lowest(hits);
		uint32_t nearer = side & (direction == LEFT ? ~first_bits(hit + 1) : first_bits(hit));
		uint32_t id = inner->id[hit];

		search->run = LOWER(search->run, inner->low, nearer);
		if (UNDER(search->run, search->floor))
			return true;
		if (inner->height == 1
			? NAME(search_leaf_)(order, id, direction == LEFT ? order->leaf[id].count : -1, direction,
					     search)
			: NAME(search_inner_)(order, &order->inner[id], direction == LEFT ? order->inner[id].count : -1,
					      direction, search))
			return true;
		/* The subtree does not contain the symbol after all (shared mask bits); continue after it. */
		side &= direction == LEFT ? first_bits(hit) : ~first_bits(hit + 1);
		hits &= side;
	}
	search->run = LOWER(search->run, inner->low, side);
	return UNDER(search->run, search->floor);
}

/* Go on with a search that found nothing in a leaf. */
ORDER_TARGET static void NAME(search_beyond_)(const struct order_index *order, const struct order_leaf *leaf,
					      enum direction direction, struct NAME(search_) * search)
{
	uint32_t node = leaf->parent;
	int place = leaf->place;

	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];

		if (NAME(search_inner_)(order, inner, place, direction, search))
			return;
		place = inner->place;
		node = inner->parent;
	}
}

/* The nearest to a place of the contexts followed by `symbol`, on either side: the one with which the most symbols are
 * shared, at least `floor` and at most `run`, as many as with the place itself. */
ORDER_TARGET ALWAYS_INLINE struct nearest NAME(search_from_)(const struct order_index *order, struct place at,
							     unsigned symbol, uint32_t run, uint32_t floor)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	const uint32_t before = first_bits(at.entry), behind = BETWEEN(at.entry, leaf->count);
	uint32_t hits = EQUAL(leaf->symbol, symbol), lefts, rights;
	struct NAME(search_) left = {ALL(run), symbol, 0, NOBODY}, right = {ALL(run), symbol, 0, NOBODY};
	struct nearest best = {NOBODY, floor - 1, LEFT};

	/* nothing follows the newest context yet; a search from itself, with no limit, leaves it out anyway */
	if (run != NOBODY && at.leaf == order->leaf_of[order->count])
		hits &= ~EQUAL(leaf->id, order->count);
	lefts = hits & before;
	rights = hits & behind;
	left.run = LOWER(left.run, leaf->low, first_bits(at.entry + 1) & ~up_to_highest(lefts));
	right.run = LOWER(right.run, leaf->low, behind & (below_lowest(rights) << 1 | 1));
	if (lefts && !UNDER(left.run, floor))
		best = (struct nearest){leaf->id[highest(lefts)], LEAST(left.run), LEFT};
	if (rights && !UNDER(right.run, best.run + 1))
		best = (struct nearest){leaf->id[lowest(rights)], LEAST(right.run), RIGHT};
	/* beyond the leaf only for a better one */
	left.floor = best.run + 1;
	if (!lefts && !UNDER(left.run, left.floor)) {
		NAME(search_beyond_)(order, leaf, LEFT, &left);
		if (left.found != NOBODY)
			best = (struct nearest){left.found, LEAST(left.run), LEFT};
	}
	right.floor = best.run + 1;
	if (!rights && !UNDER(right.run, right.floor)) {
		NAME(search_beyond_)(order, leaf, RIGHT, &right);
		if (right.found != NOBODY)
			best = (struct nearest){right.found, LEAST(right.run), RIGHT};
	}
	return best;
}

/* ---- the newest of a stretch ---- */

/* A stretch ends within child `id` of a node of this height: take in the part on the near side. */
ORDER_TARGET ALWAYS_INLINE VECTOR NAME(stretch_into_)(const struct order_index *order, uint32_t height, uint32_t id,
						      enum direction direction, uint32_t length, VECTOR newest)
{
	for (; height > 1; height--) {
		const struct order_inner *inner = &order->inner[id];
		uint32_t ends = BELOW(inner->low, length) & first_bits(inner->count);
		unsigned end = direction == LEFT ? highest(ends) : lowest(ends);
		uint32_t within = direction == LEFT ? first_bits(inner->count) & ~first_bits(end + 1) : first_bits(end);

		newest = HIGHER(newest, inner->newest, within);
		id = inner->id[end];
	}
	{
		const struct order_leaf *leaf = &order->leaf[id];
		uint32_t ends = BELOW(leaf->low, length) & first_bits(leaf->count);
		/* to the left, the entry that ends the stretch belongs to it */
		uint32_t within =
		    direction == LEFT ? first_bits(leaf->count) & ~first_bits(highest(ends)) : first_bits(lowest(ends));

		return HIGHER(newest, leaf->id, within);
	}
}

/* Go on with a stretch beyond child `place` of inner node `node`. */
ORDER_TARGET static VECTOR NAME(stretch_beyond_)(const struct order_index *order, uint32_t node, unsigned place,
						 enum direction direction, uint32_t length, VECTOR newest)
{
	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];
		uint32_t side =
		    direction == LEFT ? first_bits(place) : first_bits(inner->count) & ~first_bits(place + 1);
		uint32_t ends = BELOW(inner->low, length) & side;

		if (ends) {
			unsigned end = direction == LEFT ? highest(ends) : lowest(ends);

			side &= direction == LEFT ? ~first_bits(end + 1) : first_bits(end);
			newest = HIGHER(newest, inner->newest, side);
			return NAME(stretch_into_)(order, inner->height, inner->id[end], direction, length, newest);
		}
		newest = HIGHER(newest, inner->newest, side);
		place = inner->place;
		node = inner->parent;
	}
	return newest;
}

/* The newest of those beside `context`, itself included, that share `length` symbols with it. */
ORDER_TARGET static inline uint32_t NAME(newest_beside_)(const struct order_index *order, uint32_t context,
							 uint32_t length)
{
	const struct place at = NAME(place_of_)(order, context);
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t ends = BELOW(leaf->low, length) & first_bits(leaf->count);
	uint32_t left = ends & first_bits(at.entry + 1), right = ends & ~first_bits(at.entry + 1),
		 within = first_bits(leaf->count) & ~(up_to_highest(left) >> 1) & below_lowest(right);
	VECTOR newest = HIGHER(ALL(0), leaf->id, within);

	if (!left)
		newest = NAME(stretch_beyond_)(order, leaf->parent, leaf->place, LEFT, length, newest);
	if (!right)
		newest = NAME(stretch_beyond_)(order, leaf->parent, leaf->place, RIGHT, length, newest);
	return MOST(newest);
}

/* ---- the operations ---- */

/* Put `context` at a place, moving what is there and behind it to the right; that then shares `next_low` with it. */
ORDER_TARGET ALWAYS_INLINE void NAME(put_entry_)(struct order_index *order, struct place at, uint32_t context,
						 uint32_t low, uint32_t next_low)
{
	struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	PUT(leaf->id, at.entry, context);
	PUT2(leaf->low, at.entry, low, next_low);
	PUT(leaf->symbol, at.entry, 0);
	leaf->count++;
	order->leaf_of[context] = at.leaf;
	for (; node != NOBODY; place = order->inner[node].place, node = order->inner[node].parent) {
		struct order_inner *inner = &order->inner[node];

		inner->newest[place] = context;
		/* mostly it is not; reading back as a vector what was just written in parts takes long */
		if (UNLIKELY(low < inner->low[place]))
			inner->low[place] = low;
	}
	order->place = at.entry;
	if (leaf->count == ORDER_FANOUT) {
		split_leaf(order, at.leaf);
		order->place = ORDER_NOT_KNOWN;
	}
}

/*
 * Add the context that continues the newest, at `last`, with `symbol`. Of the contexts that end in that symbol,
 * `beside` is its neighbour on one side, the one it shares more with. With the other neighbour it shares what the two
 * shared with each other. If it shares no more than that symbol with any, or nothing, it goes to `beside` itself.
 */
ORDER_TARGET static void NAME(add_context_)(struct order_index *order, struct place last, unsigned symbol,
					    struct place beside, struct gap gap)
{
	const struct order_leaf *leaf = &order->leaf[beside.leaf];
	uint32_t node = order->leaf[last.leaf].parent, low, next_low;
	unsigned place = order->leaf[last.leaf].place;
	const unsigned bit = symbol_place(symbol);

	order->leaf[last.leaf].symbol[last.entry] = symbol;
	/* what a subtree holds, those above it hold too */
	for (; node != NOBODY && !(order->inner[node].symbols[bit / 32][place] >> bit % 32 & 1);
	     place = order->inner[node].place, node = order->inner[node].parent)
		order->inner[node].symbols[bit / 32][place] |= 1u << bit % 32;
	order->symbols |= symbol_bit(symbol);
	order->count++;
	beside.entry += gap.neighbour && !gap.before;
	low = leaf->low[beside.entry];
	next_low = gap.before ? gap.shared : low;
	NAME(put_entry_)(order, beside, order->count, gap.before ? low : gap.shared, next_low);
}

/* Where to look for a match of more than `known` symbols of the query with `symbol` as its last: behind a context that
 * it follows. NOBODY if there is no such match. */
ORDER_TARGET ALWAYS_INLINE struct nearest NAME(lead_)(const struct order_index *order, struct match past,
						      struct place at, unsigned symbol, uint32_t known)
{
	if (!(order->symbols & symbol_bit(symbol)))
		return (struct nearest){NOBODY, 0, LEFT};
	if (order->leaf[at.leaf].symbol[at.entry] == symbol && past.context != order->count)
		return (struct nearest){past.context, past.length, LEFT};
	return NAME(search_from_)(order, at, symbol, past.length, known);
}

/* First all lanes' leads, and then what lies behind them, so that the cache misses overlap. */
ORDER_TARGET static uint32_t NAME(find_)(const struct order_index *order, struct match past, const uint32_t *symbols,
					 uint32_t cap, uint32_t known, uint32_t deep, uint32_t *found)
{
	const struct place at = NAME(place_of_)(order, past.context);
	struct nearest lead[MAX_LANES];
	uint32_t length = 0;

	for (uint32_t left = deep; left; left &= left - 1) {
		unsigned lane = lowest(left);

		lead[lane] = NAME(lead_)(order, past, at, symbols[lane], known);
		if (lead[lane].context == NOBODY)
			deep &= ~(1u << lane);
	}
	for (; deep; deep &= deep - 1) {
		unsigned lane = lowest(deep);
		uint32_t shared = least(lead[lane].run + 1, cap);

		found[lane] = NAME(newest_beside_)(order, lead[lane].context + 1, shared);
		if (lane == 0)
			length = shared;
	}
	return length;
}

/* The first place right of `context` whose entry shares less than `length` symbols with its left neighbour. */
ORDER_TARGET static struct place NAME(edge_)(const struct order_index *order, uint32_t context, uint32_t length)
{
	struct place at = NAME(place_of_)(order, context);
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t ends = BELOW(leaf->low, length) & first_bits(leaf->count) & ~first_bits(at.entry + 1);
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	while (!ends && node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];

		ends = BELOW(inner->low, length) & first_bits(inner->count) & ~first_bits(place + 1);
		for (uint32_t height = inner->height; ends; height--) {
			at.leaf = inner->id[lowest(ends)];
			if (height == 1) {
				leaf = &order->leaf[at.leaf];
				ends = BELOW(leaf->low, length) & first_bits(leaf->count);
				break;
			}
			inner = &order->inner[at.leaf];
			ends = BELOW(inner->low, length) & first_bits(inner->count);
		}
		place = inner->place;
		node = inner->parent;
	}
	return ends ? (struct place){at.leaf, lowest(ends)} : last_place(order);
}

ORDER_TARGET static void NAME(insert_)(struct order_index *order, unsigned symbol, uint32_t relative)
{
	/* The newest entry was stored a few instructions ago; loading it now would stall on store forwarding. */
	const struct place at = order->place == ORDER_NOT_KNOWN
				    ? NAME(place_of_)(order, order->count)
				    : (struct place){order->leaf_of[order->count], order->place};
	struct nearest nearest = {NOBODY, 0, LEFT};
	struct gap gap = {0, relative != 0, false};
	struct place beside;

	if (relative && !goes_beside(&order->leaf[at.leaf], at.entry, symbol, &nearest))
		nearest = NAME(search_from_)(order, at, symbol, NOBODY, 1);
	if (nearest.context != NOBODY) {
		gap = (struct gap){nearest.context + 1, nearest.run + 1, nearest.side == RIGHT};
		beside = NAME(place_of_)(order, gap.neighbour);
	} else {
		beside = relative ? NAME(edge_)(order, relative, 2) : last_place(order);
	}
	NAME(add_context_)(order, at, symbol, beside, gap);
}

/* How many symbols two contexts share: the least of the shared lengths between them. */
ORDER_TARGET static uint32_t NAME(shared_)(const struct order_index *order, uint32_t a, uint32_t b)
{
	const struct place x = NAME(place_of_)(order, a), y = NAME(place_of_)(order, b);
	const struct order_leaf *p = &order->leaf[x.leaf], *q = &order->leaf[y.leaf];
	const VECTOR none = ALL(NOBODY);
	unsigned i = x.entry, j = y.entry;
	uint32_t node = p->parent, other = q->parent;
	VECTOR after_x, upto_x, after_y, upto_y;

	if (p == q)
		return LEAST(LOWER(none, p->low, i < j ? BETWEEN(i, j + 1) : BETWEEN(j, i + 1)));
	/* Which is left is known only where their paths meet, so each side is summed up for both cases. */
	after_x = LOWER(none, p->low, BETWEEN(i, p->count));
	upto_x = LOWER(none, p->low, first_bits(i + 1));
	after_y = LOWER(none, q->low, BETWEEN(j, q->count));
	upto_y = LOWER(none, q->low, first_bits(j + 1));
	i = p->place;
	j = q->place;
	while (node != other) {
		const struct order_inner *u = &order->inner[node], *v = &order->inner[other];

		after_x = LOWER(after_x, u->low, BETWEEN(i, u->count));
		upto_x = LOWER(upto_x, u->low, first_bits(i));
		after_y = LOWER(after_y, v->low, BETWEEN(j, v->count));
		upto_y = LOWER(upto_y, v->low, first_bits(j));
		i = u->place;
		j = v->place;
		node = u->parent;
		other = v->parent;
	}
	if (i < j)
		return least(LEAST(LOWER(after_x, order->inner[node].low, BETWEEN(i, j))), LEAST(upto_y));
	return least(LEAST(LOWER(after_y, order->inner[node].low, BETWEEN(j, i))), LEAST(upto_x));
}

#undef PASTE2
#undef PASTE
#undef NAME
#undef BELOW
#undef EQUAL
#undef HOLDS
#undef VECTOR
#undef ALL
#undef LOWER
#undef HIGHER
#undef UNDER
#undef LEAST
#undef MOST
#undef BETWEEN
#undef PUT
#undef PUT2
#undef ORDER_NAME
#undef ORDER_TARGET
