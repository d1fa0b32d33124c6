/*
 * The chain index by itself: what it finds is compared with comparison symbol by symbol, in every layout it can have,
 * while it grows and while contexts are taken away again. A stream has to be millions of steps long for the longest
 * links; here room is asked for.
 */
#include "retrieval/chain_index.h"
#include "support_test.h"

enum { CONTEXTS = 2000, QUERIES = 300 };

struct fixture {
	struct contexts ctx;
	struct chain_index chains;
	unsigned bits;
};

static const rosa_allocator plain;

/* Few symbols come often, so that matches are of all lengths. */
static void fill(struct packed *packed, unsigned bits, bool folded, uint32_t count, uint64_t seed)
{
	const unsigned mask = (1u << bits) - 1;
	uint64_t word = 0;

	assert_true(packed_reserve(packed, &plain, bits, count));
	for (uint32_t i = 0; i < count; i++) {
		unsigned symbol;

		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		symbol = (seed >> 60 ? seed >> 59 & 1 : seed >> 33) & mask;
		if (folded && i && symbol == word >> (64 - bits))
			symbol = (symbol + 1) & mask;
		word = packed_push(word, bits, symbol);
		packed_put(packed, bits, i, word);
	}
}

static void set_up(struct fixture *f, unsigned bits, bool folded, uint32_t max_match)
{
	*f = (struct fixture){.bits = bits, .ctx = contexts_for(bits, max_match, folded)};
	f->chains.patience = UINT32_MAX;
	fill(&f->ctx.key, bits, folded, CONTEXTS, 1);
	fill(&f->ctx.query, bits, folded, QUERIES, 2);
	assert_true(chain_reserve(&f->chains, &plain, &f->ctx, 0, CONTEXTS, false));
}

static void tear_down(struct fixture *f)
{
	chain_free(&f->chains, &plain);
	memory_free(&plain, f->ctx.key.bytes);
	memory_free(&plain, f->ctx.query.bytes);
}

static void insert(struct fixture *f, uint32_t from, uint32_t to)
{
	const struct chain_view view = chain_look(&f->chains, &f->ctx);

	for (uint32_t c = from; c <= to; c++)
		chain_insert(&view, f->bits, packed_word(&f->ctx.key, f->bits, c), c);
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

/* Every seventh query, with its flips; `bound` must not be less than the longest match there is. */
static void check(struct fixture *f, uint32_t contexts)
{
	const struct chain_view view = chain_look(&f->chains, &f->ctx);

	for (uint32_t length = 1; length <= QUERIES; length += 7) {
		const uint64_t word = packed_word(&f->ctx.query, f->bits, length);
		const uint32_t past = by_hand(f, contexts, length - 1, 0).length;
		const uint32_t cap = least(length, f->ctx.max_match), bound = length % 2 ? cap : least(cap, past + 1);
		uint32_t symbols[MAX_LANES], found[MAX_LANES], matched;

		for (unsigned lane = 0; lane <= f->bits; lane++)
			symbols[lane] = (uint32_t)(word >> (64 - f->bits)) ^ (lane ? 1u << (lane - 1) : 0);
		matched = chain_find(&f->chains, &view, &f->ctx, f->bits, word, length, bound, first_bits(f->bits + 1),
				     f->bits + 1, symbols, found);
		assert_false(f->chains.gave_up);
		assert_int_equal(matched, by_hand(f, contexts, length, 0).length);
		for (unsigned lane = 0; lane <= f->bits; lane++)
			assert_int_equal(found[lane],
					 by_hand(f, contexts, length, lane ? 1u << (lane - 1) : 0).context);
	}
}

static const unsigned widths[] = {1, 2, 3, 4, 8, 9, 16};

/* Streams of two bits whose rows are numbered without strings in which a symbol follows itself, last. */
#define FOLDED(i) ((i) == COUNT(widths))
#define WIDTH(i)  (FOLDED(i) ? 2 : widths[i])

/* Roots picked by every number of symbols that tables of at most 2^18 entries allow, and by more in further sets. */
TEST(test_every_layout)
{
	for (size_t i = 0; i <= COUNT(widths); i++) {
		for (unsigned levels = 0; levels * WIDTH(i) <= 18; levels++) {
			struct fixture f;
			const uint32_t max_match = levels % 2 ? levels + 1 : UINT32_MAX;

			set_up(&f, WIDTH(i), FOLDED(i), max_match);
			for (unsigned root_bits = FOLDED(i) ? 17 : 1; root_bits < 18; root_bits += 4) {
				struct chain_layout layout = {root_bits, levels, 0, FOLDED(i)};

				for (bool more = true; more; more = chain_layout_deeper(&f.ctx, &layout)) {
					assert_true(chain_lay_out(&f.chains, &plain, &f.ctx, layout, CONTEXTS / 2,
								  root_bits % 8 == 1));
					check(&f, CONTEXTS / 2);
				}
			}
			insert(&f, CONTEXTS / 2 + 1, CONTEXTS);
			check(&f, CONTEXTS);
			tear_down(&f);
		}
	}
}

TEST(test_growing)
{
	static const uint32_t back[] = {1, 60, 9, 700, 20, 64, 300};
	static const size_t room[] = {5000, (size_t)1 << 16, ((size_t)1 << 24) - 1, (size_t)1 << 24};
	static const unsigned link_bytes[] = {2, 3, 3, 4};

	for (size_t i = 0; i <= COUNT(widths); i++) {
		struct fixture f;
		uint32_t contexts = 0;
		struct chain_layout layout;

		set_up(&f, WIDTH(i), FOLDED(i), i % 2 ? 6 : UINT32_MAX);
		layout = chain_layout_for(&f.ctx, WIDTH(i), 0, false);
		assert_true(chain_lay_out(&f.chains, &plain, &f.ctx, layout, 0, false));
		for (size_t r = 0; r < COUNT(room); r++) {
			insert(&f, contexts + 1, contexts + CONTEXTS / 5);
			contexts += CONTEXTS / 5;
			check(&f, contexts);
			assert_true(chain_reserve(&f.chains, &plain, &f.ctx, contexts, room[r], false));
			assert_int_equal(f.chains.link_bytes, link_bytes[r]);
			check(&f, contexts);
			layout = chain_layout_for(&f.ctx, WIDTH(i), contexts, false);
			assert_int_equal(layout.distinct, FOLDED(i));
			if (r == 2)
				chain_layout_longer(&f.ctx, (size_t)1 << 18, &layout);
			for (size_t sets = 0; sets < r; sets++)
				chain_layout_deeper(&f.ctx, &layout);
			assert_true(chain_lay_out(&f.chains, &plain, &f.ctx, layout, contexts, false));
			check(&f, contexts);
		}
		/* and back */
		for (size_t b = 0; b < COUNT(back); b++) {
			chain_shrink(&f.chains, &f.ctx, contexts, contexts - back[b]);
			contexts -= back[b];
			contexts_forget(&f.ctx);
			check(&f, contexts);
			insert(&f, contexts + 1, contexts + 5);
			contexts += 5;
			check(&f, contexts);
		}
		tear_down(&f);
	}
}

/* A stream pays at most 8 bytes per context for its link, tables and roots together, 10 where codes are wide, and half
 * a byte more for each bit that narrow codes save. */
TEST(test_memory)
{
	for (size_t i = 0; i <= COUNT(widths); i++) {
		struct contexts ctx = contexts_for(WIDTH(i), UINT32_MAX, FOLDED(i));

		for (unsigned saved = 0; saved <= 8; saved += 4) {
			for (size_t contexts = 100; contexts < (size_t)1 << 22; contexts = contexts * 5 / 4) {
				const struct chain_layout layout =
				    chain_layout_for(&ctx, WIDTH(i) + saved, contexts, false);
				const unsigned symbols = layout.levels + 1;
				const size_t tables = chain_level(WIDTH(i), FOLDED(i), symbols);
				const size_t roots =
				    FOLDED(i) ? chain_level_size(2, true, symbols) : (size_t)1 << layout.root_bits;
				const size_t link = chain_id_bits(contexts) / 8;
				const size_t half_bytes = (WIDTH(i) > CHAIN_NARROW ? 20 : 17 + saved) - 2 * link;

				assert_true(tables + roots <= half_bytes * contexts / 8);
				assert_true(roots * 5 >= contexts);
			}
		}
	}
}
