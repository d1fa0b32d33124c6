/* RMSNorm and its way back, a row at a time. */
#include "rosa/norm.h"

#include <math.h>

/* Sums that run side by side: a compiler may not reorder additions, so the lanes of its vectors are written out. */
#define LANES 16

static double dot(size_t count, const float *a, const float *b)
{
	double lane[LANES] = {0}, sum = 0;
	size_t i = 0;

	for (; i + LANES <= count; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += (double)a[i + j] * (double)b[i + j];
	for (size_t j = 0; i + j < count; j++)
		lane[j] += (double)a[i + j] * (double)b[i + j];
	for (size_t j = 0; j < LANES; j++)
		sum += lane[j];
	return sum;
}

float rmsnorm(size_t channels, const float *h, const float *norm, float eps, float *u)
{
	const float scale = (float)(1 / sqrt(dot(channels, h, h) / (double)channels + (double)eps));

	for (size_t c = 0; c < channels; c++)
		u[c] = norm[c] * (h[c] * scale);
	return scale;
}

/* With x = h * scale: gnorm = gu x, gx = norm gu, gh = scale (gx - x mean(gx x)). */
void rmsnorm_backward(size_t channels, const float *h, const float *norm, float scale, const float *gu, float *gh,
		      float *gnorm)
{
	float along;

	for (size_t c = 0; gnorm && c < channels; c++)
		gnorm[c] += gu[c] * (h[c] * scale);
	for (size_t c = 0; c < channels; c++)
		gh[c] = norm[c] * gu[c];
	along = (float)(dot(channels, gh, h) * (double)scale / (double)channels);
	for (size_t c = 0; c < channels; c++)
		gh[c] = scale * (gh[c] - h[c] * scale * along);
}
