/*
 * Mixing by weight.
 *
 * Drawing the source of every sample at random gives the right shares in the end. But a batch of sixteen may miss a
 * source, and to number a sample within its source, all samples before it would have to be drawn. Instead samples are
 * dealt out. Of two sources with shares p and 1 - p, the first has had round(n p) of the first n samples, for every n.
 * So n alone tells which source gets the next sample, and the sample's number within that source. More than two
 * sources are divided into two halves, which share like two sources; each half divides its samples in the same way.
 *
 * After n samples each half is off by half a sample at most, and passes no more than that on; so two sources are off
 * by 1/2, four by 1, and each further doubling adds 1/2 at most, whatever n is. Shares are rounded to 2^-32, and
 * everything after that is whole numbers, so that it is the same on every machine.
 */
#include "train/mixing.h"

#include <math.h>

/* round(n * share / 2^32), with share up to 2^32; halves of n keep the product within 64 bits. */
static uint64_t quota(uint64_t n, uint64_t share)
{
	return (n >> 32) * share + (((n & UINT32_MAX) * share + ((uint64_t)1 << 31)) >> 32);
}

void mixing_place(const double *sums, size_t count, uint64_t n, size_t *source, uint64_t *counter)
{
	size_t first = 0, end = count;

	while (end - first > 1) {
		size_t middle = first + (end - first) / 2;
		double part = (sums[middle] - sums[first]) / (sums[end] - sums[first]);
		uint64_t share = (uint64_t)llround(part * 4294967296.0);
		uint64_t before = quota(n, share);
		if (quota(n + 1, share) > before) {
			end = middle;
			n = before;
		} else {
			first = middle;
			n -= before;
		}
	}
	*source = first;
	*counter = n;
}
