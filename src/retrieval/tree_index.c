/* The tree index, the parts that are not in a hurry. The essay is in tree_index.h. */
#include "tree_index.h"

bool tree_reserve(struct tree_index *tree, const rosa_allocator *allocator, size_t contexts)
{
	size_t capacity;
	uint32_t *child;

	if (tree->child && contexts <= tree->capacity)
		return true;
	capacity = tree->child ? memory_grown(tree->capacity, contexts) : contexts;
	child = memory_resize(allocator, tree->child, 2 * (capacity + 1) * sizeof(*child));
	if (!child)
		return false;
	child[0] = child[1] = 0;
	tree->child = child;
	tree->capacity = capacity;
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
	const struct tree_view view = tree_look(tree, ctx);

	tree_clear(tree);
	for (uint32_t c = 1; c <= contexts; c++)
		tree_note(&view, ctx->bits, packed_word(&ctx->key, ctx->bits, c), c);
}

bool tree_copy(struct tree_index *to, const struct tree_index *from, const rosa_allocator *allocator)
{
	size_t children = 2 * (from->capacity + 1) * sizeof(*from->child),
	       tables = from->table_size * sizeof(*from->table);

	to->child = from->child ? memory_resize(allocator, NULL, children) : NULL;
	to->table = from->table ? memory_resize(allocator, NULL, tables) : NULL;
	if ((from->child && !to->child) || (from->table && !to->table)) {
		memory_free(allocator, to->child);
		memory_free(allocator, to->table);
		to->child = to->table = NULL;
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
	return (tree->child ? 2 * (tree->capacity + 1) * sizeof(*tree->child) : 0) +
	       tree->table_size * sizeof(*tree->table);
}

void tree_clear(struct tree_index *tree)
{
	if (tree->table)
		memset(tree->table, 0, tree->table_size * sizeof(*tree->table));
	tree_forget(tree);
	tree->work = 0;
	tree->gave_up = false;
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

/* Set roots, levels, root_bits and table_size for 2^root_bits trees. A last level of just root_bits bits is the
 * table of roots itself: a root is the newest context of its tree. */
static void lay_out(struct tree_index *tree, unsigned bits, unsigned root_bits, bool hashed)
{
	tree->root_bits = root_bits;
	tree->hashed = hashed;
	if (hashed) {
		tree->levels = 1;
		tree->roots = 1u << bits;
		tree->table_size = tree->roots + ((size_t)1 << root_bits);
		return;
	}
	tree->levels = root_bits / bits;
	tree->roots = (uint32_t)tree_level(bits, tree->levels + (tree->levels * bits < root_bits));
	tree->table_size = tree->roots + ((size_t)1 << root_bits);
}

/* Cut the tree `at` into the contexts whose word is below `pivot` and the others. */
static void split(uint32_t *child, const struct contexts *ctx, uint32_t at, uint64_t pivot, uint32_t *lesser,
		  uint32_t *greater)
{
	while (at) {
		if ((packed_word(&ctx->key, ctx->bits, at) & ctx->mask) < pivot) {
			*lesser = at;
			lesser = child + 2 * (size_t)at + 1;
			at = *lesser;
		} else {
			*greater = at;
			greater = child + 2 * (size_t)at;
			at = *greater;
		}
	}
	*lesser = 0;
	*greater = 0;
}

bool tree_set_roots(struct tree_index *tree, const rosa_allocator *allocator, const struct contexts *ctx,
		    unsigned root_bits, size_t contexts, bool scratch)
{
	struct tree_index next = *tree;
	unsigned bits = ctx->bits, more = root_bits - tree->root_bits;

	lay_out(&next, bits, root_bits, scratch && hashes_pay(ctx, root_bits));
	if (!contexts && tree->table && tree->table_size == next.table_size && tree->root_bits == root_bits)
		return true;
	next.table = scratch ? memory_scratch(allocator, next.table_size * sizeof(*next.table))
			     : memory_resize(allocator, NULL, next.table_size * sizeof(*next.table));
	if (!next.table)
		return false;
	memset(next.table, 0, next.table_size * sizeof(*next.table));
	if (contexts) {
		for (size_t i = 0; i < (size_t)1 << tree->root_bits; i++) {
			uint64_t prefix = (uint64_t)i << (64 - tree->root_bits);
			uint32_t rest = tree->table[tree->roots + tree_slot(prefix, bits, tree->root_bits)];

			/* Each tree becomes 2^more: the greatest part is cut off again and again. */
			for (uint64_t part = (uint64_t)1 << more; part-- > 0 && rest;) {
				uint64_t pivot = prefix | part << (64 - root_bits);
				uint32_t greatest = 0;

				split(tree->child, ctx, rest, pivot, &rest, &greatest);
				next.table[next.roots + tree_slot(pivot, bits, root_bits)] = greatest;
				for (unsigned l = 1; l <= next.levels && l * bits < root_bits; l++) {
					uint32_t *newest =
					    next.table + tree_level(bits, l) + tree_slot(pivot, bits, l * bits);

					*newest = greatest > *newest ? greatest : *newest;
				}
			}
		}
	}
	memory_free(allocator, tree->table);
	*tree = next;
	return true;
}

void tree_remove(struct tree_index *tree, const struct contexts *ctx, uint32_t context)
{
	unsigned bits = ctx->bits;
	uint64_t w = packed_word(&ctx->key, bits, context);
	uint32_t *hook = tree->table + tree->roots + tree_slot(w, bits, tree->root_bits);
	uint32_t lesser = tree->child[2 * (size_t)context], greater = tree->child[2 * (size_t)context + 1];

	while (lesser && greater) {
		bool newer = lesser > greater;

		*hook = newer ? lesser : greater;
		hook = tree->child + 2 * (size_t)*hook + newer;
		if (newer)
			lesser = *hook;
		else
			greater = *hook;
	}
	*hook = lesser | greater;
	/* The newest of l symbols is the newest of its extensions by one symbol, or of its trees on the last level. */
	for (unsigned l = tree->levels; l > 0; l--) {
		unsigned below = l == tree->levels ? tree->root_bits : (l + 1) * bits;
		const uint32_t *from = tree->table + (below == tree->root_bits ? tree->roots : tree_level(bits, l + 1));
		uint64_t prefix = w & packed_mask(bits, l);
		uint32_t newest = 0;

		if (l * bits == tree->root_bits)
			continue;
		for (uint64_t i = 0; i < (uint64_t)1 << (below - l * bits); i++) {
			uint32_t c = from[tree_slot(prefix | i << (64 - below), bits, below)];

			newest = c > newest ? c : newest;
		}
		tree->table[tree_level(bits, l) + tree_slot(w, bits, l * bits)] = newest;
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
