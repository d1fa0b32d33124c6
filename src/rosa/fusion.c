/* The gate of pre fusion, its mixing, and the way back through both, a row at a time. */
#include "rosa/fusion.h"
#include "backend/sigmoid.h"

void fusion_gate(size_t channels, const float *a0, float *a)
{
	for (size_t c = 0; c < channels; c++)
		a[c] = sigmoid(a0[c]);
}

void fusion_pre(size_t channels, const float *a, const float *h, const float *inj, float *out)
{
	for (size_t c = 0; c < channels; c++)
		out[c] = (1 - a[c]) * h[c] + a[c] * inj[c];
}

void fusion_pre_backward_inj(size_t channels, const float *a, const float *gout, float *ginj)
{
	for (size_t c = 0; c < channels; c++)
		ginj[c] = a[c] * gout[c];
}

void fusion_pre_backward_h(size_t channels, const float *a, const float *gout, float *gh)
{
	for (size_t c = 0; c < channels; c++)
		gh[c] += (1 - a[c]) * gout[c];
}

void fusion_pre_backward_gate(size_t channels, const float *gout, const float *inj, const float *h, float *ga)
{
	for (size_t c = 0; c < channels; c++)
		ga[c] += gout[c] * (inj[c] - h[c]);
}

double fusion_gate_backward(float a, double ga)
{
	return (double)a * (1 - (double)a) * ga;
}
