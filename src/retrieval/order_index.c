/* The ordered index. The essay is in order_index.h. */
#include "order_index.h"

#define NOBODY UINT32_MAX

enum direction { LEFT, RIGHT };

/* A place in the list. */
struct place {
	uint32_t leaf;
	unsigned entry;
};

static uint64_t symbol_bit(unsigned symbol)
{
	return UINT64_C(1) << (symbol % 64);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t greatest(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static struct place place_of(const struct order_index *order, uint32_t context)
{
	struct place at = {order->leaf_of[context], 0};
	const struct order_leaf *leaf = &order->leaf[at.leaf];

	/* no early exit, so that it is compiled to vector code */
	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		at.entry = ((i < leaf->count) & (leaf->id[i] == context)) ? i : at.entry;
	return at;
}

/* ---- memory ---- */

/* Leaves split in half when full, so that many are enough; the same holds of inner nodes a level up. */
static size_t leaves_for(size_t contexts)
{
	return contexts / (ORDER_FANOUT / 2) + 2;
}

static size_t inners_for(size_t leaves)
{
	size_t inners = 2;

	for (; leaves > 1; leaves = leaves / (ORDER_FANOUT / 2) + 1) {
		inners += leaves / (ORDER_FANOUT / 2) + 2;
		if (leaves < ORDER_FANOUT / 2)
			break;
	}
	return inners;
}

static bool reserve(const rosa_allocator *allocator, void **array, size_t *capacity, size_t need, size_t size)
{
	size_t grown;
	void *more;

	if (*array && need <= *capacity)
		return true;
	grown = *array ? memory_grown(*capacity, need) : need;
	more = memory_resize(allocator, *array, grown * size);
	if (!more)
		return false;
	*array = more;
	*capacity = grown;
	return true;
}

bool order_reserve(struct order_index *order, const rosa_allocator *allocator, size_t contexts)
{
	size_t leaves = leaves_for(contexts + 1) + order->sparse;

	return reserve(allocator, (void **)&order->leaf, &order->leaf_capacity, leaves, sizeof(*order->leaf)) &&
	       reserve(allocator, (void **)&order->inner, &order->inner_capacity, inners_for(leaves),
		       sizeof(*order->inner)) &&
	       reserve(allocator, (void **)&order->leaf_of, &order->context_capacity, contexts + 1,
		       sizeof(*order->leaf_of));
}

void order_free(struct order_index *order, const rosa_allocator *allocator)
{
	if (!order)
		return;
	memory_free(allocator, order->leaf);
	memory_free(allocator, order->inner);
	memory_free(allocator, order->leaf_of);
	memory_free(allocator, order);
}

struct order_index *order_new(const rosa_allocator *allocator)
{
	struct order_index *order = memory_resize(allocator, NULL, sizeof(*order));

	if (!order)
		return NULL;
	memset(order, 0, sizeof(*order));
	if (!order_reserve(order, allocator, 0)) {
		order_free(order, allocator);
		return NULL;
	}
	order_clear(order);
	return order;
}

void order_clear(struct order_index *order)
{
	order->leaves = order->inners = 1;
	order->root = order->count = order->sparse = 0;
	memset(order->leaf, 0, sizeof(*order->leaf));
	memset(order->inner, 0, sizeof(*order->inner));
	order->leaf[0].count = 1;
	order->inner[0].parent = NOBODY;
	order->inner[0].count = 1;
	order->inner[0].height = 1;
	order->leaf_of[0] = 0;
}

struct order_index *order_copy(const struct order_index *from, const rosa_allocator *allocator)
{
	struct order_index *order = order_new(allocator);

	if (!order)
		return NULL;
	order->sparse = from->sparse;
	if (!order_reserve(order, allocator, from->context_capacity - 1)) {
		order_free(order, allocator);
		return NULL;
	}
	memcpy(order->leaf, from->leaf, from->leaves * sizeof(*from->leaf));
	memcpy(order->inner, from->inner, from->inners * sizeof(*from->inner));
	memcpy(order->leaf_of, from->leaf_of, ((size_t)from->count + 1) * sizeof(*from->leaf_of));
	order->leaves = from->leaves;
	order->inners = from->inners;
	order->root = from->root;
	order->count = from->count;
	return order;
}

size_t order_bytes(const struct order_index *order)
{
	return order ? sizeof(*order) + order->leaf_capacity * sizeof(*order->leaf) +
			   order->inner_capacity * sizeof(*order->inner) +
			   order->context_capacity * sizeof(*order->leaf_of)
		     : 0;
}

/* ---- the nearest context followed by a symbol ---- */

/* What a search for a follower carries: `run` is the least shared length passed, and the search ends below `floor`. */
struct follower {
	unsigned symbol;
	uint32_t run, floor;
	uint32_t found; /* NOBODY: none yet */
};

/* Search a leaf from entry `from` on. To the left, an entry is looked at before its own shared length is passed. */
static bool follow_in_leaf(const struct order_index *order, const struct order_leaf *leaf, int from,
			   enum direction direction, struct follower *search)
{
	uint32_t run = search->run;
	const uint32_t floor = search->floor;
	const unsigned symbol = search->symbol;

	if (direction == LEFT) {
		for (int i = from; i >= 0; i--) {
			if (leaf->symbol[i] == symbol && leaf->id[i] != order->count) {
				search->run = run;
				search->found = leaf->id[i];
				return true;
			}
			run = least(run, leaf->low[i]);
			if (run < floor)
				return true;
		}
	} else {
		for (int i = from; i < leaf->count; i++) {
			run = least(run, leaf->low[i]);
			if (run < floor)
				return true;
			if (leaf->symbol[i] == symbol && leaf->id[i] != order->count) {
				search->run = run;
				search->found = leaf->id[i];
				return true;
			}
		}
	}
	search->run = run;
	return false;
}

/* Search the children of an inner node from child `from` on. True when the search is over. */
static bool follow_in_inner(const struct order_index *order, const struct order_inner *inner, int from,
			    enum direction direction, struct follower *search)
{
	const uint64_t bit = symbol_bit(search->symbol);
	const int step = direction == LEFT ? -1 : 1;

	for (int i = from; i >= 0 && i < inner->count; i += step) {
		if (!(inner->symbols[i] & bit)) {
			search->run = least(search->run, inner->low[i]);
			if (search->run < search->floor)
				return true;
		} else if (inner->height == 1) {
			const struct order_leaf *leaf = &order->leaf[inner->id[i]];

			if (follow_in_leaf(order, leaf, direction == LEFT ? leaf->count - 1 : 0, direction, search))
				return true;
		} else {
			const struct order_inner *child = &order->inner[inner->id[i]];

			if (follow_in_inner(order, child, direction == LEFT ? child->count - 1 : 0, direction, search))
				return true;
		}
	}
	return false;
}

/* Search from a place outwards. */
static void follow(const struct order_index *order, struct place at, enum direction direction, struct follower *search)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	const int step = direction == LEFT ? -1 : 1;
	uint32_t node = leaf->parent;
	int place = leaf->place;

	if (direction == LEFT) {
		search->run = least(search->run, leaf->low[at.entry]);
		if (search->run < search->floor)
			return;
	}
	if (follow_in_leaf(order, leaf, (int)at.entry + step, direction, search))
		return;
	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];

		if (follow_in_inner(order, inner, place + step, direction, search))
			return;
		place = inner->place;
		node = inner->parent;
	}
}

static bool has_symbol(const struct order_index *order, unsigned symbol)
{
	const struct order_inner *root = &order->inner[order->root];
	uint64_t symbols = 0;

	for (unsigned i = 0; i < root->count; i++)
		symbols |= root->symbols[i];
	return symbols & symbol_bit(symbol);
}

/* ---- the newest of a stretch ---- */

struct stretch {
	uint32_t length; /* neighbours belong together while they share this much */
	uint32_t newest;
};

static bool stretch_in_leaf(const struct order_leaf *leaf, int from, enum direction direction, struct stretch *stretch)
{
	uint32_t newest = stretch->newest;
	bool ends = false;

	if (direction == LEFT) {
		for (int i = from; i >= 0 && !ends; i--) {
			newest = greatest(newest, leaf->id[i]);
			ends = leaf->low[i] < stretch->length;
		}
	} else {
		for (int i = from; i < leaf->count && !ends; i++) {
			ends = leaf->low[i] < stretch->length;
			if (!ends)
				newest = greatest(newest, leaf->id[i]);
		}
	}
	stretch->newest = newest;
	return ends;
}

static bool stretch_in_inner(const struct order_index *order, const struct order_inner *inner, int from,
			     enum direction direction, struct stretch *stretch)
{
	const int step = direction == LEFT ? -1 : 1;

	for (int i = from; i >= 0 && i < inner->count; i += step) {
		if (inner->low[i] >= stretch->length) {
			stretch->newest = greatest(stretch->newest, inner->newest[i]);
		} else if (inner->height == 1) {
			const struct order_leaf *leaf = &order->leaf[inner->id[i]];

			if (stretch_in_leaf(leaf, direction == LEFT ? leaf->count - 1 : 0, direction, stretch))
				return true;
		} else {
			const struct order_inner *child = &order->inner[inner->id[i]];

			if (stretch_in_inner(order, child, direction == LEFT ? child->count - 1 : 0, direction,
					     stretch))
				return true;
		}
	}
	return false;
}

static void stretch_from(const struct order_index *order, struct place at, enum direction direction,
			 struct stretch *stretch)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	const int step = direction == LEFT ? -1 : 1;
	uint32_t node = leaf->parent;
	int place = leaf->place;

	if (direction == LEFT && leaf->low[at.entry] < stretch->length)
		return;
	if (stretch_in_leaf(leaf, (int)at.entry + step, direction, stretch))
		return;
	while (node != NOBODY) {
		const struct order_inner *inner = &order->inner[node];

		if (stretch_in_inner(order, inner, place + step, direction, stretch))
			return;
		place = inner->place;
		node = inner->parent;
	}
}

struct match order_find(const struct order_index *order, struct match past, unsigned symbol, uint32_t cap)
{
	struct follower left = {symbol, past.length, 0, NOBODY}, right;
	struct stretch stretch;
	struct place at;

	if (!has_symbol(order, symbol))
		return (struct match){0, 0};
	at = place_of(order, past.context);
	if (order->leaf[at.leaf].symbol[at.entry] == symbol && past.context != order->count) {
		left.found = past.context;
	} else {
		follow(order, at, LEFT, &left);
		right = (struct follower){symbol, past.length, left.found == NOBODY ? 0 : left.run + 1, NOBODY};
		follow(order, at, RIGHT, &right);
		if (right.found != NOBODY)
			left = right;
		if (left.found == NOBODY)
			return (struct match){0, 0};
	}
	stretch.length = least(left.run + 1, cap);
	stretch.newest = left.found + 1;
	at = place_of(order, left.found + 1);
	stretch_from(order, at, LEFT, &stretch);
	stretch_from(order, at, RIGHT, &stretch);
	return (struct match){stretch.newest, stretch.length};
}

/* ---- what two contexts share ---- */

static uint32_t least_of(const uint32_t *low, unsigned from, unsigned to, uint32_t so_far)
{
	for (unsigned i = from; i < to; i++)
		so_far = least(so_far, low[i]);
	return so_far;
}

uint32_t order_shared(const struct order_index *order, uint32_t a, uint32_t b)
{
	struct place left = place_of(order, a), right = place_of(order, b);
	uint32_t from_left = NOBODY, from_right = NOBODY, left_node, right_node;
	unsigned i, j;

	if (left.leaf == right.leaf)
		return left.entry < right.entry
			   ? least_of(order->leaf[left.leaf].low, left.entry + 1, right.entry + 1, NOBODY)
			   : least_of(order->leaf[left.leaf].low, right.entry + 1, left.entry + 1, NOBODY);
	/* Which is left is known only where their paths meet, so each side is summed up for both cases. */
	{
		const struct order_leaf *x = &order->leaf[left.leaf], *y = &order->leaf[right.leaf];
		uint32_t x_after = least_of(x->low, left.entry + 1, x->count, NOBODY);
		uint32_t x_before = least_of(x->low, 0, left.entry + 1, NOBODY);
		uint32_t y_after = least_of(y->low, right.entry + 1, y->count, NOBODY);
		uint32_t y_before = least_of(y->low, 0, right.entry + 1, NOBODY);

		left_node = x->parent;
		right_node = y->parent;
		i = x->place;
		j = y->place;
		while (left_node != right_node) {
			const struct order_inner *p = &order->inner[left_node], *q = &order->inner[right_node];

			x_after = least_of(p->low, i + 1, p->count, x_after);
			x_before = least_of(p->low, 0, i, x_before);
			y_after = least_of(q->low, j + 1, q->count, y_after);
			y_before = least_of(q->low, 0, j, y_before);
			i = p->place;
			j = q->place;
			left_node = p->parent;
			right_node = q->parent;
		}
		from_left = i < j ? x_after : y_after;
		from_right = i < j ? y_before : x_before;
	}
	return least_of(order->inner[left_node].low, (i < j ? i : j) + 1, i < j ? j : i, least(from_left, from_right));
}

/* ---- change ---- */

/* Sum up child `place` of an inner node anew. */
static void sum_up(struct order_index *order, uint32_t node, unsigned place)
{
	struct order_inner *inner = &order->inner[node];
	uint32_t low = NOBODY, newest = 0;
	uint64_t symbols = 0;

	if (inner->height == 1) {
		const struct order_leaf *leaf = &order->leaf[inner->id[place]];

		for (unsigned i = 0; i < leaf->count; i++) {
			low = least(low, leaf->low[i]);
			newest = greatest(newest, leaf->id[i]);
			if (leaf->id[i] != order->count)
				symbols |= symbol_bit(leaf->symbol[i]);
		}
	} else {
		const struct order_inner *child = &order->inner[inner->id[place]];

		for (unsigned i = 0; i < child->count; i++) {
			low = least(low, child->low[i]);
			newest = greatest(newest, child->newest[i]);
			symbols |= child->symbols[i];
		}
	}
	inner->low[place] = low;
	inner->newest[place] = newest;
	inner->symbols[place] = symbols;
}

static void sum_up_path(struct order_index *order, uint32_t leaf)
{
	uint32_t node = order->leaf[leaf].parent;
	unsigned place = order->leaf[leaf].place;

	while (node != NOBODY) {
		sum_up(order, node, place);
		place = order->inner[node].place;
		node = order->inner[node].parent;
	}
}

static void set_parent(struct order_index *order, uint32_t height, uint32_t id, uint32_t parent, unsigned place)
{
	if (height == 1) {
		order->leaf[id].parent = parent;
		order->leaf[id].place = (uint16_t)place;
	} else {
		order->inner[id].parent = parent;
		order->inner[id].place = (uint16_t)place;
	}
}

static void split_inner(struct order_index *order, uint32_t node);

/* Hang node `id` into `parent` as child `place`, which must have room, and sum it up. */
static void hang_in(struct order_index *order, uint32_t parent, unsigned place, uint32_t id)
{
	struct order_inner *inner = &order->inner[parent];

	for (unsigned i = inner->count; i > place; i--) {
		inner->id[i] = inner->id[i - 1];
		inner->low[i] = inner->low[i - 1];
		inner->newest[i] = inner->newest[i - 1];
		inner->symbols[i] = inner->symbols[i - 1];
		set_parent(order, inner->height, inner->id[i], parent, i);
	}
	inner->id[place] = id;
	inner->count++;
	set_parent(order, inner->height, id, parent, place);
	sum_up(order, parent, place);
}

/* Hang the new right half `id` beside the node that was split, child `place` of `parent`. */
static void hang_beside(struct order_index *order, uint32_t parent, unsigned place, uint32_t id)
{
	sum_up(order, parent, place);
	hang_in(order, parent, place + 1, id);
	if (order->inner[parent].count == ORDER_FANOUT)
		split_inner(order, parent);
}

/* Nodes are split as soon as they are full, so that there is always room for one more. */
static void split_inner(struct order_index *order, uint32_t node)
{
	const unsigned half = ORDER_FANOUT / 2;
	struct order_inner *left = &order->inner[node], *right;
	uint32_t id = order->inners++;

	right = &order->inner[id];
	right->height = left->height;
	right->count = (uint16_t)(left->count - half);
	for (unsigned i = 0; i < right->count; i++) {
		right->id[i] = left->id[half + i];
		right->low[i] = left->low[half + i];
		right->newest[i] = left->newest[half + i];
		right->symbols[i] = left->symbols[half + i];
		set_parent(order, right->height, right->id[i], id, i);
	}
	left->count = (uint16_t)half;
	if (left->parent == NOBODY) {
		struct order_inner *root = &order->inner[order->inners];

		order->root = order->inners++;
		root->parent = NOBODY;
		root->place = 0;
		root->count = 0;
		root->height = left->height + 1;
		hang_in(order, order->root, 0, node);
	}
	hang_beside(order, left->parent, left->place, id);
}

static void split_leaf(struct order_index *order, uint32_t leaf)
{
	const unsigned half = ORDER_FANOUT / 2;
	struct order_leaf *left = &order->leaf[leaf], *right;
	uint32_t id = order->leaves++;

	right = &order->leaf[id];
	right->count = (uint16_t)(left->count - half);
	memcpy(right->id, left->id + half, right->count * sizeof(*right->id));
	memcpy(right->low, left->low + half, right->count * sizeof(*right->low));
	memcpy(right->symbol, left->symbol + half, right->count * sizeof(*right->symbol));
	for (unsigned i = 0; i < right->count; i++)
		order->leaf_of[right->id[i]] = id;
	left->count = (uint16_t)half;
	hang_beside(order, left->parent, left->place, id);
}

/* The first entry right of a place, or false. */
static bool right_of(const struct order_index *order, struct place at, struct place *next)
{
	const struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	if (at.entry + 1 < leaf->count) {
		*next = (struct place){at.leaf, at.entry + 1};
		return true;
	}
	for (; node != NOBODY; place = order->inner[node].place, node = order->inner[node].parent) {
		const struct order_inner *inner = &order->inner[node];

		for (unsigned i = place + 1; i < inner->count; i++) {
			uint32_t id = inner->id[i];

			if (inner->low[i] == NOBODY)
				continue; /* emptied by removals */
			for (uint32_t height = inner->height; height > 1; height--) {
				const struct order_inner *child = &order->inner[id];
				unsigned first = 0;

				while (child->low[first] == NOBODY)
					first++;
				id = child->id[first];
			}
			*next = (struct place){id, 0};
			return true;
		}
	}
	return false;
}

/* Put `context` at a place, moving what is there and behind it to the right. */
static void put_entry(struct order_index *order, struct place at, uint32_t context, uint32_t low)
{
	struct order_leaf *leaf = &order->leaf[at.leaf];
	unsigned behind = leaf->count - at.entry;
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	memmove(leaf->id + at.entry + 1, leaf->id + at.entry, behind * sizeof(*leaf->id));
	memmove(leaf->low + at.entry + 1, leaf->low + at.entry, behind * sizeof(*leaf->low));
	memmove(leaf->symbol + at.entry + 1, leaf->symbol + at.entry, behind * sizeof(*leaf->symbol));
	leaf->id[at.entry] = context;
	leaf->low[at.entry] = low;
	leaf->symbol[at.entry] = 0;
	leaf->count++;
	order->leaf_of[context] = at.leaf;
	for (; node != NOBODY; place = order->inner[node].place, node = order->inner[node].parent) {
		struct order_inner *inner = &order->inner[node];

		inner->newest[place] = context;
		inner->low[place] = least(inner->low[place], low);
	}
	if (leaf->count == ORDER_FANOUT)
		split_leaf(order, at.leaf);
}

/* Change what an entry shares with its left neighbour. */
static void set_low(struct order_index *order, struct place at, uint32_t low)
{
	order->leaf[at.leaf].low[at.entry] = low;
	sum_up_path(order, at.leaf);
}

void order_insert(struct order_index *order, unsigned symbol)
{
	const uint32_t last = order->count, context = last + 1;
	struct place at = place_of(order, last), next;
	struct follower left = {symbol, NOBODY, 0, NOBODY}, right = left;
	uint32_t node = order->leaf[at.leaf].parent;
	unsigned place = order->leaf[at.leaf].place;

	if (has_symbol(order, symbol)) {
		follow(order, at, LEFT, &left);
		follow(order, at, RIGHT, &right);
	}
	/* From now on `last` has a follower. */
	order->leaf[at.leaf].symbol[at.entry] = (uint16_t)symbol;
	for (; node != NOBODY; place = order->inner[node].place, node = order->inner[node].parent)
		order->inner[node].symbols[place] |= symbol_bit(symbol);
	order->count = context;
	if (left.found != NOBODY) {
		at = place_of(order, left.found + 1);
		if (right.found != NOBODY && right_of(order, at, &next)) {
			/* In the same leaf the two new lengths have the same least as the old one. */
			if (next.leaf == at.leaf)
				order->leaf[next.leaf].low[next.entry] = right.run + 1;
			else
				set_low(order, next, right.run + 1);
		}
		at.entry++;
		put_entry(order, at, context, left.run + 1);
	} else if (right.found != NOBODY) {
		at = place_of(order, right.found + 1);
		order->leaf[at.leaf].low[at.entry] = right.run + 1;
		put_entry(order, at, context, 0);
	} else {
		/* A symbol seen for the first time: its contexts will stand behind all others. */
		uint32_t id = order->root;

		for (uint32_t height = order->inner[id].height; height > 0; height--)
			id = order->inner[id].id[order->inner[id].count - 1];
		put_entry(order, (struct place){id, order->leaf[id].count}, context, 0);
	}
}

void order_remove(struct order_index *order)
{
	struct place at = place_of(order, order->count), next;
	struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t low = leaf->low[at.entry];
	unsigned behind;

	if (right_of(order, at, &next))
		set_low(order, next, least(low, order->leaf[next.leaf].low[next.entry]));
	behind = leaf->count - at.entry - 1;
	memmove(leaf->id + at.entry, leaf->id + at.entry + 1, behind * sizeof(*leaf->id));
	memmove(leaf->low + at.entry, leaf->low + at.entry + 1, behind * sizeof(*leaf->low));
	memmove(leaf->symbol + at.entry, leaf->symbol + at.entry + 1, behind * sizeof(*leaf->symbol));
	order->sparse += leaf->count == ORDER_FANOUT / 2;
	leaf->count--;
	order->count--;
	sum_up_path(order, at.leaf);
}
