/*
 * The products of the layer with its four matrices, there and back.
 *
 * Each equation is a function, so that which side is turned over is decided in one place. Wq, Wk and Wv are [in][out]
 * and stand on the right of the rows, q = U Wq; Wout is [out][in], as most frameworks keep a linear map, and is applied
 * to each row, inj = Wout y. Everything is float32; rows are dense.
 *
 * Gradients of matrices are sums over all rows of a pass, which come in chunks. They are added to what is there.
 */
#ifndef ROSATUNE_PROJECTION_H
#define ROSATUNE_PROJECTION_H

#include <stdbool.h>
#include <stddef.h>

struct pool;

struct products {
	struct pool *pool;
	size_t channels;
};

/* X = U W, for X one of q, k, v */
void project(const struct products *by, size_t rows, const float *u, const float *w, float *x);

/* gU = gX W^T, or with `more` added to the gU of the other projections */
void project_backward_rows(const struct products *by, size_t rows, const float *gx, const float *w, bool more,
			   float *gu);

/* gW += U^T gX */
void project_backward_weight(const struct products *by, size_t rows, const float *u, const float *gx, float *gw);

/* inj = Wout y */
void inject(const struct products *by, size_t rows, const float *y, const float *wout, float *inj);

/* gy = Wout^T ginj */
void inject_backward_rows(const struct products *by, size_t rows, const float *ginj, const float *wout, float *gy);

/* gWout += sum of ginj y^T */
void inject_backward_weight(const struct products *by, size_t rows, const float *ginj, const float *y, float *gwout);

#endif
