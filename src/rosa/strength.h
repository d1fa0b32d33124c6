/*
 * The strength of a read: scale * gain, the gain being a table over the length of the match.
 *
 * The forward and the backward pass and the rules for q and k all weigh a read by it.
 */
#pragma once

#include "rosatune.h"

/* The column of gain for a match of this length. */
static inline size_t gain_column(uint8_t length)
{
	return length < ROSA_GAINS ? length : ROSA_GAINS - 1;
}

/* The strengths of row `row` of gain, by column; gain NULL: 1. */
static inline void strength_table(const float *gain, float scale, size_t row, float table[ROSA_GAINS])
{
	for (size_t i = 0; i < ROSA_GAINS; i++)
		table[i] = gain ? scale * gain[row * ROSA_GAINS + i] : scale;
}
