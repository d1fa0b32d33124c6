/*
 * The operator, straight from its equations.
 *
 * Every loop is the sum that the definition writes, over all batch entries, steps and channels, in double precision.
 * Retrieval is the brute force of oracle.c, the rules for q and k are those of support_qk_oracle.c. Nothing is shared
 * with the library, chunks, blocks and threads do not exist here, and no speed-up belongs here.
 *
 * Where activations are bfloat16, what one step hands to the next is rounded at the places where the library says that
 * it rounds. So a comparison can be sharp in both dtypes: what is left is the rounding of sums.
 */
#include "support_operator.h"

#include "oracle.h"
#include "support_qk_oracle.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

/* More requests than any operation here may make. */
#define MOST_REQUESTS 1000

void operator_resize(struct operator_case *c, struct operator_size size)
{
	c->options.bits = size.bits;
	c->options.threads = size.threads ? size.threads : c->options.threads;
	c->batch = size.batch;
	c->steps = size.steps;
	c->channels = size.channels;
}

size_t operator_cells(const struct operator_case *c)
{
	return c->batch * c->steps * c->channels;
}

static size_t routes_of(const struct operator_case *c)
{
	return c->channels / (size_t)c->options.bits;
}

size_t operator_route_steps(const struct operator_case *c)
{
	return c->batch * routes_of(c) * c->steps;
}

static double *zeros(size_t count)
{
	return test_zeros(count, sizeof(double));
}

double operator_round(rosa_dtype dtype, double x)
{
	int exponent;
	double part;

	if (dtype == ROSA_FLOAT32 || !isfinite(x))
		return (float)x;
	part = frexp(x, &exponent); /* 8 bits are kept, ties go to even */
	return ldexp(nearbyint(ldexp(part, 8)), exponent - 8);
}

void operator_hand_on(const struct operator_case *c, double *rows)
{
	for (size_t i = 0; c->dtype == ROSA_BFLOAT16 && i < operator_cells(c); i++)
		rows[i] = operator_round(c->dtype, rows[i]);
}

static double logistic(double x)
{
	return 1 / (1 + exp(-x));
}

/* ------------------------------------------------------------------------------------------------------ read-out -- */

void operator_symbols(const struct operator_case *c, const double *rows, uint16_t *symbols)
{
	const size_t bits = (size_t)c->options.bits, routes = routes_of(c);

	for (size_t b = 0; b < c->batch; b++) {
		for (size_t r = 0; r < routes; r++) {
			for (size_t t = 0; t < c->steps; t++) {
				const double *x = rows + (b * c->steps + t) * c->channels + r * bits;
				unsigned symbol = 0;

				for (size_t j = 0; j < bits; j++)
					symbol |= (unsigned)(x[j] > 0) << j;
				symbols[(b * routes + r) * c->steps + t] = (uint16_t)symbol;
			}
		}
	}
}

size_t operator_find(const struct operator_case *c, const double *q, const double *k, int32_t *tau, int32_t *flips)
{
	const size_t bits = (size_t)c->options.bits, steps = c->steps, all = operator_route_steps(c);
	uint16_t *query = test_alloc(all * sizeof(*query)), *key = test_alloc(all * sizeof(*key));
	uint16_t *symbol = test_alloc(steps * sizeof(*symbol));
	size_t *start = test_alloc(steps * sizeof(*start));
	int32_t *found = test_alloc(steps * sizeof(*found)), *table = test_alloc(steps * bits * sizeof(*table));
	size_t rows = 0;

	operator_symbols(c, q, query);
	operator_symbols(c, k, key);
	for (size_t at = 0; at < all; at += steps) {
		size_t runs = oracle_runs(query + at, steps, c->options.fold, start, symbol);

		oracle_route(&c->options, steps, query + at, key + at, found, NULL, flips ? table : NULL);
		if (tau)
			memcpy(tau + at, found, steps * sizeof(*tau));
		for (size_t i = 0; i < runs; i++, rows++) {
			if (!flips)
				continue;
			flips[rows * (bits + 1)] = found[start[i]];
			memcpy(flips + rows * (bits + 1) + 1, table + start[i] * bits, bits * sizeof(*flips));
		}
	}
	return rows;
}

/* What channel i reads at step t of batch entry b, as an index of a cell; -1 where nothing was found. */
static ptrdiff_t source(const struct operator_case *c, const int32_t *read, size_t b, size_t t, size_t i)
{
	int32_t d = read[(b * routes_of(c) + i / (size_t)c->options.bits) * c->steps + t];

	return d < 0 ? -1 : (ptrdiff_t)((b * c->steps + (size_t)d) * c->channels + i);
}

void operator_read(const struct operator_case *c, const struct operator_read *at)
{
	for (size_t b = 0; b < c->batch; b++) {
		for (size_t t = 0; t < c->steps; t++) {
			for (size_t i = 0; i < c->channels; i++) {
				ptrdiff_t from = source(c, at->read, b, t, i);
				double m = from >= 0, bit = from >= 0 && at->v[from] > 0;

				at->y[(b * c->steps + t) * c->channels + i] =
				    m * (at->e0[i] + (at->e1[i] - at->e0[i]) * bit);
			}
		}
	}
	operator_hand_on(c, at->y);
}

void operator_read_backward(const struct operator_case *c, const struct operator_read *at)
{
	const size_t entry = c->steps * c->channels, bits = (size_t)c->options.bits;
	double *theta = zeros(operator_cells(c)), *p = zeros(operator_cells(c));
	const int32_t *flips = at->flips;

	for (size_t i = 0; i < c->channels; i++)
		at->ge0[i] = at->ge1[i] = 0;
	for (size_t i = 0; i < operator_cells(c); i++) {
		theta[i] = at->gy[i] * (at->e1[i % c->channels] - at->e0[i % c->channels]);
		p[i] = logistic(at->v[i]);
		at->gv[i] = 0;
	}
	for (size_t b = 0; b < c->batch; b++) {
		for (size_t t = 0; t < c->steps; t++) {
			for (size_t i = 0; i < c->channels; i++) {
				ptrdiff_t from = source(c, at->read, b, t, i);
				size_t cell = (b * c->steps + t) * c->channels + i;

				if (from < 0)
					continue;
				if (at->v[from] > 0)
					at->ge1[i] += at->gy[cell];
				else
					at->ge0[i] += at->gy[cell];
				at->gv[from] += theta[cell];
			}
		}
	}
	for (size_t i = 0; i < operator_cells(c); i++)
		at->gv[i] *= p[i] * (1 - p[i]);
	for (size_t b = 0; b < c->batch; b++) {
		struct qk_case one = {.learning = c->learning,
				      .steps = c->steps,
				      .channels = c->channels,
				      .bits = c->options.bits,
				      .fold = c->options.fold,
				      .q = at->q + b * entry,
				      .k = at->k + b * entry,
				      .theta = theta + b * entry,
				      .p = p + b * entry,
				      .flips = flips};
		struct operator_case alone = *c;

		qk_oracle(&one, at->gq + b * entry, at->gk + b * entry);
		alone.batch = 1;
		if (flips)
			flips += operator_find(&alone, one.q, one.k, NULL, NULL) * (bits + 1);
	}
	operator_hand_on(c, at->gq);
	operator_hand_on(c, at->gk);
	operator_hand_on(c, at->gv);
}

/* --------------------------------------------------------------------------------------- to and from the library -- */

static double normal(uint64_t *state)
{
	double sum = 0;

	/* twelve uniform numbers have variance 1 together */
	for (int i = 0; i < 12; i++)
		sum += (double)test_random(state, 1u << 24) / (1u << 24) - 0.5;
	return sum;
}

double *random_rows(uint64_t *state, rosa_dtype dtype, size_t count, double scale)
{
	double *numbers = test_alloc(count * sizeof(*numbers));

	for (size_t i = 0; i < count; i++)
		numbers[i] = operator_round(dtype, scale * normal(state));
	return numbers;
}

double *rows_of_symbols(const struct operator_case *c, uint64_t *state, const uint16_t *symbols)
{
	const size_t bits = (size_t)c->options.bits;
	double *rows = test_alloc(operator_cells(c) * sizeof(*rows));

	for (size_t i = 0; i < operator_cells(c); i++) {
		size_t t = i / c->channels % c->steps, b = i / c->channels / c->steps, at = i % c->channels;
		unsigned symbol = symbols[(b * routes_of(c) + at / bits) * c->steps + t];
		double size = operator_round(c->dtype, 0.01 + fabs(normal(state)));

		if (symbol >> at % bits & 1)
			rows[i] = size;
		else
			rows[i] = test_random(state, 20) ? -size : test_random(state, 2) ? 0.0 : -0.0;
	}
	return rows;
}

void *to_dtype(rosa_dtype dtype, const double *numbers, size_t count)
{
	float *wide = to_floats(numbers, count);
	uint16_t *narrow;

	if (dtype == ROSA_FLOAT32)
		return wide;
	narrow = test_alloc(count * sizeof(*narrow));
	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &wide[i], sizeof(bits));
		assert_int_equal(bits & 0xffff, 0); /* not a bfloat16 */
		narrow[i] = (uint16_t)(bits >> 16);
	}
	return narrow;
}

float *to_floats(const double *numbers, size_t count)
{
	float *floats = test_alloc(count * sizeof(*floats));

	for (size_t i = 0; i < count; i++)
		floats[i] = (float)numbers[i];
	return floats;
}

int32_t *from_destinations(const void *kept, size_t steps, size_t count)
{
	int32_t *tau = test_alloc(count * sizeof(*tau));

	for (size_t i = 0; i < count; i++) {
		if (rosa_width(steps) == 4)
			tau[i] = ((const int32_t *)kept)[i];
		else
			tau[i] = ((const uint16_t *)kept)[i] == 0xffff ? -1 : ((const uint16_t *)kept)[i];
	}
	return tau;
}

void *to_destinations(const int32_t *tau, size_t steps, size_t count)
{
	void *kept = test_alloc(count * sizeof(*tau));

	for (size_t i = 0; i < count; i++) {
		if (rosa_width(steps) == 4)
			((int32_t *)kept)[i] = tau[i];
		else
			((uint16_t *)kept)[i] = (uint16_t)tau[i];
	}
	return kept;
}

static double element(rosa_dtype dtype, const void *array, size_t i)
{
	uint32_t bits;
	float wide;

	if (dtype == ROSA_FLOAT32)
		return ((const float *)array)[i];
	bits = (uint32_t)((const uint16_t *)array)[i] << 16;
	memcpy(&wide, &bits, sizeof(wide));
	return wide;
}

double norm_of(const double *numbers, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += numbers[i] * numbers[i];
	return sqrt(sum);
}

void expect_near(const char *how, const char *what, rosa_dtype dtype, const void *got, const double *want, size_t count,
		 double limit, double least)
{
	double *differences = test_alloc(count * sizeof(*differences));
	double difference, size = fmax(norm_of(want, count), least);

	for (size_t i = 0; i < count; i++)
		differences[i] = element(dtype, got, i) - want[i];
	difference = norm_of(differences, count);
	/* written so that NaN fails too */
	if (!(difference <= limit * size))
		fail_msg("%s: %s: off by %g, more than %g of %g", how, what, difference, limit, size);
}

void refuse_each_request(const char *how, struct test_memory *memory,
			 rosa_status (*operation)(void *context, rosa_error *err), void *context)
{
	for (int all = 0; all < 2; all++) {
		for (long n = 0;; n++) {
			long blocks = atomic_load(&memory->blocks);
			rosa_error err = {ROSA_OK, ""};
			char text[160];
			rosa_status status;

			if (n == MOST_REQUESTS)
				fail_msg("%s: still asks for memory after %d requests", how, MOST_REQUESTS);
			snprintf(text, sizeof(text), "%s, request %ld%s refused", how, n,
				 all ? " and all after it" : "");
			test_memory_arm(memory, n, all ? -1 : 1);
			status = operation(context, &err);
			memory->refuse_from = -1;
			if (status == ROSA_OK && atomic_load(&memory->refused) == 0)
				break;
			if (status != ROSA_OK)
				expect_status(text, status, ROSA_ENOMEM, &err);
			if (atomic_load(&memory->blocks) != blocks)
				fail_msg("%s: %ld blocks are left of %ld", text, atomic_load(&memory->blocks), blocks);
		}
	}
}
