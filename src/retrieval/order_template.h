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
 *     equal16_(v, x)    the same for 16-bit numbers
 *     holds_(v, set)    which v[i] & set, of 64-bit sets
 *     least_(v, mask)   the least v[i] of those in the mask; UINT32_MAX if none is
 *     most_(v, mask)    the greatest; 0 if none is
 */
#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(f)      PASTE(f, ORDER_NAME)
#define BELOW        NAME(below_)
#define EQUAL        NAME(equal_)
#define EQUAL16      NAME(equal16_)
#define HOLDS        NAME(holds_)
#define LEAST        NAME(least_)
#define MOST         NAME(most_)

ORDER_TARGET static inline struct place NAME(place_of_)(const struct order_index *order, uint32_t context)
{
	uint32_t leaf = order->leaf_of[context];
	uint32_t here = EQUAL(order->leaf[leaf].id, context) & first_bits(order->leaf[leaf].count);

	return (struct place){leaf, lowest(here)};
}

/* ---- the nearest context followed by a symbol ---- */

/* Search the entries of a leaf left of, or right of, entry `from`. */
ORDER_TARGET ALWAYS_INLINE bool NAME(search_leaf_)(const struct order_index *order, uint32_t id, int from,
						   enum direction direction, struct search *search)
{
	const struct order_leaf *leaf = &order->leaf[id];
	uint32_t side = direction == LEFT ? first_bits((unsigned)from)
					  : first_bits(leaf->count) & ~first_bits((unsigned)(from + 1));
	uint32_t hits = EQUAL16(leaf->symbol, (uint16_t)search->symbol) & side;
	uint32_t passed = side;
	unsigned hit = 0;

	/* nothing follows the newest context yet */
	if (hits && id == order->leaf_of[order->count])
		hits &= ~EQUAL(leaf->id, order->count);
	if (hits) {
		hit = direction == LEFT ? highest(hits) : lowest(hits);
		passed &= direction == LEFT ? ~first_bits(hit + 1) : first_bits(hit + 1);
	}
	search->run = least(search->run, LEAST(leaf->low, passed));
	if (hits && search->run >= search->floor)
		search->found = leaf->id[hit];
	return hits || search->run < search->floor;
}

/* Search the children of an inner node left of, or right of, child `from`. True when the search is over. */
ORDER_TARGET static bool NAME(search_inner_)(const struct order_index *order, const struct order_inner *inner, int from,
					     enum direction direction, struct search *search)
{
	uint32_t side = direction == LEFT ? first_bits((unsigned)from)
					  : first_bits(inner->count) & ~first_bits((unsigned)(from + 1));
	uint32_t hits = HOLDS(inner->symbols, symbol_bit(search->symbol)) & side;

	while (hits) {
		unsigned hit = direction == LEFT ? highest(hits) : lowest(hits);
		uint32_t nearer = side & (direction == LEFT ? ~first_bits(hit + 1) : first_bits(hit));
		uint32_t id = inner->id[hit];

		search->run = least(search->run, LEAST(inner->low, nearer));
		if (search->run < search->floor)
			return true;
		if (inner->height == 1
			? NAME(search_leaf_)(order, id, direction == LEFT ? order->leaf[id].count : -1, direction,
					     search)
			: NAME(search_inner_)(order, &order->inner[id], direction == LEFT ? order->inner[id].count : -1,
					      direction, search))
			return true;
		/* Entered in vain; what it holds has been passed. */
		side &= direction == LEFT ? first_bits(hit) : ~first_bits(hit + 1);
		hits &= side;
	}
	search->run = least(search->run, LEAST(inner->low, side));
	return search->run < search->floor;
}

/* Search from a place outwards; to the place itself search->run symbols are shared. */
ORDER_TARGET ALWAYS_INLINE void NAME(search_from_)(const struct order_index *order, struct place at,
						   enum direction direction, struct search *search)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	int place = leaf->place;

	if (direction == LEFT)
		search->run = least(search->run, leaf->low[at.entry]);
	if (search->run < search->floor || NAME(search_leaf_)(order, at.leaf, (int)at.entry, direction, search))
		return;
	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];

		if (NAME(search_inner_)(order, inner, place, direction, search))
			return;
		place = inner->place;
		node = inner->parent;
	}
}

/* ---- the newest of a stretch ---- */

/* A stretch ends within child `id` of a node of this height: take in the part on the near side. */
ORDER_TARGET static uint32_t NAME(stretch_into_)(const struct order_index *order, uint32_t height, uint32_t id,
						 enum direction direction, uint32_t length, uint32_t newest)
{
	for (; height > 1; height--) {
		const struct order_inner *inner = &order->inner[id];
		uint32_t ends = BELOW(inner->low, length) & first_bits(inner->count);
		unsigned end = direction == LEFT ? highest(ends) : lowest(ends);
		uint32_t within = direction == LEFT ? first_bits(inner->count) & ~first_bits(end + 1) : first_bits(end);

		newest = greatest(newest, MOST(inner->newest, within));
		id = inner->id[end];
	}
	{
		const struct order_leaf *leaf = &order->leaf[id];
		uint32_t ends = BELOW(leaf->low, length) & first_bits(leaf->count);
		/* to the left, the entry that ends the stretch belongs to it */
		uint32_t within =
		    direction == LEFT ? first_bits(leaf->count) & ~first_bits(highest(ends)) : first_bits(lowest(ends));

		return greatest(newest, MOST(leaf->id, within));
	}
}

/* Go on with a stretch beyond child `place` of inner node `node`. */
ORDER_TARGET static uint32_t NAME(stretch_beyond_)(const struct order_index *order, uint32_t node, unsigned place,
						   enum direction direction, uint32_t length, uint32_t newest)
{
	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];
		uint32_t side =
		    direction == LEFT ? first_bits(place) : first_bits(inner->count) & ~first_bits(place + 1);
		uint32_t ends = BELOW(inner->low, length) & side;

		if (ends) {
			unsigned end = direction == LEFT ? highest(ends) : lowest(ends);

			side &= direction == LEFT ? ~first_bits(end + 1) : first_bits(end);
			newest = greatest(newest, MOST(inner->newest, side));
			return NAME(stretch_into_)(order, inner->height, inner->id[end], direction, length, newest);
		}
		newest = greatest(newest, MOST(inner->newest, side));
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
		 within = first_bits(leaf->count), newest;

	if (left)
		within &= ~first_bits(highest(left));
	if (right)
		within &= first_bits(lowest(right));
	newest = MOST(leaf->id, within);
	if (!left)
		newest = NAME(stretch_beyond_)(order, leaf->parent, leaf->place, LEFT, length, newest);
	if (!right)
		newest = NAME(stretch_beyond_)(order, leaf->parent, leaf->place, RIGHT, length, newest);
	return newest;
}

/* Those that share `length` symbols with `context`, if there are few, all in its leaf. */
ORDER_TARGET static unsigned NAME(few_)(const struct order_index *order, uint32_t context, uint32_t length,
					uint32_t *members)
{
	const struct place at = NAME(place_of_)(order, context);
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	const uint32_t ends = BELOW(leaf->low, length) & first_bits(leaf->count);
	const uint32_t left = ends & first_bits(at.entry + 1), right = ends & ~first_bits(at.entry + 1);
	struct place next;
	unsigned count;

	if (!left || (!right && right_of(order, (struct place){at.leaf, leaf->count - 1u}, &next) &&
		      order->leaf[next.leaf].low[next.entry] >= length))
		return 0;
	count = (right ? lowest(right) : leaf->count) - highest(left);
	if (count > ORDER_FEW)
		return 0;
	for (unsigned i = 0; i < count; i++)
		members[i] = leaf->id[highest(left) + i];
	return count;
}

/* ---- the two operations ---- */

/* A match of more than `known` symbols, and up to `cap`, of the query with `symbol` as its last; {0, 0} if there is
 * none. */
ORDER_TARGET static struct match NAME(find_one_)(const struct order_index *order, struct match past, struct place at,
						 unsigned symbol, uint32_t cap, uint32_t known)
{
	struct search left = {symbol, past.length, known, NOBODY}, right;

	if (!(order->symbols & symbol_bit(symbol)))
		return (struct match){0, 0};
	if (order->leaf[at.leaf].symbol[at.entry] == symbol && past.context != order->count) {
		left.found = past.context;
	} else {
		NAME(search_from_)(order, at, LEFT, &left);
		right = (struct search){symbol, past.length, left.found == NOBODY ? known : left.run + 1, NOBODY};
		NAME(search_from_)(order, at, RIGHT, &right);
		if (right.found != NOBODY)
			left = right;
		if (left.found == NOBODY)
			return (struct match){0, 0};
	}
	cap = least(left.run + 1, cap);
	return (struct match){NAME(newest_beside_)(order, left.found + 1, cap), cap};
}

ORDER_TARGET static uint32_t NAME(find_)(const struct order_index *order, struct match past, unsigned symbol,
					 uint32_t cap, uint32_t known, uint32_t deep, uint32_t *found)
{
	const struct place at = NAME(place_of_)(order, past.context);
	uint32_t length = 0;

	for (; deep; deep &= deep - 1) {
		unsigned lane = lowest(deep);
		struct match longer =
		    NAME(find_one_)(order, past, at, lane ? symbol ^ 1u << (lane - 1) : symbol, cap, known);

		if (!longer.length)
			continue;
		found[lane] = longer.context;
		if (lane == 0)
			length = longer.length;
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
	struct search left = {symbol, NOBODY, 1, NOBODY}, right = left;
	/* The newest was put there a moment ago, and reading back what was just written takes long. */
	const struct place at = order->place == ORDER_NOT_KNOWN
				    ? NAME(place_of_)(order, order->count)
				    : (struct place){order->leaf_of[order->count], order->place};
	struct place beside;

	if (relative) {
		NAME(search_from_)(order, at, LEFT, &left);
		NAME(search_from_)(order, at, RIGHT, &right);
	}
	if (left.found != NOBODY)
		beside = NAME(place_of_)(order, left.found + 1);
	else if (right.found != NOBODY)
		beside = NAME(place_of_)(order, right.found + 1);
	else
		beside = relative ? NAME(edge_)(order, relative, 2) : last_place(order);
	add_context(order, at, symbol, &left, &right, beside, relative != 0);
}

#undef PASTE2
#undef PASTE
#undef NAME
#undef BELOW
#undef EQUAL
#undef EQUAL16
#undef HOLDS
#undef LEAST
#undef MOST
#undef ORDER_NAME
#undef ORDER_TARGET
