/*
 * Counting what adapters do.
 *
 * Accuracy alone does not tell why a network fails: whether nothing right is found, or what is found is not read out.
 * So three questions are asked of every route. Does it read the right place? Are there still different symbols, or have
 * they collapsed into a few? And do queries and keys have the same symbols, be it at the same step (how an aligned
 * start begins) or between a query and its key, which is what counts where keys have two names?
 */
#include "train/mqar_watch.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static size_t words_of(int bits)
{
	return bits > 6 ? (size_t)1 << (bits - 6) : 1;
}

rosa_status mqar_watch_new(struct mqar_watch *watch, size_t layers, size_t width, int bits, rosa_error *err)
{
	*watch = (struct mqar_watch){.layers = layers, .routes = width / (size_t)bits, .bits = bits};
	watch->tallies = calloc(layers, sizeof(*watch->tallies));
	for (size_t i = 0; watch->tallies && i < layers; i++) {
		for (int j = 0; j < 2; j++) {
			uint64_t *seen = calloc(watch->routes * words_of(bits), sizeof(*seen));

			if (!seen) {
				mqar_watch_free(watch);
				break;
			}
			watch->tallies[i].seen[j] = seen;
		}
	}
	return watch->tallies ? ROSA_OK
			      : rosa_fail(err, ROSA_ENOMEM, "no memory to count the symbols of %d bits", bits);
}

void mqar_watch_free(struct mqar_watch *watch)
{
	for (size_t i = 0; watch->tallies && i < watch->layers; i++)
		for (int j = 0; j < 2; j++)
			free(watch->tallies[i].seen[j]);
	free(watch->tallies);
	*watch = (struct mqar_watch){0};
}

void mqar_watch_clear(struct mqar_watch *watch)
{
	for (size_t i = 0; i < watch->layers; i++) {
		struct mqar_tally *tally = &watch->tallies[i];
		uint64_t *seen[2] = {tally->seen[0], tally->seen[1]};

		*tally = (struct mqar_tally){.seen = {seen[0], seen[1]}};
		for (int j = 0; j < 2; j++)
			memset(seen[j], 0, watch->routes * words_of(watch->bits) * sizeof(*seen[j]));
	}
}

static void tally_places(struct mqar_tally *tally, size_t steps, const int32_t *answer, const int32_t *tau)
{
	for (size_t t = 0; t < steps; t++) {
		tally->asked += answer[t] > 0;
		tally->found += answer[t] > 0 && tau[t] >= 0;
		tally->right += answer[t] > 0 && tau[t] == answer[t];
	}
	tally->steps += steps;
}

static void tally_symbols(struct mqar_tally *tally, size_t steps, const int32_t *answer, const uint16_t *query,
			  const uint16_t *key, uint64_t *queries, uint64_t *keys)
{
	for (size_t t = 0; t < steps; t++) {
		queries[query[t] / 64] |= UINT64_C(1) << query[t] % 64;
		keys[key[t] / 64] |= UINT64_C(1) << key[t] % 64;
		tally->agree += query[t] == key[t];
		tally->meets += answer[t] > 0 && query[t] == key[answer[t] - 1];
	}
}

void mqar_watch_batch(void *context, const struct network_view *view)
{
	struct mqar_watch *watch = context;
	struct mqar_tally *tally = &watch->tallies[view->layer];
	const size_t steps = view->steps, words = words_of(watch->bits);

	for (size_t row = 0; row < view->count * view->routes; row++) {
		const int32_t *answer = watch->answer + row / view->routes * steps;
		const size_t route = row % view->routes;

		tally_places(tally, steps, answer, view->tau + row * steps);
		if (view->query)
			tally_symbols(tally, steps, answer, view->query + row * steps, view->key + row * steps,
				      tally->seen[0] + route * words, tally->seen[1] + route * words);
	}
}

/* Different symbols, the mean over routes. A model narrower than a symbol has no routes; it can use `tokens` alone. */
static double symbols(const struct mqar_watch *watch, const uint64_t *seen)
{
	uint64_t count = 0;

	for (size_t i = 0; i < watch->routes * words_of(watch->bits); i++)
		count += (uint64_t)__builtin_popcountll(seen[i]);
	return watch->routes ? (double)count / (double)watch->routes : 0;
}

void mqar_watch_layer(const struct mqar_watch *watch, size_t layer, struct mqar_layer *report)
{
	const struct mqar_tally *tally = &watch->tallies[layer];
	const double asked = tally->asked ? (double)tally->asked : 1;

	*report = (struct mqar_layer){.adapted = tally->steps > 0};
	if (!report->adapted)
		return;
	report->right = (double)tally->right / asked;
	report->meets = (double)tally->meets / asked;
	report->found = (double)tally->found / asked;
	report->agree = (double)tally->agree / (double)tally->steps;
	report->queries = symbols(watch, tally->seen[0]);
	report->keys = symbols(watch, tally->seen[1]);
}
