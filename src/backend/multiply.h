/*
 * Products of activations by weights of any format.
 *
 * Every number of a result is one dot product, and all of them are summed in the same order: sixteen sums, of the
 * products k = l mod 16 in rising k, then a fixed tree over the sixteen; in K formats as fixed.h says. So the bits of
 * y[t][r] depend on x[t] and on row r of the weight, and on nothing else: not on the other steps, the other rows, the
 * other products or the threads.
 */
#pragma once

#include "backend/backend.h"
#include "base/cpu.h"
#include "base/pool.h"

/* Most columns of a weight in a K format, and numbers of x that are rounded at once for these. */
#define MULTIPLY_MOST_FIXED ((size_t)512 << 10)

/* Scratch memory of the workers, allocated beforehand so that a product cannot fail. */
struct multiply_scratch;

rosa_status multiply_scratch_new(unsigned workers, struct multiply_scratch **made, rosa_error *err);
void multiply_scratch_free(struct multiply_scratch *scratch); /* safe on NULL */

/* y (+)= x W^T for each of the products: x [steps][columns], the columns being the same for all. No y may be x or
 * another y. `pool` NULL: on the calling thread. The scratch must be made for at least as many workers as the pool has,
 * and serves one call at a time. */
void multiply(struct pool *pool, struct multiply_scratch *scratch, size_t steps, const float *x, size_t count,
	      const struct product *products);

/* The same on a given instruction set, which must be available; for tests and measurements. AVX2 and AVX-512 give equal
 * bits. Without them there is no fused multiplication, and results differ in their last bits, but in K formats. */
bool multiply_isa_available(rosa_isa isa);
rosa_isa multiply_isa_best(void);
void multiply_on(rosa_isa isa, struct pool *pool, struct multiply_scratch *scratch, size_t steps, const float *x,
		 size_t count, const struct product *products);
