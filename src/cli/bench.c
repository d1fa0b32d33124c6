/*
 * Numbers and their printing, the same for both measurements.
 *
 * Medians are reported, not means: on a machine that does other things too the slow outliers say nothing about the
 * code. A result always carries what it was measured on, for a number without it cannot be compared with anything.
 */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(double *samples, size_t count)
{
	bench_sort(samples, count);
	return bench_quantile(samples, count, 0.5);
}

double bench_ratio(const double *a, const double *b, size_t count)
{
	double *ratios = malloc(count * sizeof(*ratios)), median = 0;

	for (size_t i = 0; ratios && i < count; i++)
		ratios[i] = b[i] / a[i];
	if (ratios)
		median = bench_median(ratios, count);
	free(ratios);
	return median;
}

void bench_sort(double *samples, size_t count)
{
	qsort(samples, count, sizeof(double), compare);
}

double bench_quantile(const double *sorted, size_t count, double share)
{
	if (share == 0.5 && count % 2 == 0)
		return (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
	size_t rank = (size_t)ceil(share * (double)count);

	return sorted[rank ? rank - 1 : 0];
}

static void print_json(const struct bench_row *rows, bool *first)
{
	for (; rows->key; rows++) {
		printf("%s\n  \"%s\": ", *first ? "{" : ",", rows->key);
		if (rows->text)
			printf("\"%s\"", rows->text);
		else
			printf("%.*f", rows->digits, rows->number);
		*first = false;
	}
}

static void print_table(const struct bench_row *rows)
{
	for (; rows->key; rows++) {
		printf("  %-28s ", rows->label);
		if (rows->text)
			printf("%12s", rows->text);
		else
			printf("%12.*f", rows->digits, rows->number);
		printf("%s%s\n", rows->unit ? " " : "", rows->unit ? rows->unit : "");
	}
}

void bench_print_rows(bool json, const struct bench_row *setting, const struct bench_row *rows)
{
	bool first = true;

	if (!json) {
		print_table(setting);
		puts("");
		print_table(rows);
		return;
	}
	print_json(setting, &first);
	print_json(rows, &first);
	puts("\n}");
}

void bench_print(const struct bench *bench, const struct bench_row *rows)
{
	const struct retrieval_args *retrieval = &bench->retrieval;
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "isa", .label = "instruction set", .text = rosa_pack_isa()},
	    {.key = "stream", .label = "stream", .text = bench->stream},
	    {.key = "seed", .label = "seed", .number = (double)bench->seed},
	    {.key = "routes", .label = "routes", .number = (double)bench->pair.routes},
	    {.key = "tokens", .label = "tokens per route", .number = (double)bench->steps},
	    {.key = "bits", .label = "bits per symbol", .number = (double)retrieval->bits},
	    {.key = "delay", .label = "delay", .unit = "steps", .number = (double)retrieval->delay},
	    {.key = "alphabet",
	     .label = "different symbols (0: any)",
	     .number = bench->alphabet_bits ? (double)(1u << bench->alphabet_bits) : 0},
	    {.key = "policy", .label = "policy", .text = policy_names[retrieval->policy]},
	    {.key = "fold", .label = "folded into runs", .number = !retrieval->no_fold},
	    {.key = "max_match", .label = "longest match (0: any)", .number = (double)retrieval->max_match},
	    {.key = "threads", .label = "threads (0: all)", .number = (double)retrieval->threads},
	    {.key = NULL},
	};

	bench_print_rows(bench->json, setting, rows);
}
