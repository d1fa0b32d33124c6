/*
 * Between float32 and bfloat16, number by number and row by row.
 *
 * A bfloat16 is the upper half of a float32, so widening is a shift. Narrowing rounds to nearest, ties to even, by
 * adding just under half of a unit and the last bit that is kept. A NaN must not be rounded: the carry could turn it
 * into infinity or zero. It keeps its sign and upper half and is made quiet. No branch depends on the number, so that
 * compilers make vectors of the loops.
 */
#pragma once

#include "rosatune.h"

#include <string.h>

static inline float bfloat16_to_float(uint16_t x)
{
	const uint32_t bits = (uint32_t)x << 16;
	float wide;

	memcpy(&wide, &bits, sizeof(wide));
	return wide;
}

static inline uint16_t float_to_bfloat16(float x)
{
	uint32_t bits, rounded, quiet;

	memcpy(&bits, &x, sizeof(bits));
	rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
	quiet = bits >> 16 | 0x40;
	return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* Bytes per activation. */
static inline size_t activation_size(rosa_dtype dtype)
{
	return dtype == ROSA_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
}

/* Read `count` activations, from element `first` on. */
static inline void activations_load(float *to, rosa_dtype dtype, const void *from, size_t first, size_t count)
{
	if (dtype == ROSA_FLOAT32) {
		memcpy(to, (const float *)from + first, count * sizeof(*to));
	} else {
		const uint16_t *narrow = (const uint16_t *)from + first;

		for (size_t i = 0; i < count; i++)
			to[i] = bfloat16_to_float(narrow[i]);
	}
}

/* Write them. */
static inline void activations_store(void *to, rosa_dtype dtype, const float *from, size_t first, size_t count)
{
	if (dtype == ROSA_FLOAT32) {
		memcpy((float *)to + first, from, count * sizeof(*from));
	} else {
		uint16_t *narrow = (uint16_t *)to + first;

		for (size_t i = 0; i < count; i++)
			narrow[i] = float_to_bfloat16(from[i]);
	}
}
