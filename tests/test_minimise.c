/* The search for a minimum: functions whose minimum is known, and what it must not do. */
#include "train/minimise.h"
#include "support_test.h"

#include <math.h>

/* Rosenbrock's valley in pairs of variables: its minimum, 0, is at 1, and the way there is curved. */
static double valley(void *context, const double *x, double *gradient)
{
	const size_t count = *(size_t *)context;
	double sum = 0;

	for (size_t i = 0; i < count; i += 2) {
		const double a = 1 - x[i], b = x[i + 1] - x[i] * x[i];

		sum += a * a + 100 * b * b;
		gradient[i] = -2 * a - 400 * x[i] * b;
		gradient[i + 1] = 200 * b;
	}
	return sum;
}

TEST(finds_known_minima)
{
	size_t count = 10;
	double x[10];

	for (size_t i = 0; i < count; i++)
		x[i] = i % 2 ? 1.0 : -1.2;
	must(minimise(count, x, valley, &count, 500, 0, NULL, NULL, &err));
	for (size_t i = 0; i < count; i++)
		assert_true(fabs(x[i] - 1) < 1e-6);
	/* nothing to do, and nothing to vary */
	must(minimise(count, x, valley, &count, 500, 0, NULL, NULL, &err));
	assert_true(fabs(x[3] - 1) < 1e-6);
	count = 0;
	must(minimise(0, x, valley, &count, 500, 0, NULL, NULL, &err));
}

/* Decreases without end, but is a number only up to 3. */
static double cliff(void *context, const double *x, double *gradient)
{
	gradient[0] = -1;
	return x[0] > 3 ? NAN : -x[0];
}

static int stop_at(void *context, uint64_t done, uint64_t total)
{
	return done < total && done == *(uint64_t *)context;
}

TEST(stays_where_there_are_numbers)
{
	uint64_t stop = 2;
	size_t count = 2;
	double x[2] = {0, 0}, value, gradient[2];

	must(minimise(1, x, cliff, NULL, 100, 0, NULL, NULL, &err));
	assert_true(x[0] > 2.99 && x[0] <= 3);
	x[0] = 4;
	assert_int_equal(minimise(1, x, cliff, NULL, 100, 0, NULL, NULL, &err), ROSA_EINVAL);
	/* stopped: no worse than the start */
	x[0] = -1.2;
	x[1] = 1;
	value = valley(&count, x, gradient);
	assert_int_equal(minimise(2, x, valley, &count, 100, 0, stop_at, &stop, &err), ROSA_ECANCELLED);
	assert_true(valley(&count, x, gradient) < value);
}
