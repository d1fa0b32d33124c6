/*
 * Cosines and sines of rotary positions, kept.
 *
 * Every layer turns the same positions by the same angles, and computing these costs far more than turning by them. So
 * rows are kept by position, as a cache does it: position p has one place, p modulo their number, and takes it over
 * from whoever is there. That serves the chunk at hand, however many layers there are, and as well a batch of sequences
 * that are each somewhere else.
 *
 * The angle is the product of position and frequency rounded to float32, for that is what the models were trained with:
 * at position 10,000 the rounding comes to half a thousandth of a radian, and an exact angle would be another one. The
 * cosine of that number is then taken exactly.
 */
#ifndef ROSATUNE_ANGLES_H
#define ROSATUNE_ANGLES_H

#include <stddef.h>

struct angles;

/* NULL if memory is short. */
struct angles *angles_new(void);
void angles_free(struct angles *angles); /* safe on NULL */

/* Make rows of positions `first` and after, at most `count`, for these frequencies, of which there are `half`, at most
 * BACKEND_MOST_HEAD / 2. Returns how many, at least one (if any are wanted). They stay until the next call. */
size_t angles_prepare(struct angles *angles, size_t half, const float *frequencies, size_t first, size_t count);

/* The cosines of a position that was prepared; `half` numbers further are its sines. */
const float *angles_row(const struct angles *angles, size_t position);

#endif
