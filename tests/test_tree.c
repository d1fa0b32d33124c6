/*
 * The tree index by itself: what it finds is held against comparison symbol by symbol, before and after its links get
 * longer and its trees more. A stream has to be millions of steps long for the longest links; here room is asked for.
 */
#include "retrieval/tree_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { CONTEXTS = 2000, QUERIES = 300 };

struct fixture {
	struct contexts ctx;
	struct tree_index tree;
	unsigned bits;
};

static const rosa_allocator plain;

/* Few symbols come often, so that matches are of all lengths. */
static void fill(struct packed *packed, unsigned bits, uint32_t count, uint64_t seed)
{
	uint64_t word = 0;

	assert_true(packed_reserve(packed, &plain, bits, count));
	for (uint32_t i = 0; i < count; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		word = packed_push(word, bits, (seed >> 60 ? seed >> 59 & 1 : seed >> 33) & ((1u << bits) - 1));
		packed_put(packed, bits, i, word);
	}
}

static void set_up(struct fixture *f, unsigned bits, uint32_t max_match, unsigned root_bits)
{
	const unsigned word = packed_word_symbols(bits);

	*f = (struct fixture){.bits = bits};
	f->ctx.bits = bits;
	f->ctx.max_match = max_match;
	f->ctx.word = word < max_match ? word : max_match;
	f->ctx.mask = packed_mask(bits, f->ctx.word);
	f->tree.patience = UINT64_MAX;
	fill(&f->ctx.key, bits, CONTEXTS, 1);
	fill(&f->ctx.query, bits, QUERIES, 2);
	assert_true(tree_set_roots(&f->tree, &plain, &f->ctx, root_bits, 0, TREE_GROWS));
	assert_true(tree_reserve(&f->tree, &plain, &f->ctx, 0, CONTEXTS));
}

static void tear_down(struct fixture *f)
{
	tree_free(&f->tree, &plain);
	memory_free(&plain, f->ctx.key.bytes);
	memory_free(&plain, f->ctx.query.bytes);
}

static void insert(struct fixture *f, uint32_t from, uint32_t to)
{
	const struct tree_view view = tree_look(&f->tree, &f->ctx, false);

	for (uint32_t c = from; c <= to; c++)
		tree_insert(&f->tree, &view, &f->ctx, f->bits, packed_word(&f->ctx.key, f->bits, c), c);
}

/* By the definition: the longest, and of equals the newest. `flip`: what the query's last symbol is changed by. */
static struct match by_hand(const struct fixture *f, uint32_t contexts, uint32_t length, unsigned flip)
{
	struct match best = {0, 0};

	for (uint32_t c = 1; c <= contexts; c++) {
		uint32_t shared = 0;

		while (shared < c && shared < length && shared < f->ctx.max_match &&
		       packed_get(&f->ctx.key, f->bits, c - 1 - shared) ==
			   (packed_get(&f->ctx.query, f->bits, length - 1 - shared) ^ (shared ? 0 : flip)))
			shared++;
		if (shared && shared >= best.length)
			best = (struct match){c, shared};
	}
	return best;
}

static void check(struct fixture *f, uint32_t contexts)
{
	const struct tree_view view = tree_look(&f->tree, &f->ctx, false);

	for (uint32_t length = 1; length <= QUERIES; length += 7) {
		const uint64_t word = packed_word(&f->ctx.query, f->bits, length);
		uint32_t found[TREE_MAX_LANES];
		const uint32_t matched = tree_find(&f->tree, &view, &f->ctx, f->bits, word, length, f->bits + 1, found);

		assert_int_equal(matched, by_hand(f, contexts, length, 0).length);
		for (unsigned lane = 0; lane <= f->bits; lane++)
			assert_int_equal(found[lane],
					 by_hand(f, contexts, length, lane ? 1u << (lane - 1) : 0).context);
	}
}

static void test_growing(void **state)
{
	static const unsigned widths[] = {1, 3, 4, 8, 9, 16};
	static const uint32_t back[] = {1, TREE_BEFORE - 4, 9, 700, 20, TREE_BEFORE, 300};
	static const size_t room[] = {5000, (size_t)1 << 20, ((size_t)1 << 24) - 1, (size_t)1 << 24};

	(void)state;
	for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
		struct fixture f;
		unsigned root_bits = 4;
		uint32_t contexts = 0;

		set_up(&f, widths[i], i % 2 ? 6 : UINT32_MAX, root_bits);
		for (size_t r = 0; r < sizeof(room) / sizeof(*room); r++) {
			insert(&f, contexts + 1, contexts + CONTEXTS / 5);
			contexts += CONTEXTS / 5;
			check(&f, contexts);
			assert_true(tree_reserve(&f.tree, &plain, &f.ctx, contexts, room[r]));
			assert_int_equal(f.tree.link, r == 3 ? 32 : 24);
			check(&f, contexts);
			root_bits = root_bits + 2 < 6 * widths[i] ? root_bits + 2 : root_bits;
			assert_true(tree_set_roots(&f.tree, &plain, &f.ctx, root_bits, contexts, TREE_GROWS));
			check(&f, contexts);
		}
		/* and back */
		for (size_t b = 0; b < sizeof(back) / sizeof(*back); b++) {
			tree_shrink(&f.tree, &f.ctx, contexts, contexts - back[b]);
			contexts -= back[b];
			tree_forget(&f.tree);
			check(&f, contexts);
			insert(&f, contexts + 1, contexts + 5);
			contexts += 5;
			check(&f, contexts);
		}
		tear_down(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_growing)};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
