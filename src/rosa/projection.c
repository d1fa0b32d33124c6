/* The products of the layer with its four matrices, there and back. */
#include "rosa/projection.h"
#include "backend/gemm.h"

/* All products are of one shape or the other: rows by a matrix, ... */
static void rows_by_matrix(const struct products *by, size_t rows, const float *x, bool turned, const float *w,
			   float beta, float *out)
{
	const size_t n = by->channels;

	gemm_parallel(by->pool, false, turned, rows, n, n, 1, x, n, w, n, beta, out, n);
}

/* ... or a sum over rows of outer products. */
static void add_outer_products(const struct products *by, size_t rows, const float *a, const float *b, float *sum)
{
	const size_t n = by->channels;

	gemm_parallel(by->pool, true, false, n, n, rows, 1, a, n, b, n, 1, sum, n);
}

void project(const struct products *by, size_t rows, const float *u, const float *w, float *x)
{
	rows_by_matrix(by, rows, u, false, w, 0, x);
}

void project_backward_rows(const struct products *by, size_t rows, const float *gx, const float *w, bool more,
			   float *gu)
{
	rows_by_matrix(by, rows, gx, true, w, more ? 1 : 0, gu);
}

void project_backward_weight(const struct products *by, size_t rows, const float *u, const float *gx, float *gw)
{
	add_outer_products(by, rows, u, gx, gw);
}

void inject(const struct products *by, size_t rows, const float *y, const float *wout, float *inj)
{
	rows_by_matrix(by, rows, y, true, wout, 0, inj);
}

void inject_backward_rows(const struct products *by, size_t rows, const float *ginj, const float *wout, float *gy)
{
	rows_by_matrix(by, rows, ginj, false, wout, 0, gy);
}

void inject_backward_weight(const struct products *by, size_t rows, const float *ginj, const float *y, float *gwout)
{
	add_outer_products(by, rows, ginj, y, gwout);
}
