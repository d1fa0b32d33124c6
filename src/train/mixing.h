/* Which source each sample comes from. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of the samples 0, 1, 2, ..., number n is that of `source`, and the `counter`-th of it, counted from 0. `sums` is
 * [count + 1]: sums of the weights before each source, and of all. */
void mixing_place(const double *sums, size_t count, uint64_t n, size_t *source, uint64_t *counter);
