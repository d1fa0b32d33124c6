/*
 * How long retrieval takes on a CUDA device, beside the CPU on the same symbols in the same run: all at once, or
 * through streams in pieces.
 *
 * The device's time is that of the search alone, by its own clock: symbols are there already where a network computes
 * them. That of a stream is the sum over its pieces, with the memory that it takes as it grows. The time with copies
 * from and to ordinary memory is given too. Both sides make one run that is not timed, and their destinations are
 * compared: a speed of wrong answers is worth nothing.
 */
#include "cli/bench.h"

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "retrieval/symbol_array.h"

#include <stdlib.h>
#include <string.h>

struct sides {
	rosa_cuda *cuda;
	rosa_cuda_info info;
	double *device_ms, *copies_ms, *cpu_ms; /* [repeat] */
	int32_t *tau, *cpu_tau, *table;
	rosa_stream_info stream; /* in pieces: of the stream at its end */
};

/* All steps through a new stream on the device. *search gets the sum of its pieces. */
static rosa_status push_to_device(const struct bench *bench, struct sides *sides, double *search, rosa_error *error)
{
	const rosa_options options = retrieval_options(&bench->retrieval);
	const struct symbol_pair *pair = &bench->pair;
	rosa_cuda_stream *stream = NULL;
	rosa_status status = rosa_cuda_stream_new(sides->cuda, &options, pair->routes, &stream, error);

	*search = 0;
	for (size_t t = 0; t < pair->steps && !status && !interrupted(); t += bench->chunk) {
		size_t steps = pair->steps - t < bench->chunk ? pair->steps - t : bench->chunk;

		status = rosa_cuda_stream_push(stream, steps, symbols_from(pair->query, pair->bits, t),
					       symbols_from(pair->key, pair->bits, t), pair->steps, sides->tau + t,
					       NULL, error);
		if (!status)
			status = rosa_cuda_describe(sides->cuda, &sides->info, error);
		*search += sides->info.milliseconds;
	}
	sides->stream.size = sizeof(sides->stream);
	if (!status)
		status = rosa_cuda_stream_describe(stream, &sides->stream, error);
	rosa_cuda_stream_free(stream);
	return status;
}

static bool time_device(const struct bench *bench, struct sides *sides, double *search, double *all, rosa_error *why)
{
	const rosa_options options = retrieval_options(&bench->retrieval);
	const struct symbol_pair *pair = &bench->pair;
	double begin = clock_now();
	rosa_status status;

	sides->info.size = sizeof(sides->info);
	if (bench->chunk) {
		status = push_to_device(bench, sides, search, why);
	} else {
		status = rosa_cuda_retrieve(sides->cuda, &options, pair->routes, pair->steps, pair->query, pair->key,
					    sides->tau, NULL, sides->table, why);
		if (!status)
			status = rosa_cuda_describe(sides->cuda, &sides->info, why);
		*search = sides->info.milliseconds;
	}
	if (status)
		return false;
	*all = (clock_now() - begin) * 1e3;
	return !interrupted() || refuse(why, "interrupted");
}

static bool time_cpu(const struct bench *bench, struct sides *sides, double *all, rosa_error *why)
{
	const rosa_options options = retrieval_options(&bench->retrieval);
	const struct symbol_pair *pair = &bench->pair;
	rosa_flips flips = {0};
	double begin = clock_now();
	rosa_status status = bench->chunk ? bench_push(bench, bench->chunk, sides->cpu_tau, NULL, NULL, why)
					  : rosa_retrieve(&options, pair->routes, pair->steps, pair->query, pair->key,
							  sides->cpu_tau, NULL, bench->flips ? &flips : NULL, why);

	*all = (clock_now() - begin) * 1e3;
	rosa_flips_free(&flips);
	if (status)
		return false;
	return !interrupted() || refuse(why, "interrupted");
}

static bool time_all(const struct bench *bench, struct sides *sides, rosa_error *why)
{
	double warm_up, other;
	bool done = time_device(bench, sides, &warm_up, &other, why) && time_cpu(bench, sides, &warm_up, why);

	for (uint64_t i = 0; i < bench->repeat && done; i++)
		done = time_device(bench, sides, &sides->device_ms[i], &sides->copies_ms[i], why) &&
		       time_cpu(bench, sides, &sides->cpu_ms[i], why);
	return done;
}

static void print(const struct bench *bench, struct sides *sides)
{
	const size_t repeat = bench->repeat, cells = bench->pair.routes * bench->pair.steps;
	const bool equal = memcmp(sides->tau, sides->cpu_tau, cells * sizeof(int32_t)) == 0;

	bench_sort(sides->device_ms, repeat);
	bench_sort(sides->copies_ms, repeat);
	bench_sort(sides->cpu_ms, repeat);
	double device = bench_quantile(sides->device_ms, repeat, 0.5), cpu = bench_quantile(sides->cpu_ms, repeat, 0.5);
	const struct bench_row rows[] = {
	    {.key = "device", .label = "device", .text = sides->info.name},
	    {.key = "repeat", .label = "repeats", .number = (double)repeat},
	    {.key = "chunk", .label = "steps at a time (0: all)", .number = (double)bench->chunk},
	    {.key = "flips", .label = "counterfactual tables", .number = bench->flips},
	    {.key = "device_ms", .label = "device, search, median", .unit = "ms", .number = device, .digits = 3},
	    {.key = "device_ms_min", .label = "  least", .unit = "ms", .number = sides->device_ms[0], .digits = 3},
	    {.key = "device_ns_per_token",
	     .label = "  per token",
	     .unit = "ns",
	     .number = device * 1e6 / (double)cells,
	     .digits = 4},
	    {.key = "device_copies_ms",
	     .label = "  with copies, median",
	     .unit = "ms",
	     .number = bench_quantile(sides->copies_ms, repeat, 0.5),
	     .digits = 3},
	    {.key = "handed_routes", .label = "  routes left to the CPU", .number = (double)sides->info.handed},
	    {.key = "stream_bytes_per_token",
	     .label = "  state, per token and route",
	     .unit = "bytes",
	     .number = (double)sides->stream.bytes / (double)cells,
	     .digits = 2},
	    {.key = "cpu_ms", .label = "CPU, median", .unit = "ms", .number = cpu, .digits = 3},
	    {.key = "cpu_ms_min", .label = "  least", .unit = "ms", .number = sides->cpu_ms[0], .digits = 3},
	    {.key = "ratio", .label = "CPU / device, medians", .number = cpu / device, .digits = 2},
	    {.key = "equal", .label = "destinations equal", .number = equal},
	    {.key = NULL},
	};

	bench_print(bench, rows);
}

bool bench_device(const struct bench *bench, rosa_error *why)
{
	const size_t cells = bench->pair.routes * bench->pair.steps, repeat = bench->repeat;
	struct sides sides = {0};
	bool done = rosa_cuda_open(0, NULL, &sides.cuda, why) == ROSA_OK &&
		    (sides.device_ms = get_memory(repeat, sizeof(double), "the times", why)) &&
		    (sides.copies_ms = get_memory(repeat, sizeof(double), "the times", why)) &&
		    (sides.cpu_ms = get_memory(repeat, sizeof(double), "the times", why)) &&
		    (sides.tau = get_memory(cells, sizeof(int32_t), "the destinations", why)) &&
		    (sides.cpu_tau = get_memory(cells, sizeof(int32_t), "the destinations", why)) &&
		    (!bench->flips ||
		     (sides.table = get_memory(cells, bench->retrieval.bits * sizeof(int32_t), "the tables", why))) &&
		    time_all(bench, &sides, why);

	if (done)
		print(bench, &sides);
	rosa_cuda_close(sides.cuda);
	free(sides.device_ms);
	free(sides.copies_ms);
	free(sides.cpu_ms);
	free(sides.tau);
	free(sides.cpu_tau);
	free(sides.table);
	return done;
}
