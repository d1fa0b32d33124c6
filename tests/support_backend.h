/* What the operations of a backend compute, in double precision and without regard to speed. */
#pragma once

#include "backend/backend.h"

/* One setting of attention: a whole text at once. */
struct attend_trial {
	size_t steps, heads, group, head_size; /* heads: of keys; group: query heads of each */
	size_t window, sinks;
	uint64_t seed;
	/* made by attend_trial_make */
	float *q, *k, *v; /* [steps][...] */
	double *want;     /* [steps][heads * group * head_size] */
	char text[160];   /* for messages */
};

void attend_trial_make(struct attend_trial *trial);
size_t attend_trial_width(const struct attend_trial *trial); /* of q and of the result */

void oracle_rms_norm(size_t rows, size_t width, const float *x, const float *weight, float eps, double *y);
/* x is turned in place. */
void oracle_rotate(const struct rotary *rotary, size_t steps, size_t heads, size_t first, double *x);
void oracle_swiglu(size_t count, const float *gate, const float *up, double *y);
void oracle_mix(size_t steps, size_t channels, const float *a0, const float *h, const float *x, double *y);
/* y += x W^T, `data` being host memory. */
void oracle_multiply(enum format format, const void *data, size_t rows, size_t columns, size_t steps, const float *x,
		     double *y);

/* `count` numbers from -size to size. */
float *random_floats(size_t count, float size, uint64_t *state);
