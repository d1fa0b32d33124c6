/* What the measurements of `bench retrieve` are given, and what they share. */
#pragma once

#include "cli/inputs.h"
#include "cli/report.h"

struct bench {
	struct retrieval_args retrieval;
	struct symbol_pair pair; /* all symbols, or those of one piece at a time */
	size_t steps;            /* of a route, in all */
	int kind;                /* of made streams (streams.h), BENCH_FILE: none */
	const char *stream;      /* its name, or "file" */
	int alphabet_bits;       /* made streams use only 2^alphabet_bits of the values; 0: all */
	uint64_t seed;
	uint64_t repeat;
	uint64_t singles; /* steps that bench_decode times one by one, at the end of the history */
	uint64_t chunk;   /* steps that bench_throughput pushes at a time; 0: all at once, without a stream */
	bool flips;       /* look up the counterfactuals too */
	bool json;
};

#define BENCH_FILE (-1)

/* Makes the first `steps` symbols of each row of the pair: the stream itself for piece 0, for others further streams of
 * the same kind. False with a reason after Ctrl-C. */
bool bench_make(const struct bench *bench, size_t piece, size_t steps, rosa_error *why);

/* All steps through a new stream of the CPU, `piece` at a time. *info, if not NULL, gets its description at the end. */
rosa_status bench_push(const struct bench *bench, size_t piece, int32_t *tau, int32_t *length, rosa_stream_info *info,
		       rosa_error *error);

/* Each measures, prints to stdout, and returns false with a reason if it could not. */
bool bench_throughput(const struct bench *bench, rosa_error *why);
bool bench_decode(const struct bench *bench, rosa_error *why);
bool bench_device(const struct bench *bench, rosa_error *why);

/* Steps that the pair must have room for when bench_decode is to make a history of `steps`, piece by piece, and to time
 * `singles` of them. */
size_t bench_decode_room(size_t steps, size_t singles);

/* One line of the result: as JSON if asked for, else "label   value unit". A list of them ends with a row whose key is
 * NULL. `text` NULL: the number is printed with `digits` after the point. */
struct bench_row {
	const char *key, *label, *text, *unit;
	double number;
	int digits;
};

/* Prints what was measured, and before it on what. */
void bench_print_rows(bool json, const struct bench_row *setting, const struct bench_row *rows);

/* The same for retrieval: prints what was measured, before it what it was measured on. */
void bench_print(const struct bench *bench, const struct bench_row *rows);

/* Sorts the samples; after that they can be asked for quantiles (0.5: the median). */
void bench_sort(double *samples, size_t count);
double bench_quantile(const double *sorted, size_t count, double share);
/* Sorts the samples and returns their median. */
double bench_median(double *samples, size_t count);
/* The median of how fast `a` is beside `b`, from times that belong together; 0 without memory. */
double bench_ratio(const double *a, const double *b, size_t count);
