/* The ordered index. The overview is in order_index.h. */
#include "retrieval/order_index.h"
#include "retrieval/order_vectors.h"

#define NOBODY UINT32_MAX

enum direction { LEFT, RIGHT };

/* A place in the list. */
struct place {
	uint32_t leaf;
	unsigned entry;
};

/* A symbol's bit in a set. Up to ORDER_EXACT bits are told apart; wider symbols share bits, spread so that a query and
 * its flips, or symbols with equal low ends, do not. */
static unsigned symbol_place(unsigned symbol)
{
	return symbol < 1u << ORDER_EXACT ? symbol : symbol * 0x9e3779b1u >> 26;
}

static uint64_t symbol_bit(unsigned symbol)
{
	return UINT64_C(1) << symbol_place(symbol);
}

static uint32_t least_of(const uint32_t *low, unsigned from, unsigned to, uint32_t so_far)
{
	for (unsigned i = from; i < to; i++)
		so_far = least(so_far, low[i]);
	return so_far;
}

/* What a search finds: a context, the shared length, and on which side it lies. */
struct nearest {
	uint32_t context; /* NOBODY: none */
	uint32_t run;
	enum direction side;
};

/* Where a new context belongs: beside the neighbour, of those that end in the same symbol, that it shares most with. */
struct gap {
	uint32_t neighbour, shared;
	bool before; /* before that one, not behind it */
};

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

bool order_reserve(struct order_index *order, const rosa_allocator *allocator, size_t contexts)
{
	size_t leaves = leaves_for(contexts + 1) + order->sparse;

	return MEMORY_RESERVE(allocator, order->leaf, order->leaf_capacity, leaves) &&
	       MEMORY_RESERVE(allocator, order->inner, order->inner_capacity, inners_for(leaves)) &&
	       MEMORY_RESERVE(allocator, order->leaf_of, order->context_capacity, contexts + 1);
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
	order_use(order, rosa_isa_best());
	order_clear(order);
	return order;
}

void order_clear(struct order_index *order)
{
	order->leaves = order->inners = 1;
	order->root = order->count = order->sparse = 0;
	order->place = 0;
	order->symbols = 0;
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
	order->place = from->place;
	order->symbols = from->symbols;
	return order;
}

size_t order_bytes(const struct order_index *order)
{
	return order ? sizeof(*order) + order->leaf_capacity * sizeof(*order->leaf) +
			   order->inner_capacity * sizeof(*order->inner) +
			   order->context_capacity * sizeof(*order->leaf_of)
		     : 0;
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
			symbols |= child->symbols[0][i] | (uint64_t)child->symbols[1][i] << 32;
		}
	}
	inner->low[place] = low;
	inner->newest[place] = newest;
	inner->symbols[0][place] = (uint32_t)symbols;
	inner->symbols[1][place] = (uint32_t)(symbols >> 32);
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
		inner->symbols[0][i] = inner->symbols[0][i - 1];
		inner->symbols[1][i] = inner->symbols[1][i - 1];
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
		right->symbols[0][i] = left->symbols[0][half + i];
		right->symbols[1][i] = left->symbols[1][half + i];
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

/* Change what an entry shares with its left neighbour, up to where it makes no difference. */
static void set_low(struct order_index *order, struct place at, uint32_t low)
{
	struct order_leaf *leaf = &order->leaf[at.leaf];
	uint32_t node = leaf->parent;
	unsigned place = leaf->place;

	leaf->low[at.entry] = low;
	low = least_of(leaf->low, 0, leaf->count, NOBODY);
	while (node != NOBODY && order->inner[node].low[place] != low) {
		struct order_inner *inner = &order->inner[node];

		inner->low[place] = low;
		low = least_of(inner->low, 0, inner->count, NOBODY);
		place = inner->place;
		node = inner->parent;
	}
}

/* The place behind all entries. */
static struct place last_place(const struct order_index *order)
{
	uint32_t id = order->root;

	for (uint32_t height = order->inner[id].height; height > 0; height--)
		id = order->inner[id].id[order->inner[id].count - 1];
	return (struct place){id, order->leaf[id].count};
}

/* Where contexts repeat earlier ones, a neighbour of the newest is followed by the same symbol as it, and mostly it is
 * the neighbour with which more is shared: then that is the nearest, and there is nothing to search. */
static inline bool goes_beside(const struct order_leaf *leaf, unsigned entry, unsigned symbol, struct nearest *nearest)
{
	const uint32_t left = leaf->low[entry], right = leaf->low[entry + 1];

	/* what is shared beyond the leaf is not looked up here */
	if (entry + 1 >= leaf->count)
		return false;
	if (left < right) {
		*nearest = (struct nearest){leaf->id[entry + 1], right, RIGHT};
		return leaf->symbol[entry + 1] == symbol;
	}
	if (!entry || !left)
		return false;
	*nearest = (struct nearest){leaf->id[entry - 1], left, LEFT};
	return leaf->symbol[entry - 1] == symbol;
}

/* ---- variants ---- */

#define ORDER_NAME plain
#define ORDER_TARGET
#include "retrieval/order_template.h"

#if ROSA_X86_VARIANTS
#define ORDER_NAME   avx2
#define ORDER_TARGET TARGET_AVX2
#include "retrieval/order_template.h"
#endif

void order_use(struct order_index *order, rosa_isa isa)
{
	order->find = find_plain;
	order->insert = insert_plain;
	order->shared = shared_plain;
#if ROSA_X86_VARIANTS
	if (isa >= ROSA_ISA_AVX2) {
		order->find = find_avx2;
		order->insert = insert_avx2;
		order->shared = shared_avx2;
	}
#else
	(void)isa;
#endif
}

uint32_t order_find(const struct order_index *order, struct match past, const uint32_t *symbols, uint32_t cap,
		    uint32_t known, uint32_t deep, uint32_t *found)
{
	return order->find(order, past, symbols, cap, known, deep, found);
}

void order_insert(struct order_index *order, unsigned symbol, uint32_t relative)
{
	order->insert(order, symbol, relative);
}

void order_remove(struct order_index *order)
{
	struct place at = place_of_plain(order, order->count), next;
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
	order->place = ORDER_NOT_KNOWN;
	sum_up_path(order, at.leaf);
}

uint32_t order_shared(const struct order_index *order, uint32_t a, uint32_t b)
{
	return order->shared(order, a, b);
}
