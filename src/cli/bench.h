/* What the two measurements of `bench retrieve` are given. */
#ifndef ROSATUNE_BENCH_H
#define ROSATUNE_BENCH_H

#include "inputs.h"
#include "report.h"

struct bench {
	struct retrieval_args retrieval;
	struct symbol_pair pair;
	const char *stream; /* its kind, or "file" */
	uint64_t seed;
	uint64_t repeat;
	bool flips; /* look up the counterfactuals too */
	bool json;
};

/* Each measures, prints to stdout, and returns false with a reason if it could not. */
bool bench_throughput(const struct bench *bench, struct failure *why);
bool bench_decode(const struct bench *bench, struct failure *why);

/* Steps that bench_decode times one by one, at the end of the history. */
#define BENCH_DECODE_STEPS 256

/* One line of the result: as JSON if asked for, else "label   value unit". A list of them ends with a row whose key is
 * NULL. `text` NULL: the number is printed with `digits` after the point. */
struct bench_row {
	const char *key, *label, *text, *unit;
	double number;
	int digits;
};

/* Prints what was measured, before it what it was measured on. */
void bench_print(const struct bench *bench, const struct bench_row *rows);

/* Sorts the samples; after that they can be asked for quantiles (0.5: the median). */
void bench_sort(double *samples, size_t count);
double bench_quantile(const double *sorted, size_t count, double share);

#endif
