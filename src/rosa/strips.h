/*
 * Strips: the channels of a few neighbouring routes of a batch entry, copied out route by route.
 *
 * Activations are stored step by step, all channels side by side, but routes are independent and processed one at a
 * time, with steps read in any order. So their channels are first copied, as float32, into one strip per route with one
 * row per step. A row is padded with zeros to a multiple of four, so that products of rows need no end cases, and a
 * strip has a row of zeros before its first: that of destination -1.
 *
 * Several routes are copied at once because the rows of activations are often a power of two apart. Such addresses
 * compete for the same few cache sets, so a cache line must be used completely when it is loaded: a line of 64 bytes
 * loaded for one route of 4 channels would be evicted before the next route. For the same reason strips are a cache
 * line more than a power of two apart.
 */
#pragma once

#include "backend/convert.h"
#include "backend/sigmoid.h"
#include "base/compiler.h"

#include "rosatune.h"

#define STRIPS_BYTES 256 /* of a row of activations, copied at once */
#define STRIPS_AHEAD 16  /* rows prefetched: hardware prefetchers stop at page borders */

/* Where the channels of the routes are. */
struct strips {
	rosa_dtype dtype;
	unsigned bits;
	size_t steps, channels; /* of all routes */
	size_t first;           /* element of the first route's first channel at step 0 */
	size_t routes;
};

/* Numbers from one row to the next. */
static inline size_t strips_stride(unsigned bits)
{
	return (bits + 3u) & ~(size_t)3;
}

/* Numbers from one strip to the next. */
static inline size_t strips_spacing(size_t steps, unsigned bits)
{
	return (steps + 1) * strips_stride(bits) + 16;
}

/* Routes that are copied together. */
static inline size_t strips_group(rosa_dtype dtype, unsigned bits)
{
	size_t bytes = activation_size(dtype) * bits;

	return bytes < STRIPS_BYTES ? STRIPS_BYTES / bytes : 1;
}

/* The row of step 0 of a route of the group. */
static inline float *strips_at(float *base, const struct strips *strips, size_t route)
{
	return base + route * strips_spacing(strips->steps, strips->bits) + strips_stride(strips->bits);
}

/* Prefetch the row STRIPS_AHEAD steps ahead. */
static inline void strips_prefetch(const void *from, const struct strips *strips, size_t t)
{
	const size_t at = strips->first + (t + STRIPS_AHEAD) * strips->channels, size = activation_size(strips->dtype);

	if (t + STRIPS_AHEAD < strips->steps)
		for (size_t i = 0; i < strips->routes * strips->bits * size; i += 64)
			PREFETCH((const char *)from + at * size + i);
}

/* Inlined with `bits` a constant for the usual widths. */
static inline void strips_load_bits(float *base, const void *from, const struct strips *strips, unsigned bits)
{
	const size_t stride = strips_stride(bits), spacing = strips_spacing(strips->steps, bits);

	for (size_t t = 0; t < strips->steps; t++) {
		const size_t at = strips->first + t * strips->channels;
		float *to = base + (t + 1) * stride;

		strips_prefetch(from, strips, t);
		for (size_t r = 0; r < strips->routes; r++)
			for (unsigned j = 0; j < bits; j++)
				to[r * spacing + j] =
				    strips->dtype == ROSA_FLOAT32
					? ((const float *)from)[at + r * bits + j]
					: bfloat16_to_float(((const uint16_t *)from)[at + r * bits + j]);
	}
}

static inline void strips_store_bits(void *to, float *base, const struct strips *strips, unsigned bits)
{
	const size_t stride = strips_stride(bits), spacing = strips_spacing(strips->steps, bits);

	for (size_t t = 0; t < strips->steps; t++) {
		const size_t at = strips->first + t * strips->channels;
		const float *from = base + (t + 1) * stride;

		strips_prefetch(to, strips, t);
		for (size_t r = 0; r < strips->routes; r++)
			for (unsigned j = 0; j < bits; j++) {
				if (strips->dtype == ROSA_FLOAT32)
					((float *)to)[at + r * bits + j] = from[r * spacing + j];
				else
					((uint16_t *)to)[at + r * bits + j] = float_to_bfloat16(from[r * spacing + j]);
			}
	}
}

#define STRIPS_FOR_BITS(CALL, TO, FROM, STRIPS)                                                                        \
	do {                                                                                                           \
		if ((STRIPS)->bits == 4)                                                                               \
			CALL(TO, FROM, STRIPS, 4);                                                                     \
		else if ((STRIPS)->bits == 8)                                                                          \
			CALL(TO, FROM, STRIPS, 8);                                                                     \
		else if ((STRIPS)->bits == 16)                                                                         \
			CALL(TO, FROM, STRIPS, 16);                                                                    \
		else                                                                                                   \
			CALL(TO, FROM, STRIPS, (STRIPS)->bits);                                                        \
	} while (0)

/* Copy the routes out of rows of activations. */
static inline void strips_load(float *base, const void *from, const struct strips *strips)
{
	const size_t stride = strips_stride(strips->bits), spacing = strips_spacing(strips->steps, strips->bits);

	if (stride == strips->bits)
		for (size_t r = 0; r < strips->routes; r++)
			memset(base + r * spacing, 0, stride * sizeof(*base));
	else
		memset(base, 0, strips->routes * spacing * sizeof(*base));
	STRIPS_FOR_BITS(strips_load_bits, base, from, strips);
}

/* And back. */
static inline void strips_store(void *to, float *base, const struct strips *strips)
{
	STRIPS_FOR_BITS(strips_store_bits, to, base, strips);
}

/* theta = dL/dy (e1 - e0): multiply each number of a strip by the factor of its channel. */
static inline void strip_scale(float *rows, const float *factor, size_t steps, unsigned bits)
{
	const size_t stride = strips_stride(bits);

	for (size_t t = 0; t < steps; t++)
		for (unsigned j = 0; j < bits; j++)
			rows[t * stride + j] *= factor[j];
}

/* P = sigmoid(v) */
static inline void strip_sigmoid(float *x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		x[i] = sigmoid(x[i]);
}

/* gradient <- s'(x) gradient */
static inline void strip_chain(float *restrict gradient, const float *restrict x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		gradient[i] *= sigmoid_slope(x[i]);
}
