/* Products of float32 matrices. */
#pragma once

#include "base/cpu.h"

#include <stdbool.h>
#include <stddef.h>

struct pool;

/* C = alpha op(A) op(B) + beta C, on the calling thread. Matrices are row by row, `ld` numbers from one row to the
 * next; op(A) is m x k and op(B) k x n, each transposed where `trans` says so. Where beta is 0, C is not read. m, n and
 * the leading dimensions are below 2^31. */
void gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	  const float *b, size_t ldb, float beta, float *c, size_t ldc);

/* The same on all workers of a pool; not to be called from a worker. The bits of the result do not depend on their
 * number. */
void gemm_parallel(struct pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
		   const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);

/* The product without a library, by a variant that is available on this machine. */
void gemm_plain(rosa_isa isa, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a,
		size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);
