/* The tree index, the parts that are not in a hurry. The essay is in tree_index.h. */
#include "retrieval/tree_index.h"

/* Nodes are read and written eight bytes at a time. */
#define PAD 8

static size_t node_bytes(const struct tree_index *tree, size_t capacity)
{
	return (capacity + 1) * tree->node + PAD;
}

/* Contexts that links of 24 bits are too short for. */
#define MANY ((size_t)1 << 24)

/* The form of nodes for so many contexts. */
static void shape(struct tree_index *tree, unsigned bits, size_t capacity)
{
	tree->link = tree->use == TREE_GROWS && capacity < MANY ? 24 : 32;
	tree->node = tree->link == 24 && bits <= TREE_NARROW ? 6 : 8;
}

/* The first nodes of one index as another has them, whose links differ. */
static void copy_nodes(const struct tree_index *to, const struct tree_index *from, const struct contexts *ctx,
		       uint32_t contexts)
{
	const struct tree_view old = tree_look(from, ctx, false), new = tree_look(to, ctx, false);

	for (uint32_t c = 0; c <= contexts; c++) {
		tree_bud(&new, c, tree_place(&new, ctx->bits, c));
		tree_hang(&new, c, false, tree_child(&old, c, false));
		tree_hang(&new, c, true, tree_child(&old, c, true));
	}
}

/* New tags: trees are picked by other bits. */
static void retag(const struct tree_index *tree, const struct contexts *ctx, uint32_t contexts)
{
	const struct tree_view view = tree_look(tree, ctx, false);
	const unsigned tag_bits = tree_tag_bits(&view), shift = 2 * view.link;

	for (uint32_t c = 1; c <= contexts && tag_bits; c++) {
		const uint64_t tag = tree_tag(&view, tree_place(&view, ctx->bits, c));
		const uint64_t links = tree_links(&view, c),
			       other = (links >> shift ^ tag) & ((UINT64_C(1) << tag_bits) - 1);

		tree_write(&view, c, links ^ other << shift);
	}
}

bool tree_reserve(struct tree_index *tree, const rosa_allocator *allocator, const struct contexts *ctx,
		  uint32_t indexed, size_t contexts)
{
	struct tree_index next = *tree;

	if (tree->child && contexts <= tree->capacity)
		return true;
	next.capacity = tree->child ? memory_grown(tree->capacity, contexts) : contexts;
	/* room to spare is not worth longer links */
	if (contexts < MANY && next.capacity >= MANY)
		next.capacity = MANY - 1;
	shape(&next, ctx->bits, next.capacity);
	if (tree->child && next.link != tree->link) {
		next.child = memory_resize(allocator, NULL, node_bytes(&next, next.capacity));
		if (!next.child)
			return false;
		copy_nodes(&next, tree, ctx, indexed);
		memory_free(allocator, tree->child);
	} else {
		next.child = memory_resize(allocator, tree->child, node_bytes(&next, next.capacity));
		if (!next.child)
			return false;
		memset(next.child, 0, next.node); /* context 0, nobody */
	}
	*tree = next;
	return true;
}

void tree_free(struct tree_index *tree, const rosa_allocator *allocator)
{
	memory_free(allocator, tree->child);
	memory_free(allocator, tree->table);
	memset(tree, 0, sizeof(*tree));
}

void tree_free_children(struct tree_index *tree, const rosa_allocator *allocator)
{
	memory_free(allocator, tree->child);
	tree->child = NULL;
	tree->capacity = 0;
}

void tree_note_all(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts)
{
	const struct tree_view view = tree_look(tree, ctx, false);

	if (tree->mixed) {
		memset(tree->table, 0, tree->roots * sizeof(*tree->table));
		tree->before_from = contexts + 1;
	} else {
		tree_clear(tree);
	}
	for (uint32_t c = 1; c <= contexts; c++)
		tree_note(&view, ctx->bits, packed_word(&ctx->key, ctx->bits, c), c);
}

bool tree_copy(struct tree_index *to, const struct tree_index *from, const rosa_allocator *allocator)
{
	size_t children = node_bytes(from, from->capacity), tables = from->table_size * sizeof(*from->table);

	to->child = from->child ? memory_resize(allocator, NULL, children) : NULL;
	to->table = from->table ? memory_resize_lines(allocator, NULL, tables) : NULL;
	if ((from->child && !to->child) || (from->table && !to->table)) {
		memory_free(allocator, to->child);
		memory_free(allocator, to->table);
		to->child = NULL;
		to->table = NULL;
		return false;
	}
	if (from->child)
		memcpy(to->child, from->child, children);
	if (from->table)
		memcpy(to->table, from->table, tables);
	return true;
}

size_t tree_bytes(const struct tree_index *tree)
{
	return (tree->child ? node_bytes(tree, tree->capacity) : 0) + tree->table_size * sizeof(*tree->table);
}

void tree_clear(struct tree_index *tree)
{
	if (tree->table)
		memset(tree->table, 0, tree->table_size * sizeof(*tree->table));
	tree_forget(tree);
	tree->work = 0;
	tree->gave_up = false;
	tree->before_from = 1;
}

void tree_forget(struct tree_index *tree)
{
	memset(tree->with_query, 0, sizeof(tree->with_query));
	memset(tree->with_key, 0, sizeof(tree->with_key));
}

/* Is a table of single symbols and a hash of two better than whole symbols? It is where two do not fit, unless the
 * table, which has to be cleared, would be far larger than the stream is long. */
static bool hashes_pay(const struct contexts *ctx, unsigned root_bits)
{
	return ctx->bits > TREE_NARROW && ctx->max_match > 1 && root_bits < 2 * ctx->bits && root_bits + 2 >= ctx->bits;
}

/* Is it worth a table of single symbols, of at most four bytes a context, to pick trees by two? */
static bool mixing_pays(const struct contexts *ctx, uint32_t contexts)
{
	return ctx->bits > TREE_NARROW && ctx->max_match > 1 && contexts >> ctx->bits;
}

/* Roots of a string that are so near to each other are a line of the cache: they need no table to say which is the
 * newest. */
#define NEAR 4

/* Set use, roots, levels, tables, root_bits and table_size for 2^root_bits trees. A last level of just root_bits bits
 * is the table of roots itself: a root is the newest context of its tree. */
static void lay_out(struct tree_index *tree, unsigned bits, unsigned root_bits, enum tree_use use, bool pairs)
{
	const unsigned levels = pairs ? 1 : root_bits / bits;
	const bool near = !pairs && root_bits - levels * bits <= (use == TREE_GROWS ? NEAR : 0);

	tree->use = use;
	tree->root_bits = root_bits;
	tree->hashed = pairs && use == TREE_SCRATCH;
	tree->mixed = pairs && use == TREE_GROWS;
	tree->levels = levels;
	tree->tables = levels && near ? levels - 1 : levels;
	tree->roots = (uint32_t)tree_level(bits, tree->tables + 1);
	tree->table_size = tree->roots + ((size_t)1 << root_bits);
}

/* Cut the tree `at` into the contexts whose word is below `pivot` and the others; *greatest gets these, the rest is
 * returned. Node 0, nobody's, is where both hang meanwhile. */
static uint32_t split(const struct tree_view *view, unsigned bits, uint32_t at, uint64_t pivot, uint32_t *greatest)
{
	uint32_t lesser = 0, greater = 0, rest;

	while (at) {
		const bool below = tree_place(view, bits, at) < pivot;

		if (below) {
			tree_hang(view, lesser, lesser != 0, at);
			lesser = at;
		} else {
			tree_hang(view, greater, greater == 0, at);
			greater = at;
		}
		at = tree_child(view, at, below);
	}
	tree_hang(view, lesser, lesser != 0, 0);
	tree_hang(view, greater, greater == 0, 0);
	rest = tree_child(view, 0, false);
	*greatest = tree_child(view, 0, true);
	tree_hang(view, 0, false, 0);
	tree_hang(view, 0, true, 0);
	return rest;
}

void tree_fill(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts)
{
	const struct tree_view view = tree_look(tree, ctx, false);

	tree->before_from = 1;
	for (uint32_t c = 1; c <= contexts && !tree->gave_up; c++)
		tree_insert(tree, &view, ctx, ctx->bits, packed_word(&ctx->key, ctx->bits, c), c);
}

/* Cut every tree of `tree` along the borders of `next`, whose tables are empty. */
static void divide(const struct tree_index *tree, struct tree_index *next, const struct contexts *ctx)
{
	const struct tree_view view = tree_look(tree, ctx, false);
	const unsigned bits = ctx->bits, more = next->root_bits - tree->root_bits;

	if (next->mixed)
		memcpy(next->table, tree->table, next->roots * sizeof(*next->table));
	for (size_t i = 0; i < (size_t)1 << tree->root_bits; i++) {
		uint32_t rest = view.roots[i];

		/* Each tree becomes 2^more: the greatest part is cut off again and again. */
		for (size_t part = (size_t)1 << more; part-- > 0 && rest;) {
			const size_t place = (i << more) + part;
			const uint64_t pivot = (uint64_t)place << (64 - next->root_bits);
			uint32_t greatest = 0;

			rest = split(&view, bits, rest, pivot, &greatest);
			next->table[next->roots + place] = greatest;
			for (unsigned l = 1; l <= next->tables && !next->mixed; l++) {
				uint32_t *newest = next->table + tree_level(bits, l) + (pivot >> (64 - l * bits));

				*newest = greatest > *newest ? greatest : *newest;
			}
		}
	}
}

bool tree_set_roots(struct tree_index *tree, const rosa_allocator *allocator, const struct contexts *ctx,
		    unsigned root_bits, uint32_t contexts, enum tree_use use)
{
	struct tree_index next = *tree;
	size_t size;

	lay_out(&next, ctx->bits, root_bits, use,
		use == TREE_SCRATCH ? hashes_pay(ctx, root_bits)
				    : use == TREE_GROWS && (tree->mixed || mixing_pays(ctx, contexts)));
	if (!contexts && tree->table && tree->table_size == next.table_size && tree->root_bits == root_bits &&
	    tree->use == use)
		return true;
	size = next.table_size * sizeof(*next.table);
	next.table = use == TREE_SCRATCH ? memory_scratch(allocator, size) : memory_resize_lines(allocator, NULL, size);
	if (!next.table)
		return false;
	memset(next.table, 0, size);
	if (contexts && next.mixed != tree->mixed) {
		tree_fill(&next, ctx, contexts);
		next.work = tree->work; /* not the stream's fault */
	} else if (contexts) {
		divide(tree, &next, ctx);
		retag(&next, ctx, contexts);
	}
	memory_free(allocator, tree->table);
	*tree = next;
	return true;
}

/* Take the newest context out. */
static void take_out(struct tree_index *tree, const struct contexts *ctx, uint32_t context)
{
	const struct tree_view view = tree_look(tree, ctx, false);
	const unsigned bits = ctx->bits;
	const uint64_t w = packed_word(&ctx->key, bits, context);
	uint32_t lesser = tree_child(&view, context, false), greater = tree_child(&view, context, true), above = 0;
	bool side = false; /* of `above`, where the next hangs; node 0 is where the first does meanwhile */

	while (lesser && greater) {
		const bool newer = lesser > greater;
		const uint32_t next = newer ? lesser : greater;

		tree_hang(&view, above, side, next);
		above = next;
		side = newer;
		if (newer)
			lesser = tree_child(&view, above, side);
		else
			greater = tree_child(&view, above, side);
	}
	tree_hang(&view, above, side, lesser | greater);
	view.roots[tree_root(&view, bits, w)] = tree_child(&view, 0, false);
	tree_hang(&view, 0, false, 0);
	if (tree->mixed) {
		view.table[w >> (64 - bits)] = tree->before[context % TREE_BEFORE];
		return;
	}
	/* The newest of l symbols is the newest of its extensions by one symbol, or of its trees on the last level. */
	for (unsigned l = view.tables; l > 0; l--) {
		const unsigned below = l == view.tables ? view.root_bits : (l + 1) * bits;
		const uint32_t *from = (l == view.tables ? view.roots : view.table + tree_level(bits, l + 1)) +
				       ((size_t)(w >> (64 - l * bits)) << (below - l * bits));
		uint32_t newest = 0;

		for (size_t i = 0; i < (size_t)1 << (below - l * bits); i++)
			newest = from[i] > newest ? from[i] : newest;
		view.table[tree_level(bits, l) + (w >> (64 - l * bits))] = newest;
	}
}

uint32_t tree_compare_long(struct tree_index *tree, struct diagonal *memory, bool remember, const struct contexts *ctx,
			   uint32_t a, const struct packed *other, uint32_t b, uint32_t from, int *sign)
{
	const unsigned bits = ctx->bits;
	struct diagonal *last = &memory[(a - b) % TREE_DIAGONALS];
	uint32_t limit = a < b ? a : b, shared = from, known = UINT32_MAX;

	if (limit > ctx->max_match)
		limit = ctx->max_match;
	if (last->a - last->b == a - b && last->a < a)
		known = a - last->a;
	*sign = 0;
	for (;;) {
		uint64_t left, right, difference;

		if (shared >= known) {
			shared = known + last->length;
			*sign = last->sign;
			break;
		}
		if (shared >= limit)
			break;
		left = packed_word(&ctx->key, bits, a - shared) & ctx->mask;
		right = packed_word(other, bits, b - shared) & ctx->mask;
		difference = left ^ right;
		tree->work++;
		if (difference) {
			shared += leading_zeros(difference) / bits;
			*sign = left < right ? -1 : 1;
			break;
		}
		shared += ctx->word;
	}
	if (shared >= limit) {
		shared = limit;
		*sign = limit == ctx->max_match ? 0 : a < b ? -1 : a > b;
	}
	if (remember)
		*last = (struct diagonal){a, b, shared, *sign};
	return shared;
}

void tree_shrink(struct tree_index *tree, const struct contexts *ctx, uint32_t contexts, uint32_t kept)
{
	for (; contexts > kept; contexts--)
		take_out(tree, ctx, contexts);
	if (tree->mixed && kept + 1 < tree->before_from)
		tree_note_all(tree, ctx, kept);
}
