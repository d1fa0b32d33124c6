/*
 * Sums of products in double precision, always in the same order.
 *
 * Number i goes to lane i % LANES; the lanes are then added in halves. A compiler may not reorder additions, so the
 * lanes of its vectors are written out. The mean square of a norm is summed in double precision because the frameworks
 * that models come from sum it in float32, each in its own order: the exact sum is near all of them.
 */
#pragma once

#include <math.h>
#include <stddef.h>

#define LANES ((size_t)16)

static inline double lanes_sum(double *lane)
{
	for (size_t half = LANES / 2; half; half /= 2)
		for (size_t j = 0; j < half; j++)
			lane[j] += lane[j + half];
	return lane[0];
}

/* RMSNorm's factor of a row, forward and backward: 1 / sqrt(mean(x^2) + eps). */
static inline float rms_scale(double square_sum, size_t width, float eps)
{
	return (float)(1 / sqrt(square_sum / (double)width + (double)eps));
}
