/*
 * The inner loops of products, for each instruction set.
 *
 * multiply.c divides a product into rows, strips and tiles; what is done with these stands here. The sums of all sets
 * are taken in the same order (multiply.h).
 */
#pragma once

#include "backend/format.h"
#include "base/cpu.h"

#include <stdint.h>

#define MULTIPLY_ROWS       4 /* rows of a weight at once: enough sums in flight to hide the latency of an addition */
#define MULTIPLY_MOST_STEPS 6 /* steps of x at once, in any variant */

/* A row of x or of a weight as the loops take it: float32, or whole numbers (fixed.h). */
struct operand {
	float *wide;
	int16_t *n;
	float *scale, *sum; /* sum NULL: the format has no m */
};

struct multiply_loops {
	size_t steps; /* of the largest tile */
	/* x in whole numbers; NULL: it is taken as it is */
	void (*round)(const float *x, size_t columns, const struct operand *to);
	/* sums[i] = row i . x, for `count` rows */
	void (*dot[FORMAT_COUNT])(const uint8_t *row, size_t row_bytes, size_t count, const struct operand *x,
				  size_t columns, float *sums);
	void (*unpack[FORMAT_COUNT])(const uint8_t *row, size_t columns, const struct operand *to);
	/* sums[t][i] = w[i] . x[t]; tile[n - 1] is for n steps */
	void (*tile[MULTIPLY_MOST_STEPS])(const struct operand *w, const struct operand *x, size_t columns,
					  float (*sums)[MULTIPLY_ROWS]);
};

/* Those of an available instruction set. */
const struct multiply_loops *multiply_loops_of(rosa_isa isa);
