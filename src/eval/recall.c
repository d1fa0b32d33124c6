/* Sums and means of recall.h. */
#include "eval/recall.h"

#include <math.h>

const char *const recall_names[] = {"global", "window", "adapter", "off", "random", "pointer", "adapter+pointer", NULL};

static unsigned bin_of(uint32_t distance)
{
	unsigned bin = 0;

	while (distance >>= 1)
		bin++;
	return bin;
}

void recall_add(struct recall_sums *sums, const double *losses, const uint32_t *distance, size_t first, size_t count,
		size_t window)
{
	for (size_t t = first; t < count; t++) {
		const bool far = distance[t] && distance[t] >= window;

		*(far ? &sums->far : &sums->rest) += losses[t];
		*(far ? &sums->far_count : &sums->rest_count) += 1;
		if (distance[t]) {
			sums->by_distance[bin_of(distance[t])] += losses[t];
			sums->distance_count[bin_of(distance[t])] += 1;
		}
	}
}

void recall_join(struct recall_sums *sums, const struct recall_sums *more)
{
	sums->far += more->far;
	sums->rest += more->rest;
	sums->far_count += more->far_count;
	sums->rest_count += more->rest_count;
	for (unsigned bin = 0; bin < RECALL_BINS; bin++) {
		sums->by_distance[bin] += more->by_distance[bin];
		sums->distance_count[bin] += more->distance_count[bin];
	}
}

static double mean(double sum, uint64_t count)
{
	return count ? sum / (double)count : NAN;
}

struct recall_means recall_means(const struct recall_sums *sums)
{
	return (struct recall_means){
	    .ppl = exp(mean(sums->far + sums->rest, sums->far_count + sums->rest_count)),
	    .far = mean(sums->far, sums->far_count),
	    .rest = mean(sums->rest, sums->rest_count),
	};
}

double recall_error(const struct recall_sums *books, size_t count, bool far)
{
	struct recall_sums all = {0};
	double squares = 0;
	size_t used = 0;

	for (size_t i = 0; i < count; i++)
		recall_join(&all, &books[i]);
	const double tokens = (double)(all.far_count + (far ? 0 : all.rest_count));
	const double whole = (all.far + (far ? 0 : all.rest)) / tokens;
	for (size_t i = 0; i < count; i++) {
		const double here = (double)(books[i].far_count + (far ? 0 : books[i].rest_count));
		const double excess = books[i].far + (far ? 0 : books[i].rest) - whole * here;

		used += here > 0;
		squares += excess * excess;
	}
	return used < 2 ? NAN : sqrt(squares * (double)used / (double)(used - 1)) / tokens;
}
