/*
 * The next token.
 *
 * top_k, top_p and min_p each keep a beginning of the list of tokens, likeliest first. So the list never has to be
 * sorted: a selection as in quicksort finds the end of that beginning, looking at one side of each cut only, in time
 * linear in the vocabulary. top_k and top_p are the same selection with other measures: a token counts 1, or its
 * weight.
 *
 * Weights are exp((logit - greatest) / temperature), in double. The exponential is written out here, since those of C
 * libraries differ in the last bit, and a seed should give the same text on every machine.
 *
 * The generator has no state: a draw is a function of the seed and of its number, so a session keeps one number to
 * continue.
 */
#include "model/sampler.h"

#include "base/draw.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that count as seen: which ones, how often, and in which order they will be forgotten. */
struct seen {
	uint32_t *ring; /* the last tokens; NULL: none is ever forgotten */
	size_t room, next, used;
	uint32_t *times; /* [vocabulary]: how often a token stands in the ring */
	uint32_t *place; /* [vocabulary]: of a token that was seen, in the list */
	uint32_t *list;  /* [vocabulary]: each token seen, once */
	size_t count;
};

struct sampler {
	struct sampler_options options;
	size_t vocabulary;
	uint64_t draws;
	struct seen seen; /* all NULL where there is no penalty */
	uint32_t *ids;    /* [vocabulary]: candidates */
	double *weights;  /* [vocabulary]: by id */
};

/* ---------------------------------------------------------------------------------------------------- checks -- */

static rosa_status check(const struct sampler_options *options, size_t vocabulary, rosa_error *err)
{
	/* Written so that NaN fails as well. */
	if (!(options->temperature >= 0 && options->temperature < INFINITY))
		return rosa_fail(err, ROSA_EINVAL, "temperature is %g; give a number from 0 (the likeliest token) up",
				 (double)options->temperature);
	if (!(options->top_p >= 0 && options->top_p <= 1))
		return rosa_fail(err, ROSA_EINVAL, "top_p is %g; give a share from 0 to 1 (all)",
				 (double)options->top_p);
	if (!(options->min_p >= 0 && options->min_p <= 1))
		return rosa_fail(err, ROSA_EINVAL, "min_p is %g; give a share from 0 (all) to 1",
				 (double)options->min_p);
	if (!(options->repetition > 0 && options->repetition < INFINITY))
		return rosa_fail(err, ROSA_EINVAL, "repetition penalty is %g; give a number above 0 (1: none)",
				 (double)options->repetition);
	if (options->repeat_last > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "repeat_last is %zu; give at most %zu, or 0 for all tokens",
				 options->repeat_last, ROSA_MAX_STEPS);
	if (vocabulary == 0 || vocabulary > UINT32_MAX)
		return rosa_fail(err, ROSA_EINVAL, "a vocabulary of %zu tokens cannot be sampled from", vocabulary);
	return ROSA_OK;
}

static bool seen_new(struct seen *seen, size_t room, size_t vocabulary)
{
	seen->room = room;
	seen->ring = room ? calloc(room, sizeof(uint32_t)) : NULL;
	seen->times = calloc(vocabulary, sizeof(uint32_t));
	seen->place = calloc(vocabulary, sizeof(uint32_t));
	seen->list = calloc(vocabulary, sizeof(uint32_t));
	return (seen->ring || !room) && seen->times && seen->place && seen->list;
}

rosa_status sampler_new(const struct sampler_options *options, size_t vocabulary, sampler **made, rosa_error *err)
{
	rosa_status status = check(options, vocabulary, err);
	sampler *sampler;

	*made = NULL;
	if (status != ROSA_OK)
		return status;
	sampler = calloc(1, sizeof(*sampler));
	if (sampler) {
		sampler->options = *options;
		sampler->vocabulary = vocabulary;
		sampler->ids = calloc(vocabulary, sizeof(*sampler->ids));
		sampler->weights = calloc(vocabulary, sizeof(*sampler->weights));
	}
	if (!sampler || !sampler->ids || !sampler->weights ||
	    (options->repetition != 1 && !seen_new(&sampler->seen, options->repeat_last, vocabulary))) {
		sampler_free(sampler);
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory to choose among %zu tokens, remembering %zu",
				 vocabulary, options->repeat_last);
	}
	*made = sampler;
	return ROSA_OK;
}

void sampler_free(sampler *sampler)
{
	if (!sampler)
		return;
	free(sampler->seen.ring);
	free(sampler->seen.times);
	free(sampler->seen.place);
	free(sampler->seen.list);
	free(sampler->ids);
	free(sampler->weights);
	free(sampler);
}

uint64_t sampler_draws(const sampler *sampler)
{
	return sampler->draws;
}

void sampler_set_draws(sampler *sampler, uint64_t draws)
{
	sampler->draws = draws;
}

/* --------------------------------------------------------------------------------------------------- repetition -- */

static void seen_add(struct seen *seen, uint32_t token)
{
	if (seen->times[token] == 0) {
		seen->place[token] = (uint32_t)seen->count;
		seen->list[seen->count++] = token;
	}
	if (seen->ring || seen->times[token] == 0) /* without a ring the count never goes down, so 1 is enough */
		seen->times[token]++;
}

static void seen_remove(struct seen *seen, uint32_t token)
{
	if (--seen->times[token] > 0)
		return;
	uint32_t last = seen->list[--seen->count];
	seen->list[seen->place[token]] = last;
	seen->place[last] = seen->place[token];
}

void sampler_saw(sampler *sampler, uint32_t token)
{
	struct seen *seen = &sampler->seen;

	if (!seen->times || token >= sampler->vocabulary)
		return;
	if (seen->ring) {
		if (seen->used == seen->room)
			seen_remove(seen, seen->ring[seen->next]);
		else
			seen->used++;
		seen->ring[seen->next] = token;
		seen->next = (seen->next + 1) % seen->room;
	}
	seen_add(seen, token);
}

static void penalise(const sampler *sampler, float *logits)
{
	const struct seen *seen = &sampler->seen;
	float penalty = sampler->options.repetition;

	for (size_t i = 0; i < seen->count; i++) {
		float *logit = &logits[seen->list[i]];
		*logit = *logit > 0 ? *logit / penalty : *logit * penalty;
	}
}

/* ---------------------------------------------------------------------------------------------------- selection -- */

/* Whether a comes before b in the list, likeliest first. Neither is NaN. */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
	return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

static void swap(uint32_t *ids, size_t i, size_t j)
{
	uint32_t id = ids[i];

	ids[i] = ids[j];
	ids[j] = id;
}

/* The median of three candidates, as a guess at the median of all. */
static size_t pivot(const float *logits, const uint32_t *ids, size_t first, size_t end)
{
	size_t a = first, b = first + (end - first) / 2, c = end - 1;

	if (before(logits, ids[b], ids[a])) {
		size_t t = a;
		a = b;
		b = t;
	}
	if (before(logits, ids[c], ids[b]))
		b = before(logits, ids[c], ids[a]) ? a : c;
	return b;
}

/* Puts those before the pivot in front of it, and returns its place. No two candidates are equal. */
static size_t part(const float *logits, uint32_t *ids, size_t first, size_t end)
{
	size_t place = first;

	swap(ids, pivot(logits, ids, first, end), end - 1);
	for (size_t i = first; i + 1 < end; i++) {
		if (before(logits, ids[i], ids[end - 1]))
			swap(ids, i, place++);
	}
	swap(ids, place, end - 1);
	return place;
}

/* Moves the likeliest candidates to the front, the fewest whose measure reaches `enough`, at least one. The measure of
 * a candidate is its weight, or 1 where `weights` is NULL. Returns their number. */
static size_t select_front(const float *logits, const double *weights, uint32_t *ids, size_t count, double enough)
{
	size_t first = 0, end = count;

	/* The end of the front lies in first + 1 .. end; `enough` is what those from `first` on must still bring. */
	while (end - first > 1) {
		size_t place = part(logits, ids, first, end);
		double sum = 0;
		for (size_t i = first; i < place; i++)
			sum += weights ? weights[ids[i]] : 1;
		double last = weights ? weights[ids[place]] : 1;
		if (place > first && sum >= enough) {
			end = place;
		} else if (sum + last >= enough) {
			return place + 1;
		} else if (place + 1 == end) {
			return end; /* the sum of all falls short of it by rounding */
		} else {
			enough -= sum + last;
			first = place + 1;
		}
	}
	return end;
}

/* ------------------------------------------------------------------------------------------------------ weights -- */

/* e^x for x <= 0, to about 1e-13 of itself, the same everywhere. */
static double exponential(double x)
{
	const double log2e = 1.4426950408889634, ln2_high = 0.693145751953125, ln2_low = 1.42860682030941723212e-6;
	static const double inverse[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
					 1.0 / 720,      1.0 / 120,     1.0 / 24,     1.0 / 6,     0.5};

	if (!(x > -700))
		return 0;
	int64_t whole = (int64_t)(x * log2e - 0.5);
	double rest = x - (double)whole * ln2_high - (double)whole * ln2_low, sum = 0;
	for (size_t i = 0; i < sizeof(inverse) / sizeof(inverse[0]); i++)
		sum = sum * rest + inverse[i];
	sum = (sum * rest + 1) * rest + 1;
	union {
		uint64_t bits;
		double number;
	} power = {(uint64_t)(whole + 1023) << 52};
	return sum * power.number;
}

/* Those of the candidates, relative to the greatest; returns their sum. */
static double weigh(sampler *sampler, const float *logits, size_t count, float greatest)
{
	double sum = 0, inverse = 1.0 / (double)sampler->options.temperature;

	for (size_t i = 0; i < count; i++) {
		uint32_t id = sampler->ids[i];
		/* An infinite logit minus itself would be NaN. */
		double weight =
		    logits[id] == greatest ? 1 : exponential(((double)logits[id] - (double)greatest) * inverse);
		sampler->weights[id] = weight;
		sum += weight;
	}
	return sum;
}

/* Drops candidates below a weight, keeping the order of the others; returns how many stay. */
static size_t drop_below(sampler *sampler, size_t count, double least)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t id = sampler->ids[i];
		sampler->ids[kept] = id;
		kept += sampler->weights[id] >= least;
	}
	return kept;
}

/* ------------------------------------------------------------------------------------------------------- choice -- */

/* The likeliest token, 0 if none is a number. */
static uint32_t find_likeliest(const float *logits, size_t vocabulary)
{
	size_t best = 0;

	while (best < vocabulary && isnan(logits[best]))
		best++;
	if (best == vocabulary)
		return 0;
	for (size_t id = best + 1; id < vocabulary; id++)
		best = logits[id] > logits[best] ? id : best;
	return (uint32_t)best;
}

/* Lists the tokens whose logit is no less, in the order of their ids; NaN is no number and never listed. */
static size_t list_from(sampler *sampler, const float *logits, float least)
{
	size_t count = 0;

	for (size_t id = 0; id < sampler->vocabulary; id++) {
		sampler->ids[count] = (uint32_t)id;
		count += logits[id] >= least;
	}
	return count;
}

/* A logit that at least `count` tokens reach: the least of the greatest ones of so many blocks. */
static float reached_by(const float *logits, size_t vocabulary, size_t count)
{
	float least = INFINITY;

	for (size_t block = 0; block < count; block++) {
		float greatest = -INFINITY;
		for (size_t id = block * vocabulary / count; id < (block + 1) * vocabulary / count; id++)
			greatest = logits[id] > greatest ? logits[id] : greatest;
		least = greatest < least ? greatest : least;
	}
	return least;
}

/* A selection changes the order of the first `count` candidates: this lists the same ones by id again. */
static size_t list_again(sampler *sampler, const float *logits, size_t count)
{
	uint32_t last = sampler->ids[0];
	size_t kept = 0;

	for (size_t i = 1; i < count; i++)
		last = before(logits, last, sampler->ids[i]) ? sampler->ids[i] : last;
	size_t listed = list_from(sampler, logits, logits[last]);
	for (size_t i = 0; i < listed; i++) {
		uint32_t id = sampler->ids[i];
		sampler->ids[kept] = id;
		kept += logits[id] > logits[last] || id <= last; /* of those as likely as the last, the lowest ids */
	}
	return kept;
}

static size_t keep_count(sampler *sampler, const float *logits, size_t most)
{
	size_t count = list_from(sampler, logits, reached_by(logits, sampler->vocabulary, most));

	if (count <= most)
		return count;
	return list_again(sampler, logits, select_front(logits, NULL, sampler->ids, count, (double)most));
}

static size_t keep_share(sampler *sampler, const float *logits, size_t count, double share, double sum)
{
	/* All that goes at first weighs no more than half of what is left out in the end, and it is most tokens. */
	count = drop_below(sampler, count, (1 - share) * sum / (double)count * 0.5);
	return list_again(sampler, logits, select_front(logits, sampler->weights, sampler->ids, count, share * sum));
}

/* Lists the tokens that may be drawn, by id, with their weights; returns their number. */
static size_t filter(sampler *sampler, const float *logits, uint32_t likeliest)
{
	const struct sampler_options *options = &sampler->options;
	size_t count = options->top_k > 0 && options->top_k < sampler->vocabulary
			   ? keep_count(sampler, logits, options->top_k)
			   : list_from(sampler, logits, -INFINITY);
	double sum = weigh(sampler, logits, count, logits[likeliest]);

	if (options->top_p < 1)
		count = keep_share(sampler, logits, count, (double)options->top_p, sum);
	return options->min_p > 0 ? drop_below(sampler, count, (double)options->min_p) : count;
}

/* Candidates share out 0 .. 1 in the order of their ids, each as much as its weight; the draw says whose it is. */
static uint32_t draw_one(sampler *sampler, size_t count, uint32_t likeliest)
{
	double sum = 0, share = (double)(draw_long(sampler->options.seed, 0, sampler->draws++) >> 11) * 0x1p-53;

	for (size_t i = 0; i < count; i++)
		sum += sampler->weights[sampler->ids[i]];
	double left = share * sum;
	for (size_t i = 0; i < count; i++) {
		left -= sampler->weights[sampler->ids[i]];
		if (left < 0)
			return sampler->ids[i];
	}
	return likeliest; /* the shares add up to less than 1 by rounding */
}

uint32_t sampler_choose(sampler *sampler, float *logits)
{
	penalise(sampler, logits);
	uint32_t likeliest = find_likeliest(logits, sampler->vocabulary);
	if (sampler->options.temperature == 0 || isnan(logits[likeliest]))
		return likeliest;
	return draw_one(sampler, filter(sampler, logits, likeliest), likeliest);
}
