/*
 * How the injection joins the layer.
 *
 * Post fusion adds it to what attention makes of the same input; that addition is the caller's, who has both. So here
 * out = inj, and nothing is left to do but to write it down. Pre fusion mixes it into what attention is going to see,
 * out = (1 - a) H + a inj, by a gate of its own in every channel. Rows are float32.
 */
#ifndef ROSATUNE_FUSION_H
#define ROSATUNE_FUSION_H

#include <stddef.h>

/* a = sigmoid(a0) */
void fusion_gate(size_t channels, const float *a0, float *a);

/* out = (1 - a) h + a inj; out may be inj. */
void fusion_pre(size_t channels, const float *a, const float *h, const float *inj, float *out);

/* ginj = a gout; may be the same. */
void fusion_pre_backward_inj(size_t channels, const float *a, const float *gout, float *ginj);

/* gh += (1 - a) gout */
void fusion_pre_backward_h(size_t channels, const float *a, const float *gout, float *gh);

/* ga += gout (inj - h): what the row gives to dL/da. */
void fusion_pre_backward_gate(size_t channels, const float *gout, const float *inj, const float *h, float *ga);

/* dL/da0 of dL/da */
double fusion_gate_backward(float a, double ga);

#endif
