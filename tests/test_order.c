/*
 * The ordered index by itself, in every instruction set this machine has, against comparison symbol by symbol.
 *
 * Streams of retrieval reach it only after a while and only in the fastest variant; here each variant is asked for
 * every match at every length of history, and contexts are taken out again.
 */
#include "retrieval/order_index.h"
#include "eval/streams.h"
#include "support_test.h"

#define STEPS 400

static const rosa_allocator plain_memory = {NULL, NULL};

/* Symbols shared by the ends of two strings. */
static uint32_t shared_end(const uint16_t *a, uint32_t n, const uint16_t *b, uint32_t m)
{
	uint32_t shared = 0;

	while (shared < n && shared < m && a[n - 1 - shared] == b[m - 1 - shared])
		shared++;
	return shared;
}

/* The greatest match of a query with contexts 1 .. count of the key, the newest of equals. */
static struct match brute_force(const uint16_t *key, uint32_t count, const uint16_t *query, uint32_t length,
				uint32_t cap)
{
	struct match best = {0, 0};

	for (uint32_t c = 1; c <= count; c++) {
		uint32_t shared = shared_end(key, c, query, length);

		shared = shared < cap ? shared : cap;
		if (shared && shared >= best.length)
			best = (struct match){c, shared};
	}
	return best;
}

static void check_find(const struct order_index *order, const uint16_t *key, const uint16_t *query, uint32_t length,
		       uint32_t cap, unsigned bits)
{
	struct match past = brute_force(key, order->count, query, length - 1, cap);
	uint16_t turned[STEPS];
	uint32_t found[MAX_LANES] = {0};
	uint32_t symbols[MAX_LANES], first;

	for (unsigned lane = 0; lane <= bits; lane++)
		symbols[lane] = lane ? query[length - 1] ^ 1u << (lane - 1) : query[length - 1];
	first = order_find(order, past, symbols, cap, 0, first_bits(bits + 1), found);

	memcpy(turned, query, length * sizeof(*query));
	for (unsigned lane = 0; lane <= bits; lane++) {
		struct match want;

		turned[length - 1] = (uint16_t)(lane ? query[length - 1] ^ 1u << (lane - 1) : query[length - 1]);
		want = brute_force(key, order->count, turned, length, cap);
		assert_int_equal(found[lane], want.context);
		if (lane == 0)
			assert_int_equal(first, want.length);
	}
}

/* Add the next context of the key. */
static void add_next(struct order_index *order, const uint16_t *key)
{
	uint32_t relative = order->count;

	while (relative && key[relative - 1] != key[order->count])
		relative--;
	order_insert(order, key[order->count], relative);
}

static void check_variant(rosa_isa isa, int kind, unsigned bits, uint32_t cap)
{
	struct order_index *order = order_new(&plain_memory);
	uint16_t query[STEPS], key[STEPS];

	assert_non_null(order);
	order_use(order, isa);
	assert_true(order_reserve(order, &plain_memory, STEPS));
	stream_fill(kind, (int)bits, 7, STEPS, query, key);
	for (uint32_t t = 0; t < STEPS; t++) {
		add_next(order, key);
		assert_int_equal(order->count, t + 1);
		if (t % 7 == 0 || t > STEPS - 10)
			check_find(order, key, query, t + 1, cap, bits);
	}
	for (uint32_t a = 1; a <= STEPS; a += 13)
		for (uint32_t b = 2; b <= STEPS; b += 17)
			if (a != b)
				assert_int_equal(order_shared(order, a, b), shared_end(key, a, key, b));
	while (order->count > STEPS / 3)
		order_remove(order);
	check_find(order, key, query, STEPS / 2, cap, bits);
	assert_true(order_reserve(order, &plain_memory, STEPS));
	while (order->count < STEPS)
		add_next(order, key);
	check_find(order, key, query, STEPS, cap, bits);
	order_free(order, &plain_memory);
}

TEST(every_variant_on_every_stream)
{
	static const unsigned widths[] = {1, 2, 4, 7, 8, 16};
	int variants = 0;

	for (int isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!rosa_isa_available((rosa_isa)isa))
			continue;
		variants++;
		for (int kind = 0; kind < stream_count(); kind++)
			for (size_t w = 0; w < COUNT(widths); w++)
				check_variant((rosa_isa)isa, kind, widths[w], (kind + w) % 3 ? UINT32_MAX : 3);
	}
	assert_true(variants >= 1);
}
