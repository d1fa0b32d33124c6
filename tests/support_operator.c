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
	double *numbers = must_alloc(count * sizeof(*numbers));

	for (size_t i = 0; i < count; i++)
		numbers[i] = 0;
	return numbers;
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

/* Rounding where a step hands numbers on; float32 is near enough to double to be left alone. */
static void hand_on(const struct operator_case *c, double *rows)
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
	uint16_t *query = must_alloc(all * sizeof(*query)), *key = must_alloc(all * sizeof(*key));
	uint16_t *symbol = must_alloc(steps * sizeof(*symbol));
	size_t *start = must_alloc(steps * sizeof(*start));
	int32_t *found = must_alloc(steps * sizeof(*found)), *table = must_alloc(steps * bits * sizeof(*table));
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
	free(query);
	free(key);
	free(symbol);
	free(start);
	free(found);
	free(table);
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
	hand_on(c, at->y);
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
	hand_on(c, at->gq);
	hand_on(c, at->gk);
	hand_on(c, at->gv);
	free(theta);
	free(p);
}

/* --------------------------------------------------------------------------------------------------------- layer -- */

/* out = x W, or x W^T where `turned`; [rows][n] by [n][n]. */
static void multiply(size_t rows, size_t n, const double *x, const double *w, int turned, double *out)
{
	for (size_t r = 0; r < rows; r++) {
		for (size_t j = 0; j < n; j++) {
			double sum = 0;

			for (size_t i = 0; i < n; i++)
				sum += x[r * n + i] * (turned ? w[j * n + i] : w[i * n + j]);
			out[r * n + j] = sum;
		}
	}
}

/* sum += over rows of a b^T */
static void add_outer(size_t rows, size_t n, const double *a, const double *b, double *sum)
{
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < n; i++)
			for (size_t j = 0; j < n; j++)
				sum[i * n + j] += a[r * n + i] * b[r * n + j];
}

static double rms(size_t n, const double *h, double eps)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += h[i] * h[i];
	return sqrt(sum / (double)n + eps);
}

void operator_layer_project(const struct operator_case *c, struct operator_layer *layer)
{
	const size_t n = c->channels, rows = c->batch * c->steps, cells = operator_cells(c);
	double *const *x[3] = {&layer->q, &layer->k, &layer->v};

	layer->u = zeros(cells);
	layer->q = zeros(cells);
	layer->k = zeros(cells);
	layer->v = zeros(cells);
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < n; i++)
			layer->u[r * n + i] =
			    layer->norm[i] * layer->h[r * n + i] / rms(n, layer->h + r * n, layer->norm_eps);
	multiply(rows, n, layer->u, layer->wq, 1, layer->q);
	multiply(rows, n, layer->u, layer->shared ? layer->wq : layer->wk, 1, layer->k);
	multiply(rows, n, layer->u, layer->wv, 1, layer->v);
	layer->margin = INFINITY;
	for (size_t i = 0; i < 3 * cells; i++)
		layer->margin = fmin(layer->margin, fabs((*x[i / cells])[i % cells]));
	hand_on(c, layer->q);
	hand_on(c, layer->k);
	hand_on(c, layer->v);
}

/* A layer rounds q, k and v to the type of its activations, and what it gives; between these it has float32. */
static struct operator_case unrounded(const struct operator_case *c)
{
	struct operator_case inside = *c;

	inside.dtype = ROSA_FLOAT32;
	return inside;
}

static struct operator_read layer_read(const struct operator_layer *layer)
{
	return (struct operator_read){.q = layer->q,
				      .k = layer->k,
				      .v = layer->v,
				      .e0 = layer->e0,
				      .e1 = layer->e1,
				      .read = layer->given_read ? layer->given_read : layer->read,
				      .flips = layer->given_flips ? layer->given_flips : layer->flips,
				      .y = layer->y,
				      .ge0 = layer->ge0,
				      .ge1 = layer->ge1};
}

void operator_layer_forward(const struct operator_case *c, struct operator_layer *layer)
{
	const size_t n = c->channels, rows = c->batch * c->steps, cells = operator_cells(c);
	const struct operator_case inside = unrounded(c);
	struct operator_read at;

	layer->y = zeros(cells);
	layer->inj = zeros(cells);
	layer->out = zeros(cells);
	layer->read = must_alloc(operator_route_steps(c) * sizeof(*layer->read));
	layer->flips = must_alloc(operator_route_steps(c) * ((size_t)c->options.bits + 1) * sizeof(*layer->flips));
	operator_find(c, layer->q, layer->k, layer->read, layer->flips);
	at = layer_read(layer);
	operator_read(&inside, &at);
	multiply(rows, n, layer->y, layer->wout, 1, layer->inj);
	for (size_t i = 0; i < cells; i++) {
		double a = layer->fusion == ROSA_PRE ? logistic(layer->a0[i % n]) : 1;

		layer->out[i] = layer->fusion == ROSA_PRE ? (1 - a) * layer->h[i] + a * layer->inj[i] : layer->inj[i];
	}
}

/* gh += through the norm, gnorm +=, of one row */
static void norm_backward(size_t n, const struct operator_layer *layer, const double *h, const double *gu, double *gh)
{
	const double length = rms(n, h, layer->norm_eps);
	double along = 0;

	for (size_t i = 0; i < n; i++) {
		along += gu[i] * layer->norm[i] * h[i];
		layer->gnorm[i] += gu[i] * h[i] / length;
	}
	for (size_t i = 0; i < n; i++)
		gh[i] += gu[i] * layer->norm[i] / length - h[i] * along / ((double)n * length * length * length);
}

void operator_layer_backward(const struct operator_case *c, struct operator_layer *layer)
{
	const size_t n = c->channels, rows = c->batch * c->steps, cells = operator_cells(c);
	double *ginj = zeros(cells), *gy = zeros(cells), *gu = zeros(cells), *part = zeros(cells);
	double *g[3] = {zeros(cells), zeros(cells), zeros(cells)};
	const double *w[3] = {layer->wq, layer->shared ? layer->wq : layer->wk, layer->wv};
	const struct operator_case inside = unrounded(c);
	struct operator_read at;

	layer->gh = zeros(cells);
	layer->gnorm = zeros(n);
	layer->ge0 = zeros(n);
	layer->ge1 = zeros(n);
	layer->ga0 = zeros(n);
	layer->gwq = zeros(n * n);
	layer->gwk = zeros(n * n);
	layer->gwv = zeros(n * n);
	layer->gwout = zeros(n * n);
	for (size_t i = 0; i < cells; i++) {
		double a = layer->fusion == ROSA_PRE ? logistic(layer->a0[i % n]) : 1;

		ginj[i] = a * layer->gout[i];
		if (layer->fusion == ROSA_PRE) {
			layer->gh[i] += (1 - a) * layer->gout[i];
			layer->ga0[i % n] += a * (1 - a) * layer->gout[i] * (layer->inj[i] - layer->h[i]);
		}
	}
	multiply(rows, n, ginj, layer->wout, 0, gy);
	add_outer(rows, n, ginj, layer->y, layer->gwout);
	at = layer_read(layer);
	at.gy = gy;
	at.gq = g[0];
	at.gk = g[1];
	at.gv = g[2];
	operator_read_backward(&inside, &at);
	add_outer(rows, n, g[0], layer->u, layer->gwq);
	add_outer(rows, n, g[1], layer->u, layer->shared ? layer->gwq : layer->gwk);
	add_outer(rows, n, g[2], layer->u, layer->gwv);
	for (int i = 0; i < 3; i++) {
		multiply(rows, n, g[i], w[i], 0, part);
		for (size_t j = 0; j < cells; j++)
			gu[j] += part[j];
		free(g[i]);
	}
	for (size_t r = 0; r < rows; r++)
		norm_backward(n, layer, layer->h + r * n, gu + r * n, layer->gh + r * n);
	free(ginj);
	free(gy);
	free(gu);
	free(part);
}

void operator_layer_free(struct operator_layer *layer)
{
	double **const all[] = {&layer->u,   &layer->q,   &layer->k,   &layer->v,    &layer->y,   &layer->inj,
				&layer->out, &layer->gh,  &layer->ge0, &layer->ge1,  &layer->ga0, &layer->gnorm,
				&layer->gwq, &layer->gwk, &layer->gwv, &layer->gwout};

	for (size_t i = 0; i < COUNT(all); i++) {
		free(*all[i]);
		*all[i] = NULL;
	}
	free(layer->read);
	free(layer->flips);
	layer->read = layer->flips = NULL;
}

/* --------------------------------------------------------------------------------------- to and from the library -- */

double test_normal(uint64_t *state)
{
	double sum = 0;

	/* twelve uniform numbers have variance 1 together */
	for (int i = 0; i < 12; i++)
		sum += (double)test_random(state, 1u << 24) / (1u << 24) - 0.5;
	return sum;
}

double *random_rows(uint64_t *state, rosa_dtype dtype, size_t count, double scale)
{
	double *numbers = must_alloc(count * sizeof(*numbers));

	for (size_t i = 0; i < count; i++)
		numbers[i] = operator_round(dtype, scale * test_normal(state));
	return numbers;
}

double *rows_of_symbols(const struct operator_case *c, uint64_t *state, const uint16_t *symbols)
{
	const size_t bits = (size_t)c->options.bits;
	double *rows = must_alloc(operator_cells(c) * sizeof(*rows));

	for (size_t i = 0; i < operator_cells(c); i++) {
		size_t t = i / c->channels % c->steps, b = i / c->channels / c->steps, at = i % c->channels;
		unsigned symbol = symbols[(b * routes_of(c) + at / bits) * c->steps + t];
		double size = operator_round(c->dtype, 0.01 + fabs(test_normal(state)));

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
	narrow = must_alloc(count * sizeof(*narrow));
	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &wide[i], sizeof(bits));
		assert_int_equal(bits & 0xffff, 0); /* not a bfloat16 */
		narrow[i] = (uint16_t)(bits >> 16);
	}
	free(wide);
	return narrow;
}

float *to_floats(const double *numbers, size_t count)
{
	float *floats = must_alloc(count * sizeof(*floats));

	for (size_t i = 0; i < count; i++)
		floats[i] = (float)numbers[i];
	return floats;
}

int32_t *from_destinations(const void *kept, size_t steps, size_t count)
{
	int32_t *tau = must_alloc(count * sizeof(*tau));

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
	void *kept = must_alloc(count * sizeof(*tau));

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
	double *differences = must_alloc(count * sizeof(*differences));
	double difference, size = fmax(norm_of(want, count), least);

	for (size_t i = 0; i < count; i++)
		differences[i] = element(dtype, got, i) - want[i];
	difference = norm_of(differences, count);
	free(differences);
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
