/* The definitions of a backend's operations, each as its formula reads. */
#include "support_backend.h"

#include "support_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

float *random_floats(size_t count, float size, uint64_t *state)
{
	float *x = test_alloc(count * sizeof(*x));

	for (size_t i = 0; i < count; i++)
		x[i] = size * ((float)test_random(state, 2000001) / 1e6f - 1);
	return x;
}

/* ---- attention ---- */

size_t attend_trial_width(const struct attend_trial *trial)
{
	return trial->heads * trial->group * trial->head_size;
}

static int sees(const struct attend_trial *trial, size_t t, size_t p)
{
	return p <= t && (trial->window == 0 || p + trial->window > t || p < trial->sinks);
}

static double dot(size_t count, const float *a, const float *b)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (double)a[i] * (double)b[i];
	return sum;
}

/* One query: its softmax over what it sees, and the values weighed by it. */
static void solve_query(const struct attend_trial *trial, size_t t, size_t head, double *weight, double *y)
{
	const size_t size = trial->head_size, kv = trial->heads * size, at = head / trial->group * size;
	const float *q = trial->q + t * attend_trial_width(trial) + head * size;
	double most = -INFINITY, sum = 0;

	for (size_t p = 0; p <= t; p++) {
		weight[p] = sees(trial, t, p) ? dot(size, q, trial->k + p * kv + at) / sqrt((double)size) : -INFINITY;
		most = fmax(most, weight[p]);
	}
	for (size_t p = 0; p <= t; p++)
		sum += weight[p] = exp(weight[p] - most);
	for (size_t c = 0; c < size; c++) {
		y[c] = 0;
		for (size_t p = 0; p <= t; p++)
			if (sees(trial, t, p))
				y[c] += weight[p] / sum * (double)trial->v[p * kv + at + c];
	}
}

void attend_trial_make(struct attend_trial *trial)
{
	const size_t width = attend_trial_width(trial), kv = trial->heads * trial->head_size;
	double *weight = test_alloc(trial->steps * sizeof(*weight));
	uint64_t state = trial->seed;

	/* scores of some size, so that the softmax has something to choose from */
	trial->q = random_floats(trial->steps * width, 3, &state);
	trial->k = random_floats(trial->steps * kv, 2, &state);
	trial->v = random_floats(trial->steps * kv, 1, &state);
	trial->want = test_alloc(trial->steps * width * sizeof(*trial->want));
	for (size_t t = 0; t < trial->steps; t++)
		for (size_t h = 0; h < trial->heads * trial->group; h++)
			solve_query(trial, t, h, weight, trial->want + t * width + h * trial->head_size);
	snprintf(trial->text, sizeof(trial->text),
		 "%zu steps, %zu x %zu heads of %zu, window %zu, sinks %zu, seed %llu", trial->steps, trial->heads,
		 trial->group, trial->head_size, trial->window, trial->sinks, (unsigned long long)trial->seed);
}

/* ---- the others ---- */

static double sigmoid_exact(double x)
{
	return 1 / (1 + exp(-x));
}

void oracle_rms_norm(size_t rows, size_t width, const float *x, const float *weight, float eps, double *y)
{
	for (size_t t = 0; t < rows; t++, x += width, y += width)
		for (size_t i = 0; i < width; i++)
			y[i] = (double)x[i] / sqrt(dot(width, x, x) / (double)width + (double)eps) * (double)weight[i];
}

void oracle_rotate(const struct rotary *rotary, size_t steps, size_t heads, size_t first, double *x)
{
	const size_t half = rotary->head_size / 2, halves = rotary->pairs == ROTARY_HALVES;

	for (size_t t = 0; t < steps; t++) {
		for (size_t h = 0; h < heads; h++, x += rotary->head_size) {
			for (size_t i = 0; i < half; i++) {
				const float angle = (float)(first + t) * rotary->frequencies[i];
				double *a = &x[halves ? i : 2 * i], *b = &x[halves ? i + half : 2 * i + 1], was = *a;

				*a = was * cos((double)angle) - *b * sin((double)angle);
				*b = *b * cos((double)angle) + was * sin((double)angle);
			}
		}
	}
}

void oracle_swiglu(size_t count, const float *gate, const float *up, double *y)
{
	for (size_t i = 0; i < count; i++)
		y[i] = (double)gate[i] * sigmoid_exact((double)gate[i]) * (double)up[i];
}

void oracle_mix(size_t steps, size_t channels, const float *a0, const float *h, const float *x, double *y)
{
	for (size_t i = 0; i < steps * channels; i++) {
		const double a = sigmoid_exact((double)a0[i % channels]);

		y[i] = (1 - a) * (double)h[i] + a * (double)x[i];
	}
}

void oracle_multiply(enum format format, const void *data, size_t rows, size_t columns, size_t steps, const float *x,
		     double *y)
{
	const size_t bytes = format_row_bytes(format, columns);
	float *row = test_alloc(columns * sizeof(*row));

	for (size_t r = 0; r < rows; r++) {
		format_widen(format, (const char *)data + r * bytes, columns, row);
		for (size_t t = 0; t < steps; t++)
			y[t * rows + r] += dot(columns, row, x + t * columns);
	}
}
