/*
 * rosatune bench products: how fast weights of each format are multiplied, beside a BLAS.
 *
 * Both take turns on the same numbers, so that whatever else the machine does meanwhile is in both medians, and their
 * ratio means something on a machine that is not quiet. A weight that is used again and again stays in the caches,
 * which the weights of a model do not; with --copies it lies in memory several times, and each product takes the next.
 */
#include "cli/commands.h"

#include "base/clock.h"
#include "cli/bench.h"
#include "base/draw.h"
#include "backend/gemm.h"
#include "cli/interrupt.h"
#include "cli/made_weights.h"
#include "backend/multiply.h"
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>

#define ALL ((int)FORMAT_COUNT)

struct job {
	int format;
	uint64_t rows, columns, steps, copies, threads, repeat;
	bool json;

	struct pool *pool;
	struct multiply_scratch *scratch;
	float *x, *y;          /* [steps][columns], [steps][rows] */
	uint8_t *data;         /* [copies], of the format */
	float *wide;           /* [copies], as float32 */
	double *ours, *theirs; /* [repeat], nanoseconds */
};

/* What a format was measured at. */
struct result {
	char key[3][32], label[3][32];
};

static enum args_result parse(struct job *job, int count, char **words)
{
	const char *formats[FORMAT_COUNT + 2];
	struct arg options[] = {
	    OPTION_CHOICE("format", &job->format, "F", formats, "of the weight: F32, Q4_1, Q6_K, ... (default all)"),
	    OPTION_SIZE("rows", &job->rows, "N", 1, 1u << 24,
			"of the weight: numbers that a product gives (default 1536)"),
	    OPTION_SIZE("columns", &job->columns, "N", 1, 1u << 20,
			"of the weight: numbers that a product takes (default 512)"),
	    OPTION_SIZE("steps", &job->steps, "N", 1, 1u << 20, "tokens multiplied at once (default 1)"),
	    OPTION_NUMBER("copies", &job->copies, "N", 1, 1000000,
			  "weights that take turns; many: they come from memory (default 1)"),
	    OPTION_NUMBER("threads", &job->threads, "N", 0, 1024, "worker threads (default 1; 0: one per processor)"),
	    OPTION_NUMBER("repeat", &job->repeat, "R", 1, 1000000, "timed products of each kind (default 50)"),
	    OPTION_FLAG("json", &job->json, "print JSON"),
	};
	struct args args = {
	    .command = "bench products",
	    .usage = "[--format F] [--rows N] [--columns N] [--steps N] [options]",
	    .summary = "Measures products of activations by weights, in each format, beside a BLAS in float32.",
	    ARGS_OPTIONS(options),
	    .notes = "Formats with blocks of 32 or 256 numbers are left out where the columns are no multiple of that.",
	};

	for (int i = 0; i < ALL; i++)
		formats[i] = format_info[i].name;
	formats[ALL] = "all";
	formats[ALL + 1] = NULL;
	return args_parse(&args, count, words);
}

/* ----------------------------------------------------------------------------------------------------- measuring -- */

static bool make_weights(struct job *job, enum format format, rosa_error *why)
{
	const size_t bytes = format_row_bytes(format, job->columns), rows = job->rows * job->copies;

	free(job->data);
	free(job->wide);
	job->wide = NULL;
	job->data = get_memory(rows, bytes, "the weights", why);
	if (!job->data)
		return false;
	job->wide = get_memory(rows, job->columns * sizeof(float), "the weights as float32", why);
	if (!job->wide)
		return false;
	made_weights(1, job->data, rows * bytes);
	format_widen(format, job->data, rows * job->columns, job->wide);
	return true;
}

static double time_ours(const struct job *job, enum format format, size_t copy)
{
	const struct matrix weight = {format, job->rows, job->columns,
				      job->data + copy * job->rows * format_row_bytes(format, job->columns)};
	const struct product product = {&weight, job->y, false};
	const uint64_t begin = clock_ns();

	multiply(job->pool, job->scratch, job->steps, job->x, 1, &product);
	return (double)(clock_ns() - begin);
}

static double time_theirs(const struct job *job, size_t copy)
{
	const float *weight = job->wide + copy * job->rows * job->columns;
	const uint64_t begin = clock_ns();

	gemm_parallel(job->pool, false, true, job->steps, job->rows, job->columns, 1, job->x, job->columns, weight,
		      job->columns, 0, job->y, job->rows);
	return (double)(clock_ns() - begin);
}

static bool measure(struct job *job, enum format format, rosa_error *why)
{
	if (!make_weights(job, format, why))
		return false;
	for (size_t i = 0; i < job->repeat; i++) {
		const size_t copy = i % job->copies;

		if (i == 0) {
			/* the first of each finds nothing in its place */
			time_ours(job, format, copy);
			time_theirs(job, copy);
		}
		job->ours[i] = time_ours(job, format, copy);
		job->theirs[i] = time_theirs(job, copy);
		if (interrupted())
			return refuse(why, "interrupted");
	}
	bench_sort(job->ours, job->repeat);
	bench_sort(job->theirs, job->repeat);
	return true;
}

/* ------------------------------------------------------------------------------------------------------ printing -- */

static void name_row(struct result *result, int i, enum format format, const char *key, const char *label)
{
	const char *name = format_info[format].name;

	snprintf(result->key[i], sizeof(result->key[i]), "%s_%s", name, key);
	snprintf(result->label[i], sizeof(result->label[i]), "%s%s%s", i ? "  " : name, i ? "" : ", ", label);
}

static void add_rows(const struct job *job, enum format format, struct result *result, struct bench_row *rows)
{
	const double ours = bench_quantile(job->ours, job->repeat, 0.5),
		     theirs = bench_quantile(job->theirs, job->repeat, 0.5);
	const double flop = 2.0 * (double)job->rows * (double)job->columns * (double)job->steps;
	const double bytes = (double)job->rows * (double)format_row_bytes(format, job->columns);

	name_row(result, 0, format, "gflops", "arithmetic");
	name_row(result, 1, format, "gbs", "weights read");
	name_row(result, 2, format, "ratio", "speed beside the BLAS");
	rows[0] = (struct bench_row){
	    .key = result->key[0], .label = result->label[0], .unit = "GFLOP/s", .number = flop / ours, .digits = 1};
	rows[1] = (struct bench_row){
	    .key = result->key[1], .label = result->label[1], .unit = "GB/s", .number = bytes / ours, .digits = 2};
	rows[2] =
	    (struct bench_row){.key = result->key[2], .label = result->label[2], .number = theirs / ours, .digits = 2};
}

static void print(const struct job *job, const struct bench_row *rows)
{
	const struct bench_row setting[] = {
	    {.key = "version", .label = "version", .text = rosa_version()},
	    {.key = "isa", .label = "instruction set", .text = rosa_isa_name(multiply_isa_best())},
	    {.key = "blas", .label = "BLAS", .text = rosa_blas()},
	    {.key = "rows", .label = "rows", .number = (double)job->rows},
	    {.key = "columns", .label = "columns", .number = (double)job->columns},
	    {.key = "steps", .label = "steps", .number = (double)job->steps},
	    {.key = "copies", .label = "copies", .number = (double)job->copies},
	    {.key = "threads", .label = "threads", .number = (double)job->threads},
	    {.key = "repeat", .label = "products timed", .number = (double)job->repeat},
	    {.key = NULL},
	};

	bench_print_rows(job->json, setting, rows);
}

/* ---------------------------------------------------------------------------------------------------------- work -- */

static bool prepare(struct job *job, rosa_error *why)
{
	const rosa_allocator plain = {NULL, NULL};

	job->threads = pool_threads((int)job->threads);
	job->pool = pool_new(&plain, (unsigned)job->threads);
	if (!job->pool)
		return refuse(why, "no memory for %u threads", (unsigned)job->threads);
	if (multiply_scratch_new((unsigned)job->threads, &job->scratch, why) != ROSA_OK)
		return false;
	job->x = get_memory(job->steps, job->columns * sizeof(float), "the activations", why);
	job->y = job->x ? get_memory(job->steps, job->rows * sizeof(float), "the results", why) : NULL;
	job->ours = job->y ? get_memory(job->repeat, sizeof(double), "the times", why) : NULL;
	job->theirs = job->ours ? get_memory(job->repeat, sizeof(double), "the times", why) : NULL;
	if (!job->theirs)
		return false;
	for (size_t i = 0; i < job->steps * job->columns; i++)
		job->x[i] = (float)draw(2, 0, i) * 0x1p-31f - 1;
	return true;
}

static bool run(struct job *job, rosa_error *why)
{
	struct result results[FORMAT_COUNT];
	struct bench_row rows[3 * FORMAT_COUNT + 1];
	size_t used = 0;

	if (!prepare(job, why))
		return false;
	for (int format = 0; format < ALL; format++) {
		if ((job->format != ALL && job->format != format) || job->columns % format_info[format].numbers)
			continue;
		if (!measure(job, (enum format)format, why))
			return false;
		add_rows(job, (enum format)format, &results[format], rows + used);
		used += 3;
	}
	rows[used] = (struct bench_row){.key = NULL};
	print(job, rows);
	return true;
}

static void clean(struct job *job)
{
	const rosa_allocator plain = {NULL, NULL};

	multiply_scratch_free(job->scratch);
	pool_free(job->pool, &plain);
	free(job->x);
	free(job->y);
	free(job->data);
	free(job->wide);
	free(job->ours);
	free(job->theirs);
}

int bench_products_command(int count, char **words)
{
	struct job job = {
	    .format = ALL, .rows = 1536, .columns = 512, .steps = 1, .copies = 1, .threads = 1, .repeat = 50};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (job.format != ALL && job.columns % format_info[job.format].numbers) {
		complain(
		    "bench products", "--columns %llu: rows of %s are blocks of %zu numbers; give a multiple of that",
		    (unsigned long long)job.columns, format_info[job.format].name, format_info[job.format].numbers);
		return MISUSED;
	}
	interrupt_watch();
	bool done = run(&job, &why);
	clean(&job);
	return command_end("bench products", done, &why);
}
