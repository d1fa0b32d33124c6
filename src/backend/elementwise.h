/* Operations on single numbers or rows: norms, gates, sums, the read-out of ROSA, rotations. */
#pragma once

#include "base/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* AVX-512 and AVX2 give equal bits; the plain variant may differ in the last ones. */
struct elementwise {
	/* y = x / sqrt(mean(x^2) + eps) * weight, one row; y may be x */
	void (*rms_norm)(size_t width, const float *x, const float *weight, float eps, float *y);

	/* y = silu(gate) * up; y may be either */
	void (*swiglu)(size_t count, const float *gate, const float *up, float *y);

	/* y += x */
	void (*add)(size_t count, const float *x, float *y);

	/* y = (1 - a) h + a x with a = sigmoid(a0), rows of `channels`; y may be h or x */
	void (*mix)(size_t steps, size_t channels, const float *a0, const float *h, const float *x, float *y);

	/* Rotate pairs (i, i + half) or (2i, 2i + 1) of one head by angles of these cosines and sines. */
	void (*turn_halves)(size_t half, const float *cosine, const float *sine, float *x);
	void (*turn_neighbours)(size_t half, const float *cosine, const float *sine, float *x);

	/* backend_ops.pack for some steps */
	void (*pack)(size_t steps, size_t channels, const float *x, uint64_t *bits);

	/* One link of backend_ops.read for some steps: bits [steps][words], weight [routes][stride]; `add`: y += */
	void (*read)(size_t steps, size_t channels, size_t routes, const uint64_t *bits, const float *weight,
		     size_t stride, const float *e0, const float *e1, bool add, float *y);

	/* One row of backend_ops.gate; returns z. */
	float (*gate)(size_t channels, const float *u, const float *w, float b, float *y);
};

/* The variant for this instruction set, which must be available. */
const struct elementwise *elementwise_for(rosa_isa isa);
