/*
 * Whether this build computes what it should on this processor.
 *
 * A compiler, a BLAS or a virtual machine may be wrong where the developers' were right. So the two things that all
 * results rest on are computed once more, plainly: destinations by comparing every context with every other, and
 * products by adding in double.
 */
#include "cli/doctor_tests.h"

#include "backend/backend.h"
#include "base/draw.h"
#include "cli/made_weights.h"
#include "rosatune.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------- retrieval -- */

#define STEPS  ((size_t)400)
#define ROUTES ((size_t)3)

/* Runs of equal symbols: the symbol and the first step of each. */
struct runs {
	uint16_t symbols[STEPS];
	size_t starts[STEPS], count;
};

static void fold(const uint16_t *stream, struct runs *runs)
{
	runs->count = 0;
	for (size_t t = 0; t < STEPS; t++) {
		if (t > 0 && stream[t] == stream[t - 1])
			continue;
		runs->symbols[runs->count] = stream[t];
		runs->starts[runs->count++] = t;
	}
}

static size_t runs_until(const struct runs *runs, size_t t)
{
	size_t count = 0;

	while (count < runs->count && runs->starts[count] <= t)
		count++;
	return count;
}

/* The destination of step t by definition, with the policy "readable": of all key runs whose successor began before t,
 * the latest of those whose context agrees longest with the query's; its successor's first step. */
static int32_t search(const struct runs *query, const struct runs *key, size_t t)
{
	size_t now = runs_until(query, t), best = 0;
	int32_t found = -1;

	for (size_t e = 0; e + 1 < key->count && key->starts[e + 1] < t; e++) {
		size_t length = 0;
		while (length <= e && length < now && query->symbols[now - 1 - length] == key->symbols[e - length])
			length++;
		if (length > 0 && length >= best) {
			best = length;
			found = (int32_t)key->starts[e + 1];
		}
	}
	return found;
}

/* Few symbols, which often stay: matches of all lengths. */
static void make_stream(uint64_t seed, int bits, uint16_t *stream)
{
	for (size_t t = 0; t < STEPS; t++) {
		bool stays = t > 0 && draw(seed, 0, t) % 3 == 0;
		stream[t] = stays ? stream[t - 1] : (uint16_t)(draw(seed, 1, t) & ((1u << bits) - 1));
	}
}

static bool compare_retrieval(int bits, size_t *hits, char *detail, size_t size)
{
	static uint16_t query[ROUTES * STEPS], key[ROUTES * STEPS];
	static int32_t tau[ROUTES * STEPS];
	static struct runs query_runs, key_runs;
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_error err = {0};

	options.bits = bits;
	options.threads = 0;
	for (size_t r = 0; r < ROUTES; r++) {
		make_stream(2 * r + 1, bits > 4 ? 4 : bits, key + r * STEPS);
		/* The first route asks for itself, the others for something else. */
		make_stream(2 * r + (r > 0) + 1, bits > 4 ? 4 : bits, query + r * STEPS);
	}
	if (rosa_retrieve(&options, ROUTES, STEPS, query, key, tau, NULL, NULL, &err) != ROSA_OK) {
		snprintf(detail, size, "retrieval fails: %s", err.message);
		return false;
	}
	for (size_t r = 0; r < ROUTES; r++) {
		fold(query + r * STEPS, &query_runs);
		fold(key + r * STEPS, &key_runs);
		for (size_t t = 0; t < STEPS; t++) {
			int32_t expected = search(&query_runs, &key_runs, t), found = tau[r * STEPS + t];
			*hits += expected >= 0;
			if (found == expected)
				continue;
			snprintf(detail, size, "%d bits, route %zu, step %zu: found %d, brute force finds %d", bits, r,
				 t, (int)found, (int)expected);
			return false;
		}
	}
	return true;
}

bool doctor_test_retrieval(char *detail, size_t size)
{
	static const int widths[] = {1, 2, 4, 8, 16};
	size_t hits = 0, count = sizeof(widths) / sizeof(widths[0]);

	for (size_t i = 0; i < count; i++) {
		if (!compare_retrieval(widths[i], &hits, detail, size))
			return false;
	}
	snprintf(detail, size, "%zu destinations are those of a search by brute force", count * ROUTES * STEPS);
	return hits > 0;
}

/* ----------------------------------------------------------------------------------------------------- products -- */

#define ROWS      ((size_t)96)
#define COLUMNS   ((size_t)256)
#define PRODUCTS  ((size_t)40) /* rows of x: enough for the way many tokens are multiplied */
#define TOLERANCE 1e-4         /* of the sum of the terms' sizes: float32 has 24 bits */

/* The greatest error of a product, relative to the sum of its terms' sizes. */
static double greatest_error(const float *weight, size_t steps, const float *x, const float *y)
{
	double greatest = 0;

	for (size_t t = 0; t < steps; t++) {
		for (size_t r = 0; r < ROWS; r++) {
			double sum = 0, sizes = 0;
			for (size_t c = 0; c < COLUMNS; c++) {
				double term = (double)x[t * COLUMNS + c] * weight[r * COLUMNS + c];
				sum += term;
				sizes += fabs(term);
			}
			double error = fabs(sum - y[t * ROWS + r]) / (sizes + 1e-30);
			greatest = error > greatest || isnan(error) ? error : greatest;
		}
	}
	return greatest;
}

static bool compare_products(struct backend *backend, const struct backend_ops *ops, enum format format, char *detail,
			     size_t size)
{
	static uint64_t data[ROWS * COLUMNS * sizeof(float) / sizeof(uint64_t)];
	static float wide[ROWS * COLUMNS], x[PRODUCTS * COLUMNS], y[PRODUCTS * ROWS];
	static const size_t counts[] = {1, PRODUCTS};
	size_t bytes = format_row_bytes(format, COLUMNS);
	struct matrix weight = {0};
	rosa_error err = {0};

	made_weights(7, (uint8_t *)data, ROWS * bytes);
	format_widen(format, data, ROWS * COLUMNS, wide);
	for (size_t i = 0; i < PRODUCTS * COLUMNS; i++)
		x[i] = (float)draw(9, 1, i) / (float)(1u << 31) - 1;
	if (ops->matrix_new(backend, format, ROWS, COLUMNS, data, &weight, &err) != ROSA_OK) {
		snprintf(detail, size, "%s", err.message);
		return false;
	}
	bool good = true;
	for (size_t i = 0; i < 2 && good; i++) {
		const struct product product = {&weight, y, false};
		ops->multiply(backend, counts[i], x, 1, &product);
		double error = greatest_error(wide, counts[i], x, y);
		good = error <= TOLERANCE;
		if (!good)
			snprintf(detail, size, "products of %zu rows by a weight in %s are wrong by %g", counts[i],
				 format_info[format].name, error);
	}
	ops->matrix_free(backend, &weight);
	return good;
}

bool doctor_test_products(char *detail, size_t size)
{
	rosa_workers *workers = NULL;
	struct backend *backend = NULL;
	rosa_error err = {0};
	bool good = true;

	if (rosa_workers_new(0, NULL, &workers, &err) != ROSA_OK ||
	    cpu_backend_new(workers, &backend, &err) != ROSA_OK) {
		rosa_workers_free(workers);
		snprintf(detail, size, "%s", err.message);
		return false;
	}
	for (int format = 0; format < FORMAT_COUNT && good; format++)
		good = compare_products(backend, backend->ops, (enum format)format, detail, size);
	cpu_backend_free(backend);
	rosa_workers_free(workers);
	if (good)
		snprintf(detail, size, "products in %d weight formats agree with sums in double", FORMAT_COUNT);
	return good;
}
