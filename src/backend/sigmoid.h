/*
 * The sigmoid and its slope, for rows of numbers.
 *
 * The gradients need one of the two for every channel of q, k and v, and expf of the C library, called per number,
 * would take as long as retrieval. This one has no branch and no call, so that compilers vectorise it (gcc only with
 * -fno-trapping-math). Its error is within 5 units in the last place.
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* e^-|x|, at least the smallest normal number; NaN stays NaN. */
static inline float exp_minus(float x)
{
	float a = x < 0 ? x : -x, rounded, rest, power;
	int32_t n, bits;

	a = a > -87.0f ? a : -87.0f; /* a NaN must not reach the conversion to an integer */
	/* a = n ln 2 + rest, |rest| <= ln 2 / 2; the conversion rounds towards zero, and a is not positive */
	n = (int32_t)(a * 1.44269504f - 0.5f);
	rounded = (float)n;
	rest = (a - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
	power = 1.9841270e-4f;
	power = power * rest + 1.3888889e-3f;
	power = power * rest + 8.3333333e-3f;
	power = power * rest + 4.1666667e-2f;
	power = power * rest + 1.6666667e-1f;
	power = power * rest + 0.5f;
	power = power * rest + 1.0f;
	power = power * rest + 1.0f;
	bits = (n + 127) << 23;
	memcpy(&rounded, &bits, sizeof(rounded));
	return x == x ? power * rounded : x;
}

/* 1 / (1 + e^-x) */
static inline float sigmoid(float x)
{
	float e = exp_minus(x);

	return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* s'(x) = sigmoid(x) (1 - sigmoid(x)), without the cancellation of that form */
static inline float sigmoid_slope(float x)
{
	float e = exp_minus(x), d = 1.0f + e;

	return e / (d * d);
}
