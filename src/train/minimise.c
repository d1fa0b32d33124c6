/*
 * L-BFGS.
 *
 * Newton's method needs the matrix of second derivatives; this one estimates its effect on a vector from how the
 * gradient changed in the last few steps (Nocedal and Wright, Numerical Optimization, algorithm 7.4). A step is halved
 * until the value has fallen by a small share of what the gradient promises. Pairs along which the function does not
 * curve upwards are left out, so that the direction always leads downhill.
 */
#include "train/minimise.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS   12   /* of past steps that are remembered */
#define HALVES  40   /* times that a step is halved before giving up */
#define PROMISE 1e-4 /* the share of the promised gain that is enough */

struct search {
	size_t count;
	double *x, *gradient, *trial, *trial_gradient, *direction; /* [count] */
	double *moved[PAIRS], *turned[PAIRS];                      /* [count]: changes of x and of the gradient */
	double inverse[PAIRS];                                     /* 1 / (moved . turned) */
	size_t pairs;                                              /* remembered so far, in a ring */
};

static double dot(const struct search *s, const double *a, const double *b)
{
	double sum = 0;

	for (size_t i = 0; i < s->count; i++)
		sum += a[i] * b[i];
	return sum;
}

static void add(const struct search *s, double *to, double factor, const double *from)
{
	for (size_t i = 0; i < s->count; i++)
		to[i] += factor * from[i];
}

/* The direction of the next step: minus the estimated inverse of the second derivatives times the gradient. */
static void aim(struct search *s)
{
	const size_t first = s->pairs > PAIRS ? s->pairs - PAIRS : 0;
	double alpha[PAIRS];

	for (size_t i = 0; i < s->count; i++)
		s->direction[i] = -s->gradient[i];
	for (size_t k = s->pairs; k-- > first;) {
		const size_t at = k % PAIRS;

		alpha[at] = s->inverse[at] * dot(s, s->moved[at], s->direction);
		add(s, s->direction, -alpha[at], s->turned[at]);
	}
	if (s->pairs > first) {
		const size_t at = (s->pairs - 1) % PAIRS;
		const double scale = 1 / (s->inverse[at] * dot(s, s->turned[at], s->turned[at]));

		for (size_t i = 0; i < s->count; i++)
			s->direction[i] *= scale;
	}
	for (size_t k = first; k < s->pairs; k++) {
		const size_t at = k % PAIRS;
		const double beta = s->inverse[at] * dot(s, s->turned[at], s->direction);

		add(s, s->direction, alpha[at] - beta, s->moved[at]);
	}
}

/* Remembers the change from x to trial, and goes there. */
static void move(struct search *s)
{
	const size_t at = s->pairs % PAIRS;
	double curve;

	for (size_t i = 0; i < s->count; i++) {
		s->moved[at][i] = s->trial[i] - s->x[i];
		s->turned[at][i] = s->trial_gradient[i] - s->gradient[i];
	}
	curve = dot(s, s->moved[at], s->turned[at]);
	if (curve > 1e-12 * dot(s, s->turned[at], s->turned[at])) {
		s->inverse[at] = 1 / curve;
		s->pairs++;
	}
	memcpy(s->x, s->trial, s->count * sizeof(double));
	memcpy(s->gradient, s->trial_gradient, s->count * sizeof(double));
}

/* Takes one step; returns the value then, which is the old one where no step leads downhill. */
static double step(struct search *s, double value, minimise_function *function, void *context)
{
	double slope, length;

	aim(s);
	slope = dot(s, s->direction, s->gradient);
	/* nothing is known of the scale before the first pair: a step of at most 1 */
	length = s->pairs ? 1 : 1 / fmax(1, sqrt(dot(s, s->direction, s->direction)));
	for (int half = 0; half < HALVES && slope < 0; half++, length /= 2) {
		double here;

		memcpy(s->trial, s->x, s->count * sizeof(double));
		add(s, s->trial, length, s->direction);
		here = function(context, s->trial, s->trial_gradient);
		if (here <= value + PROMISE * length * slope) { /* false for NaN */
			move(s);
			return here;
		}
	}
	return value;
}

rosa_status minimise(size_t count, double *x, minimise_function *function, void *context, size_t most, double gain,
		     rosa_progress progress, void *progress_context, rosa_error *err)
{
	double *memory = calloc(count ? (4 + 2 * PAIRS) * count : 1, sizeof(*memory)), value;
	struct search s = {.count = count, .x = x};
	rosa_status status = ROSA_OK;

	if (!memory)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to search among %zu variables", count);
	s.gradient = memory;
	s.trial = memory + count;
	s.trial_gradient = memory + 2 * count;
	s.direction = memory + 3 * count;
	for (size_t i = 0; i < PAIRS; i++) {
		s.moved[i] = memory + (4 + i) * count;
		s.turned[i] = memory + (4 + PAIRS + i) * count;
	}
	value = function(context, x, s.gradient);
	if (!isfinite(value))
		status = rosa_fail(err, ROSA_EINVAL, "the value to make small is %g at the start", value);
	for (size_t i = 0; i < most && status == ROSA_OK; i++) {
		const double before = value;

		if (progress && progress(progress_context, i, most) != 0)
			status = rosa_fail(err, ROSA_ECANCELLED, "stopped");
		else
			value = step(&s, value, function, context);
		if (before - value <= gain * fabs(value))
			break;
	}
	free(memory);
	return status;
}
