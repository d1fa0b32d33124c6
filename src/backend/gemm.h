/* Products of float32 matrices. */
#ifndef ROSATUNE_GEMM_H
#define ROSATUNE_GEMM_H

#include "base/cpu.h"

#include <stdbool.h>
#include <stddef.h>

struct pool;

/* C = alpha op(A) op(B) + beta C, by the calling thread alone. Matrices are row by row, `ld` numbers from one row to
 * the next; op(A) is m x k and op(B) k x n, each turned over where `trans` says so. Where beta is 0, C is not read. The
 * numbers m, n and of a row are below 2^31. */
void gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	  const float *b, size_t ldb, float beta, float *c, size_t ldc);

/* The same on all workers of a pool; not from within one. The bits of the result do not depend on their number. */
void gemm_parallel(struct pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
		   const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);

/* The product that needs no library, by one of the variants that are available here. */
void gemm_plain(rosa_isa isa, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const float *a,
		size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);

#endif
