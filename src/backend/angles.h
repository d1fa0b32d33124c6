/*
 * A cache of the cosines and sines of rotary positions.
 *
 * Every layer rotates the same positions by the same angles, and computing an angle's cosine costs far more than
 * rotating by it. So rows are cached by position: position p has one slot, p modulo the number of slots, and replaces
 * what is there. This serves the chunk at hand in all layers, and also a batch of sequences at different positions.
 *
 * The angle is the product of position and frequency rounded to float32, because the models were trained with that: at
 * position 10,000 the rounding is half a thousandth of a radian. The cosine of the rounded angle is computed exactly.
 */
#pragma once

#include <stddef.h>

struct angles;

/* NULL: no memory. */
struct angles *angles_new(void);
void angles_free(struct angles *angles); /* safe on NULL */

/* Make the rows of positions `first` and after, at most `count`, for `half` frequencies (at most BACKEND_MOST_HEAD /
 * 2). Returns how many were made, at least one unless count is 0. They are valid until the next call. */
size_t angles_prepare(struct angles *angles, size_t half, const float *frequencies, size_t first, size_t count);

/* The cosines of a prepared position, followed by its `half` sines. */
const float *angles_row(const struct angles *angles, size_t position);
