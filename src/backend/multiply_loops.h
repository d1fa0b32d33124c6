/*
 * The inner loops of products, for each instruction set.
 *
 * multiply.c divides a product into rows, strips and tiles; what is done with these stands here. The sums of all sets
 * are taken in the same order (multiply.h).
 */
#pragma once

#include "backend/format.h"
#include "base/cpu.h"

#define MULTIPLY_ROWS       4 /* rows of a weight at once: enough sums in flight to hide the latency of an addition */
#define MULTIPLY_MOST_STEPS 6 /* steps of x at once, in any variant */

struct multiply_loops {
	size_t steps; /* of the largest tile */
	/* sums[i] = row i . x, for `count` rows; sums has a multiple of MULTIPLY_ROWS numbers */
	void (*dot[FORMAT_COUNT])(const uint8_t *row, size_t row_bytes, size_t count, const float *x, size_t columns,
				  float *sums);
	void (*widen[FORMAT_COUNT])(const uint8_t *row, size_t columns, float *to);
	/* sums[t][i] = w[i] . x[t]; tile[n - 1] is for n steps */
	void (*tile[MULTIPLY_MOST_STEPS])(const float *const *w, const float *const *x, size_t columns,
					  float (*sums)[MULTIPLY_ROWS]);
};

/* Those of an available instruction set. */
const struct multiply_loops *multiply_loops_of(rosa_isa isa);
