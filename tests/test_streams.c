/*
 * The generator of streams: the same symbols everywhere, in range, and of the kind their names promise.
 *
 * The benchmark's numbers are only comparable while its streams stay what they are, so the first four kinds are held to
 * a checksum. A failure there is not necessarily a mistake, but it means that older numbers no longer count.
 */
#include "eval/streams.h"

#include "support_test.h"
#include "support_trial.h"

#define MOST 5000

static uint16_t query[MOST], key[MOST], other_query[MOST], other_key[MOST];

static int compare_symbols(const void *a, const void *b)
{
	return *(const uint16_t *)a - *(const uint16_t *)b;
}

static void fill(const char *name, int bits, uint64_t seed, size_t steps)
{
	int kind = stream_find(name);

	if (kind < 0)
		fail_msg("no stream is named %s", name);
	stream_fill(kind, bits, seed, steps, query, key);
}

TEST(test_names)
{
	assert_true(stream_count() > 0);
	for (int kind = 0; kind < stream_count(); kind++) {
		const char *name = stream_name(kind);

		assert_int_equal(stream_find(name), kind);
		assert_int_equal(name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")], 0);
		assert_true(strlen(stream_what(kind)) > 10);
		assert_null(strchr(stream_what(kind), '\n'));
	}
	assert_int_equal(stream_find("no-such-stream"), -1);
	assert_int_equal(stream_find(""), -1);
	assert_int_equal(stream_find("uniform"), 0);
	assert_int_equal(stream_find("sticky"), 1);
	assert_int_equal(stream_find("correlated"), 2);
	assert_int_equal(stream_find("periodic"), 3);
}

/* Filled to the end and not beyond, below 2^bits, and the same the second time. */
TEST(test_range_and_repetition)
{
	static const size_t steps[] = {1, 2, 3, 4, 5, 8, 17, 100, 1023, MOST - 1};

	for (int kind = 0; kind < stream_count(); kind++) {
		for (int bits = 1; bits <= 16; bits++) {
			for (size_t i = 0; i < COUNT(steps); i++) {
				size_t n = steps[i];

				memset(query, 0xff, sizeof(query));
				memset(key, 0xff, sizeof(key));
				memset(other_query, 0, sizeof(other_query));
				memset(other_key, 0, sizeof(other_key));
				stream_fill(kind, bits, 5, n, query, key);
				stream_fill(kind, bits, 5, n, other_query, other_key);
				assert_memory_equal(query, other_query, n * sizeof(*query));
				assert_memory_equal(key, other_key, n * sizeof(*key));
				assert_int_equal(query[n], 0xffff);
				assert_int_equal(key[n], 0xffff);
				for (size_t t = 0; t < n; t++) {
					if (query[t] >> bits || key[t] >> bits)
						fail_msg("%s, bits %d, %zu steps: %d or %d at step %zu is out of range",
							 stream_name(kind), bits, n, query[t], key[t], t);
				}
			}
		}
	}
}

/* Different values stay different, and use the range they are spread over. */
TEST(test_spread)
{
	for (int bits = 1; bits <= 16; bits++) {
		size_t count = (size_t)1 << (bits < 12 ? bits : 12);
		uint16_t most = 0;

		for (size_t i = 0; i < count; i++)
			query[i] = (uint16_t)i;
		stream_spread(bits, count, query);
		for (size_t i = 0; i < count; i++) {
			assert_int_equal(query[i] >> bits, 0);
			most = query[i] > most ? query[i] : most;
		}
		assert_true(most >> (bits - 1));
		qsort(query, count, sizeof(*query), compare_symbols);
		for (size_t i = 1; i < count; i++)
			assert_true(query[i - 1] < query[i]);
	}
}

TEST(test_seeds_differ)
{
	static const char *const names[] = {"uniform", "sticky", "correlated", "equal",
					    "shifted", "halves", "skewed",     "text-like"};

	for (size_t i = 0; i < COUNT(names); i++) {
		fill(names[i], 8, 1, 100);
		stream_fill(stream_find(names[i]), 8, 2, 100, other_query, other_key);
		assert_memory_not_equal(key, other_key, 100 * sizeof(*key));
		assert_memory_not_equal(query, other_query, 100 * sizeof(*query));
	}
}

TEST(test_checksums)
{
	static const struct {
		const char *name;
		uint64_t want;
	} sums[] = {
	    {"uniform", 0xbd27ff97649e9f5eu},
	    {"sticky", 0x33d01402e18e07ebu},
	    {"correlated", 0x39d00abacc98edau},
	    {"periodic", 0x4d33442e2c82ee24u},
	};

	for (size_t i = 0; i < COUNT(sums); i++) {
		uint64_t sum = 0;

		for (int bits = 4; bits <= 16; bits += 4) {
			fill(sums[i].name, bits, 1, 4096);
			for (size_t t = 0; t < 4096; t++)
				sum = (sum + query[t] + ((uint64_t)key[t] << 16)) * 0x9e3779b97f4a7c15u;
		}
		if (sum != sums[i].want)
			fail_msg("%s: the sum is 0x%llx, want 0x%llx", sums[i].name, (unsigned long long)sum,
				 (unsigned long long)sums[i].want);
	}
}

/* How many of the steps t >= lag have a[t] == b[t - lag]. */
static size_t agreeing(const uint16_t *a, const uint16_t *b, size_t lag, size_t steps)
{
	size_t n = 0;

	for (size_t t = lag; t < steps; t++)
		n += a[t] == b[t - lag];
	return n;
}

TEST(test_benchmark_kinds)
{
	fill("uniform", 8, 3, MOST);
	assert_in_range(agreeing(query, key, 0, MOST), 0, MOST / 100);
	fill("sticky", 8, 3, MOST);
	assert_in_range(agreeing(key, key, 1, MOST), MOST * 45 / 100, MOST * 55 / 100);
	assert_in_range(agreeing(query, key, 7, MOST), MOST * 93 / 100, MOST * 97 / 100);
	fill("correlated", 8, 3, MOST);
	assert_in_range(agreeing(query, key, 0, MOST), MOST * 88 / 100, MOST * 92 / 100);
	fill("periodic", 4, 3, MOST);
	assert_int_equal(agreeing(query, key, 7, MOST), MOST - 7);
	for (size_t lag = 1; lag < 7; lag++)
		assert_int_equal(agreeing(key, key, lag, MOST), 0);
}

TEST(test_periods)
{
	for (size_t period = 1; period <= 8; period++) {
		char name[] = "period0";

		name[6] = (char)('0' + period);
		for (int bits = 1; bits <= 4; bits++) {
			fill(name, bits, 1, 500);
			assert_int_equal(agreeing(key, key, period, 500), 500 - period);
			assert_int_equal(agreeing(query, key, 0, 500), 500);
		}
		/* With four bits the symbols suffice for the period to be the shortest one. */
		for (size_t lag = 1; lag < period; lag++)
			assert_int_equal(agreeing(key, key, lag, 500), 0);
	}
	fill("constant", 4, 1, 500);
	assert_int_equal(agreeing(key, key, 1, 500), 499);
}

TEST(test_copies)
{
	size_t lag = 1;

	fill("equal", 8, 1, MOST);
	assert_int_equal(agreeing(query, key, 0, MOST), MOST);
	fill("shifted", 8, 1, MOST);
	while (lag <= 16 && agreeing(query, key, lag, MOST) != MOST - lag)
		lag++;
	assert_true(lag <= 16);
	fill("halves", 8, 1, 1000);
	assert_int_equal(agreeing(key, key, 500, 1000), 500);
	fill("different", 12, 1, 4096);
	for (size_t t = 1; t < 4096; t++)
		assert_int_equal(key[t], key[t - 1] + 1);
	fill("period-mix", 4, 1, 1000);
	for (size_t t = 0; t < 500; t++)
		assert_int_equal(key[2 * t], query[t]);
}

TEST(test_words)
{
	static const char morse[] = "0110100110010110", fibonacci[] = "0100101001001010010100100101001001";
	static const char *const unfolded[] = {"thue-morse-alternating", "fibonacci-alternating",
					       "growing-alternating",    "sorted",
					       "sorted-falling",         "sorted-deep"};

	fill("thue-morse", 4, 1, 16);
	for (size_t t = 0; t < 16; t++)
		assert_int_equal(key[t] != key[0], morse[t] != '0');
	fill("fibonacci", 4, 1, 34);
	for (size_t t = 0; t < 34; t++)
		assert_int_equal(key[t] != key[0], fibonacci[t] != '0');
	for (size_t i = 0; i < COUNT(unfolded); i++) {
		fill(unfolded[i], 4, 1, MOST);
		if (agreeing(key, key, 1, MOST) != 0)
			fail_msg("%s has equal neighbours", unfolded[i]);
	}
}

/* No window of the order's length comes twice. */
TEST(test_de_bruijn)
{
	static const struct {
		int bits;
		size_t order, steps;
	} cases[] = {{1, 10, 1024}, {2, 5, 1024}, {8, 6, 4096}, {1, 8, 200}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		size_t order = cases[i].order, steps = cases[i].steps;

		fill("de-bruijn", cases[i].bits, 1, steps);
		for (size_t a = 0; a + order <= steps; a++) {
			for (size_t b = a + 1; b + order <= steps; b++) {
				if (memcmp(key + a, key + b, order * sizeof(*key)) == 0)
					fail_msg("bits %d: the windows at %zu and %zu are equal", cases[i].bits, a, b);
			}
		}
	}
}

/* The teeth of the comb get shorter until the end, and the query asks for the first two. */
TEST(test_comb)
{
	size_t last = MOST, tooth = 0;

	fill("growing", 4, 1, 1000);
	for (size_t t = 1; t < 1000; t++) {
		if (key[t] != key[0]) {
			tooth++;
			continue;
		}
		assert_true(last == MOST || tooth + 1 == last);
		last = tooth;
		tooth = 0;
	}
	assert_true(last < 10);
	assert_int_equal(query[0], key[0]);
}

TEST(test_skew)
{
	size_t count[256] = {0}, most = 0;

	fill("skewed", 8, 1, MOST);
	for (size_t t = 0; t < MOST; t++)
		count[key[t]]++;
	for (size_t s = 0; s < 256; s++)
		most = count[s] > most ? count[s] : most;
	assert_true(most > 20 * MOST / 256);
}
