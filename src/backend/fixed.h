/*
 * Products by weights of GGUF's K formats, in whole numbers.
 *
 * A block of Q4_K, Q5_K or Q6_K is 256 numbers d v - m. v = s q is a whole number of at most 4,096 (s is the factor of
 * 16 or 32 numbers, q the few bits of each), d belongs to all of the block, and m, where there is one, to 32 numbers.
 * If 256 numbers of x are whole numbers n times one scale too, their part of a dot product is
 *
 *     d scale (sum of v n) - sum over groups of 32 of m (scale (sum of n))
 *
 * and the sum of v n can be had without widening a weight to float32: in half of the instructions or fewer, which is
 * what these formats cost most in, and exactly, in any order. So n is x rounded to 16 bits: 32,767 for the greatest
 * magnitude of its block. (llama.cpp rounds to 8 bits for this.) The error of a number of x is at most 1/65,534 of that
 * magnitude, some thousand times less than what 4 bits cost a weight.
 *
 * The definition, which all instruction sets follow to the bit, for row w of a weight and row x of the activations:
 *
 *     max = greatest |x| of block b, scale[b] = max / 32767, n = x (32767 / max) to the nearest, half to even.
 *           Where max is below 2^-100, scale and n are 0; where it is infinite or not a number, scale is NaN and n 0
 *     sum[b][g] = scale[b] (sum of n over group g), g = 0 .. 7
 *     y[l] = 0, l = 0 .. 15, and z[g] = 0; for each block b, every operation rounded:
 *         y[l] += (d[b] scale[b]) (sum of v n over the numbers 2 l and 2 l + 1 of each group)
 *         z[g] += -m[b][g] sum[b][g], where the format has m
 *     result: y[l] += z[l], l < 8; then y[l] + y[l + 8], of these l + (l + 4), and so on
 *
 * The whole sums are below 2^31: 16 products of at most 32 * 128 by 32,767.
 */
#pragma once

#include "backend/multiply_loops.h"

#define FIXED_BLOCK  256
#define FIXED_GROUPS 8 /* of a block */

/* Loops over rows of 256-blocks, of an available instruction set. An operand's `n` are the n of x or the v of a weight,
 * [columns]; its `scale` those of x or the d of a weight, [columns / FIXED_BLOCK]; its `sum` those of x or the -m of a
 * weight, [columns / FIXED_BLOCK][FIXED_GROUPS]. */
const struct multiply_loops *fixed_loops_of(rosa_isa isa);
