/*
 * Brute force, straight from the definition.
 *
 * At every step it looks at every key run and counts, symbol by symbol, how far the two contexts agree. That is cubic
 * at worst and keeps nothing from one step to the next, on purpose: there is no state that could go wrong, and each
 * line can be held against the text of the definition. No speed-up belongs here.
 */
#include "oracle.h"

#include <stdlib.h>

static size_t wide_runs(const uint32_t *symbols, size_t steps, int fold, size_t *start, uint32_t *symbol)
{
	size_t runs = 0;

	for (size_t t = 0; t < steps; t++) {
		if (fold && t > 0 && symbols[t] == symbols[t - 1])
			continue;
		start[runs] = t;
		symbol[runs] = symbols[t];
		runs++;
	}
	return runs;
}

static void *checked(void *pointer)
{
	if (!pointer)
		abort();
	return pointer;
}

/* The symbols as numbers of one type. */
static uint32_t *widened(const void *symbols, int bits, size_t steps)
{
	uint32_t *wide = checked(malloc((steps + 1) * sizeof(*wide)));

	for (size_t t = 0; t < steps; t++)
		wide[t] = bits > 16 ? ((const uint32_t *)symbols)[t] : ((const uint16_t *)symbols)[t];
	return wide;
}

size_t oracle_runs(const uint16_t *symbols, size_t steps, int fold, size_t *start, uint16_t *symbol)
{
	uint32_t *wide = widened(symbols, 16, steps), *of_runs = checked(malloc((steps + 1) * sizeof(*of_runs)));
	size_t runs = wide_runs(wide, steps, fold, start, of_runs);

	for (size_t run = 0; run < runs; run++)
		symbol[run] = (uint16_t)of_runs[run];
	free(wide);
	free(of_runs);
	return runs;
}

struct answer {
	int32_t tau;
	int32_t length;
};

/* The longest common suffix of query runs 0 .. queries-1 and key runs 0 .. e, cut at max_match (0: not at all). */
static size_t common_suffix(const uint32_t *query, size_t queries, const uint32_t *key, size_t e, size_t max_match)
{
	size_t n = 0;

	while (n < queries && n <= e && query[queries - 1 - n] == key[e - n]) {
		n++;
		if (n == max_match)
			break;
	}
	return n;
}

/* The answer at step t. key_start and key hold the key runs 0 .. keys-1 begun at or before t. */
static struct answer look_up(const rosa_options *options, size_t t, const uint32_t *query, size_t queries,
			     const uint32_t *key, const size_t *key_start, size_t keys)
{
	const size_t delay = options->delay;
	struct answer none = {-1, 0};
	size_t best = 0, winner = 0;

	for (size_t e = 0; e < keys; e++) {
		int has_next = e + 1 < keys;
		int candidate;
		size_t lcs;

		switch (options->policy) {
		case ROSA_READABLE:
			candidate = has_next && key_start[e + 1] + delay < t;
			break;
		case ROSA_INCLUSIVE:
			candidate = has_next && key_start[e + 1] + delay <= t;
			break;
		default:
			candidate = key_start[e] + delay <= t;
			break;
		}
		lcs = common_suffix(query, queries, key, e, options->max_match);
		/* >=: of equally long matches the newest wins. */
		if (candidate && lcs >= 1 && lcs >= best) {
			best = lcs;
			winner = e;
		}
	}
	if (best == 0)
		return none;
	if (options->policy == ROSA_LITERAL && !(winner + 1 < keys && key_start[winner + 1] + delay < t))
		return none;
	return (struct answer){(int32_t)key_start[winner + 1], (int32_t)best};
}

void oracle_route(const rosa_options *options, size_t steps, const void *query, const void *key, int32_t *tau,
		  int32_t *length, int32_t *flips)
{
	uint32_t *wide_query = widened(query, options->bits, steps), *wide_key = widened(key, options->bits, steps);
	size_t *query_start = checked(malloc((steps + 1) * sizeof(*query_start)));
	size_t *key_start = checked(malloc((steps + 1) * sizeof(*key_start)));
	uint32_t *query_run = checked(malloc((steps + 1) * sizeof(*query_run)));
	uint32_t *key_run = checked(malloc((steps + 1) * sizeof(*key_run)));
	size_t all_queries = wide_runs(wide_query, steps, options->fold, query_start, query_run);
	size_t all_keys = wide_runs(wide_key, steps, options->fold, key_start, key_run);
	size_t bits = (size_t)options->bits;
	size_t queries = 0, keys = 0;

	for (size_t t = 0; t < steps; t++) {
		int first_of_run = queries < all_queries && query_start[queries] == t;
		struct answer answer;

		if (first_of_run)
			queries++;
		if (keys < all_keys && key_start[keys] == t)
			keys++;
		answer = look_up(options, t, query_run, queries, key_run, key_start, keys);
		if (tau)
			tau[t] = answer.tau;
		if (length)
			length[t] = answer.length;
		for (size_t j = 0; flips && j < bits; j++) {
			uint32_t *last = &query_run[queries - 1];

			if (!first_of_run) {
				flips[t * bits + j] = flips[(t - 1) * bits + j];
				continue;
			}
			*last ^= UINT32_C(1) << j;
			flips[t * bits + j] = look_up(options, t, query_run, queries, key_run, key_start, keys).tau;
			*last ^= UINT32_C(1) << j;
		}
	}
	free(wide_query);
	free(wide_key);
	free(query_start);
	free(key_start);
	free(query_run);
	free(key_run);
}

void oracle_chain(const rosa_options *options, int links, size_t steps, const void *symbols, int32_t *places,
		  int32_t *lengths)
{
	rosa_options undelayed = *options;

	undelayed.delay = 0;
	oracle_route(options, steps, symbols, symbols, places, lengths, NULL);
	for (size_t i = 1; i < (size_t)links; i++) {
		for (size_t t = 0; t < steps; t++) {
			const int32_t before = places[(i - 1) * steps + t], shared = lengths[(i - 1) * steps + t];
			int32_t *tau = checked(malloc((steps + 1) * sizeof(*tau)));
			int32_t *length = checked(malloc((steps + 1) * sizeof(*length)));

			places[i * steps + t] = -1;
			lengths[i * steps + t] = 0;
			if (before > 0) {
				/* the text as it was when `before` came */
				oracle_route(&undelayed, (size_t)before, symbols, symbols, tau, length, NULL);
				places[i * steps + t] = tau[before - 1];
				if (tau[before - 1] >= 0)
					lengths[i * steps + t] =
					    length[before - 1] < shared ? length[before - 1] : shared;
			}
			free(tau);
			free(length);
		}
	}
}
