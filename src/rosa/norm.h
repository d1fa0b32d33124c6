/*
 * RMSNorm, the norm before attention: U = norm * H / sqrt(mean(H^2) + eps), row by row, and its way back.
 *
 * Rows are float32. What is summed over a row is summed in double precision: the sum decides the signs of q, k and v,
 * which is all that retrieval sees of them, and its cost is nothing beside that of the products.
 */
#ifndef ROSATUNE_NORM_H
#define ROSATUNE_NORM_H

#include <stddef.h>

/* u = norm * h / rms(h), which may be written over h. Returns 1 / rms(h). */
float rmsnorm(size_t channels, const float *h, const float *norm, float eps, float *u);

/* From gu = dL/du to gh = dL/dh, which may be written over gu; `scale` is 1 / rms(h). What the row gives to dL/dnorm is
 * added to gnorm, unless that is NULL. */
void rmsnorm_backward(size_t channels, const float *h, const float *norm, float scale, const float *gu, float *gh,
		      float *gnorm);

#endif
