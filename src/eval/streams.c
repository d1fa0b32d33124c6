/*
 * Symbol streams made by rule.
 *
 * A speed measured on one kind of stream says little about the next, and an index that is right on random symbols may
 * be wrong, or slow, on regular ones. So the kinds live in one table that the benchmark and the tests share: what is
 * offered for timing is also what is checked for exactness.
 *
 * They fall into four groups. The first four are the benchmark's own: independent symbols, keys that linger, query and
 * key made from one hidden token, and a short period. Words with much repetition (periods, Thue-Morse, Fibonacci, a
 * string and itself again) make matches long. De Bruijn sequences and counters make them short. The growing and
 * the sorted kinds insert contexts in their sorted order, as read backwards from their end. This insertion order
 * degenerates an unbalanced search tree into a list, and every query asks for the oldest context.
 *
 * Folding turns every word over two symbols into a plain alternation. Such words therefore have an "alternating" form
 * besides the plain one, in which each letter is written as one of two symbols in turn, so that no neighbours are
 * equal.
 *
 * Only integers are used, so that every machine makes the same symbols. A construction that needs more symbols than
 * there are takes them modulo 2^bits.
 */
#include "eval/streams.h"

#include "base/draw.h"

#include <string.h>

struct maker {
	uint64_t random; /* state of the generator */
	uint32_t symbols;
	uint32_t spread, offset; /* of the permutation of letters */
	size_t steps;
	size_t made; /* keys put so far */
	uint16_t *query, *key;
};

/* Splitmix: a counter and a mixing of its bits. Every state is valid. */
static uint64_t next(struct maker *m)
{
	m->random += 0x9e3779b97f4a7c15u;
	return draw_mix(m->random);
}

static uint32_t draw_below(struct maker *m, uint32_t n)
{
	return (uint32_t)(((next(m) >> 32) * n) >> 32);
}

static uint16_t draw_symbol(struct maker *m)
{
	return (uint16_t)draw_below(m, m->symbols);
}

/* A rank below 2^bits with a density near 1/rank: first a scale, then a place on it. Exact Zipf weights would need a
 * table or a logarithm, and the difference tests nothing. */
static uint32_t draw_rank(struct maker *m, int bits)
{
	uint32_t scale = draw_below(m, (uint32_t)bits + 1);

	return scale == 0 ? 0 : (1u << (scale - 1)) + draw_below(m, 1u << (scale - 1));
}

/* Letter i of a word. Letters are permuted by the seed, so that results do not depend on particular symbol values.
 * Letters below 2^bits are different symbols. */
static uint16_t letter(const struct maker *m, uint32_t i)
{
	return (uint16_t)((i * m->spread + m->offset) % m->symbols);
}

/* Append to the key; what does not fit is dropped, so that a construction need not look at the end. */
static void put(struct maker *m, uint16_t symbol)
{
	if (m->made < m->steps)
		m->key[m->made++] = symbol;
}

static void query_is_key(struct maker *m)
{
	memcpy(m->query, m->key, m->steps * sizeof(*m->key));
}

/* The query asks again and again for the oldest `length` keys. */
static void query_is_oldest(struct maker *m, size_t length)
{
	for (size_t t = 0; t < m->steps; t++)
		m->query[t] = m->key[t % length];
}

/* The query follows the key `lag` steps behind, `noise` percent of it replaced. */
static void query_lags(struct maker *m, size_t lag, uint32_t noise)
{
	for (size_t t = 0; t < m->steps; t++) {
		int replace = draw_below(m, 100) < noise;

		m->query[t] = t < lag || replace ? draw_symbol(m) : m->key[t - lag];
	}
}

static void fill_random_key(struct maker *m)
{
	for (size_t t = 0; t < m->steps; t++)
		put(m, draw_symbol(m));
}

static void fill_uniform(struct maker *m, int unused)
{
	(void)unused;
	fill_random_key(m);
	for (size_t t = 0; t < m->steps; t++)
		m->query[t] = draw_symbol(m);
}

static void fill_sticky(struct maker *m, int lag)
{
	for (size_t t = 0; t < m->steps; t++) {
		int keep = draw_below(m, 2) && t > 0;

		put(m, keep ? m->key[t - 1] : draw_symbol(m));
	}
	query_lags(m, (size_t)lag, 5);
}

static void fill_correlated(struct maker *m, int unused)
{
	(void)unused;
	fill_random_key(m);
	query_lags(m, 0, 10);
}

static void fill_equal(struct maker *m, int unused)
{
	(void)unused;
	fill_random_key(m);
	query_is_key(m);
}

static void fill_shifted(struct maker *m, int most)
{
	size_t lag = 1 + draw_below(m, (uint32_t)most);

	fill_random_key(m);
	query_lags(m, lag, 0);
}

/* A word of different symbols, as long as there are any left, then random ones. */
static void make_word(struct maker *m, uint16_t *word, int length)
{
	for (int i = 0; i < length; i++)
		word[i] = letter(m, (uint32_t)i < m->symbols ? (uint32_t)i : draw_below(m, m->symbols));
}

#define MAX_PERIOD 8

static void fill_periodic(struct maker *m, int period)
{
	uint16_t word[MAX_PERIOD];

	make_word(m, word, period);
	for (size_t t = 0; t < m->steps; t++)
		put(m, word[t % (size_t)period]);
	query_is_key(m);
}

static void fill_period_mix(struct maker *m, int period)
{
	uint16_t word[MAX_PERIOD];

	make_word(m, word, period);
	for (size_t t = 0; t < m->steps; t++) {
		m->query[t] = word[t % (size_t)period];
		put(m, word[t / 2 % (size_t)period]);
	}
}

/* Turn the word over 0 and 1 that lies in key[] into letters, of two shapes each if `alternating`. */
static void dress_word(struct maker *m, int alternating)
{
	for (size_t t = 0; t < m->steps; t++)
		m->key[t] = letter(m, alternating ? 2u * m->key[t] + (t & 1) : m->key[t]);
	query_is_key(m);
}

static void fill_thue_morse(struct maker *m, int alternating)
{
	for (size_t t = 0; t < m->steps; t++)
		put(m, t == 0 ? 0 : m->key[t / 2] ^ (t & 1));
	dress_word(m, alternating);
}

/* The word that 0 -> 01, 1 -> 0 leaves as it is; its own beginning says how it goes on. */
static void fill_fibonacci(struct maker *m, int alternating)
{
	put(m, 0);
	put(m, 1);
	for (size_t i = 1; m->made < m->steps; i++) {
		int one = m->key[i];

		put(m, 0);
		if (!one)
			put(m, 1);
	}
	dress_word(m, alternating);
}

/* The Lyndon words whose length divides the order, in rising order, make a de Bruijn sequence when strung together.
 * The order is the least that gives `steps` different windows. */
static void fill_de_bruijn(struct maker *m, int most)
{
	uint32_t base = m->symbols < (uint32_t)most ? m->symbols : (uint32_t)most;
	uint32_t word[64] = {0};
	size_t order = 1, length = 1;

	for (uint64_t windows = base; windows < m->steps; windows *= base)
		order++;
	while (length > 0) {
		if (order % length == 0) {
			for (size_t i = 0; i < length; i++)
				put(m, letter(m, word[i]));
		}
		for (size_t i = length; i < order; i++)
			word[i] = word[i - length];
		length = order;
		while (length > 0 && word[length - 1] == base - 1)
			length--;
		if (length > 0)
			word[length - 1]++;
	}
	query_is_key(m);
}

static void fill_different(struct maker *m, int unused)
{
	(void)unused;
	for (size_t t = 0; t < m->steps; t++)
		put(m, (uint16_t)(t % m->symbols));
	query_is_key(m);
}

static void fill_halves(struct maker *m, int unused)
{
	size_t half = (m->steps + 1) / 2;

	(void)unused;
	for (size_t t = 0; t < m->steps; t++)
		put(m, t < half ? draw_symbol(m) : m->key[t - half]);
	query_is_key(m);
}

/* Blocks (`tooth`) of decreasing length, each after a separator, so newer contexts share less. The longest is chosen
 * such that the shortest comes last. With letter 0 alone folding shortens a block to one run; with 0 and 1 in turn it
 * does not. */
static void fill_growing(struct maker *m, int letters)
{
	size_t longest = 1, sum = 0;
	size_t oldest;

	while ((sum += longest * (size_t)letters + 1) < m->steps)
		longest++;
	while (m->made < m->steps) {
		for (size_t tooth = longest; tooth > 0 && m->made < m->steps; tooth--) {
			put(m, letter(m, (uint32_t)letters));
			for (size_t i = 0; i < tooth * (size_t)letters; i++)
				put(m, letter(m, (uint32_t)(i % (size_t)letters)));
		}
	}
	oldest = 2 * (longest * (size_t)letters + 1);
	query_is_oldest(m, oldest < m->steps ? oldest : m->steps);
}

enum { SORTED_FALLING = 1, SORTED_DEEP = 2 };

/* Numbered contexts before a common ending, the numbers in order. The plain form is a number of one symbol before
 * one symbol. The deep one has numbers of several digits, the highest next to the ending (contexts are read from
 * their end), before an ending of eight symbols, which no table of short endings sees through; its digits take turns
 * between odd and even symbols so that folding cannot merge them. */
static void fill_sorted(struct maker *m, int form)
{
	static const uint16_t ending[8] = {0, 1, 0, 2, 0, 1, 0, 2};
	int deep = form & SORTED_DEEP;
	uint32_t base = !deep ? m->symbols - 1 : m->symbols < 5 ? 2 : (m->symbols - 1) / 2;
	size_t ends = deep ? sizeof(ending) / sizeof(*ending) : 1;
	size_t digits = 1, oldest;

	for (uint64_t numbers = base; deep && numbers < m->steps; numbers *= base)
		digits++;
	for (uint64_t number = 0; m->made < m->steps; number++) {
		uint64_t rest = number;

		for (size_t i = 0; i < digits; i++, rest /= base) {
			uint32_t digit = (uint32_t)(rest % base);

			if (form & SORTED_FALLING)
				digit = base - 1 - digit;
			put(m, (uint16_t)((1 + (deep ? 2 * digit + (i & 1) : digit)) % m->symbols));
		}
		for (size_t i = 0; i < ends; i++)
			put(m, (uint16_t)(ending[i] % m->symbols));
	}
	oldest = 4 * (digits + ends);
	query_is_oldest(m, oldest < m->steps ? oldest : m->steps);
}

static int bits_of(uint32_t symbols)
{
	int bits = 0;

	while ((1u << bits) < symbols)
		bits++;
	return bits;
}

static void fill_skewed(struct maker *m, int unused)
{
	int bits = bits_of(m->symbols);

	(void)unused;
	for (size_t t = 0; t < m->steps; t++) {
		m->query[t] = letter(m, draw_rank(m, bits));
		put(m, letter(m, draw_rank(m, bits)));
	}
}

/* Each symbol has its own ranking of what follows; a few successors take most of the weight, as in a text. */
static void fill_text_like(struct maker *m, int most_bits)
{
	int bits = bits_of(m->symbols);
	uint64_t chain = next(m);
	uint16_t last = draw_symbol(m);

	if (bits > most_bits)
		bits = most_bits;
	for (size_t t = 0; t < m->steps; t++) {
		last = (uint16_t)(draw_mix(chain + ((uint64_t)last << 32) + draw_rank(m, bits)) % m->symbols);
		put(m, last);
	}
	query_is_key(m);
}

/* Ids with Zipf weights, half of the time copied from an earlier place: stretches of a text come again. */
static void fill_ids(struct maker *m, int stretch)
{
	int bits = bits_of(m->symbols);
	size_t from = 0;
	int copying = 0;

	while (m->made < m->steps) {
		if (draw_below(m, (uint32_t)stretch) == 0) {
			copying = m->made > 0 && draw_below(m, 2);
			from = copying ? (size_t)((next(m) >> 32) * m->made >> 32) : 0;
		}
		put(m, copying ? m->key[from++] : letter(m, draw_rank(m, bits)));
	}
	query_is_key(m);
}

/* clang-format off */
static const struct kind {
	const char *name;
	const char *what;
	void (*fill)(struct maker *m, int parameter);
	int parameter;
} kinds[] = {
	{"uniform", "independent uniform query and key", fill_uniform, 0},
	{"sticky", "keys repeat for some steps; query = key 7 steps ago, 5 % of it replaced", fill_sticky, 7},
	{"correlated", "query and key from the same hidden token, equal in 90 % of the steps", fill_correlated, 0},
	{"periodic", "seven symbols over and over, query = key", fill_periodic, 7},
	{"equal", "uniform key, query = key", fill_equal, 0},
	{"shifted", "uniform key, the query the key of 1 to 16 steps ago", fill_shifted, 16},
	{"period1", "one symbol over and over, query = key", fill_periodic, 1},
	{"period2", "two symbols over and over, query = key", fill_periodic, 2},
	{"period3", "three symbols over and over, query = key", fill_periodic, 3},
	{"period4", "four symbols over and over, query = key", fill_periodic, 4},
	{"period5", "five symbols over and over, query = key", fill_periodic, 5},
	{"period6", "six symbols over and over, query = key", fill_periodic, 6},
	{"period7", "seven symbols over and over, query = key", fill_periodic, 7},
	{"period8", "eight symbols over and over, query = key", fill_periodic, 8},
	{"thue-morse", "the Thue-Morse word over two symbols, query = key", fill_thue_morse, 0},
	{"thue-morse-alternating", "the Thue-Morse word in a form that does not fold", fill_thue_morse, 1},
	{"fibonacci", "the Fibonacci word over two symbols, query = key", fill_fibonacci, 0},
	{"fibonacci-alternating", "the Fibonacci word in a form that does not fold", fill_fibonacci, 1},
	{"de-bruijn", "a de Bruijn sequence over at most four symbols, query = key", fill_de_bruijn, 4},
	{"constant", "one symbol for ever", fill_periodic, 1},
	{"different", "counting up: all symbols are different until the values run out", fill_different, 0},
	{"halves", "a random string and the same again, query = key", fill_halves, 0},
	{"growing", "repeated blocks of decreasing length, each query matches the oldest", fill_growing, 1},
	{"growing-alternating", "the same blocks in a form that does not fold", fill_growing, 2},
	{"sorted", "one symbol after increasing ones, queries match the oldest", fill_sorted, 0},
	{"sorted-falling", "one symbol after decreasing ones, queries match the oldest", fill_sorted, SORTED_FALLING},
	{"sorted-deep", "increasing numbers before a long common suffix, as sorted", fill_sorted, SORTED_DEEP},
	{"period-mix", "query and key of one period, the key at half the speed", fill_period_mix, 5},
	{"skewed", "independent query and key, symbols with Zipf weights", fill_skewed, 0},
	{"text-like", "a Markov chain with skewed transitions, query = key", fill_text_like, 5},
	{"ids", "like token ids of a text: Zipf weights, repeated passages, query = key", fill_ids, 8},
};
/* clang-format on */

int stream_count(void)
{
	return (int)(sizeof(kinds) / sizeof(*kinds));
}

const char *stream_name(int kind)
{
	return kinds[kind].name;
}

const char *stream_what(int kind)
{
	return kinds[kind].what;
}

int stream_find(const char *name)
{
	for (int kind = 0; kind < stream_count(); kind++) {
		if (strcmp(kinds[kind].name, name) == 0)
			return kind;
	}
	return -1;
}

void stream_fill(int kind, int bits, uint64_t seed, size_t steps, uint16_t *query, uint16_t *key)
{
	struct maker m = {
	    .random = draw_mix(seed + 1),
	    .symbols = 1u << bits,
	    .steps = steps,
	    .query = query,
	    .key = key,
	};

	if (steps == 0)
		return;
	m.spread = (uint32_t)(next(&m) >> 40) | 1;
	m.offset = (uint32_t)(next(&m) >> 40);
	kinds[kind].fill(&m, kinds[kind].parameter);
}

/* An odd factor is a permutation of the numbers below a power of two. */
void stream_spread(int bits, size_t steps, uint16_t *symbols)
{
	for (size_t t = 0; t < steps; t++)
		symbols[t] = (uint16_t)(symbols[t] * 40503u & ((1u << bits) - 1));
}
