/*
 * How long all tokens take: all at once, as in training, or through a stream in pieces of a fixed number of steps, as
 * in reading a prompt.
 *
 * One run is not timed: it brings code and data into the caches and makes the allocator ask the system for memory.
 * Memory per run is taken from a stream that was fed in pieces, for that is the state kept for decoding, growth and
 * slack included; it is not part of the time.
 */
#include "cli/bench.h"

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "retrieval/symbol_array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)1024) /* steps at a time when the memory is measured */

struct result {
	double *ns;          /* [repeat], wall time of one run over everything */
	double processor_ns; /* processor time of all threads, of the run that took least: other programs do not show */
	int32_t *tau, *length;
	rosa_stream_info info; /* of the stream whose memory was measured */
};

rosa_status bench_push(const struct bench *bench, size_t piece, int32_t *tau, int32_t *length, rosa_stream_info *info,
		       rosa_error *error)
{
	const struct symbol_pair *pair = &bench->pair;
	const rosa_options options = retrieval_options(&bench->retrieval);
	rosa_stream *stream = NULL;
	rosa_status status = rosa_stream_new(&options, pair->routes, &stream, error);

	for (size_t t = 0; t < pair->steps && status == ROSA_OK; t += piece) {
		size_t steps = pair->steps - t < piece ? pair->steps - t : piece;

		status = interrupted() ? ROSA_ECANCELLED
				       : symbol_pair_push(pair, stream, t, steps, tau, length, NULL, error);
	}
	if (status == ROSA_OK && info)
		status = rosa_stream_describe(stream, info, error);
	rosa_stream_free(stream);
	return status;
}

/* `length` is only wanted from the run that is not timed. */
static bool time_once(const struct bench *bench, struct result *result, int32_t *length, struct progress *progress,
		      double *ns, rosa_error *why)
{
	const struct symbol_pair *pair = &bench->pair;
	rosa_options options = retrieval_options(&bench->retrieval);
	rosa_flips flips = {0};

	options.progress = progress_tick;
	options.progress_context = progress;
	uint64_t begin = clock_ns();
	uint64_t processor = clock_processor_ns();
	rosa_status status = bench->chunk ? bench_push(bench, bench->chunk, result->tau, length, NULL, why)
					  : rosa_retrieve(&options, pair->routes, pair->steps, pair->query, pair->key,
							  result->tau, length, bench->flips ? &flips : NULL, why);
	*ns = (double)(clock_ns() - begin);
	processor = clock_processor_ns() - processor;
	if (!result->processor_ns || (double)processor < result->processor_ns)
		result->processor_ns = (double)processor;
	rosa_flips_free(&flips);
	progress_advance(progress, (uint64_t)pair->routes * pair->steps);
	return status == ROSA_OK;
}

static bool time_all(const struct bench *bench, struct result *result, rosa_error *why)
{
	struct progress progress;
	double warm_up;
	bool done;

	progress_begin(&progress, "timing", (bench->repeat + 1) * bench->pair.routes * bench->pair.steps);
	done = time_once(bench, result, result->length, &progress, &warm_up, why);
	for (uint64_t i = 0; i < bench->repeat && done; i++)
		done = time_once(bench, result, NULL, &progress, &result->ns[i], why);
	progress_end(&progress);
	return done;
}

static bool measure_memory(const struct bench *bench, struct result *result, rosa_error *why)
{
	result->info.size = sizeof(result->info);
	return bench_push(bench, bench->chunk ? bench->chunk : PIECE, NULL, NULL, &result->info, why) == ROSA_OK;
}

static void print(const struct bench *bench, struct result *result)
{
	size_t cells = bench->pair.routes * bench->pair.steps, hits = 0, repeat = bench->repeat;
	const rosa_stream_info *info = &result->info;
	double all = (double)cells, matched = 0;

	for (size_t i = 0; i < cells; i++) {
		hits += result->tau[i] >= 0;
		matched += result->length[i];
	}
	bench_sort(result->ns, repeat);
	double ns = bench_quantile(result->ns, repeat, 0.5) / all;
	double tables = bench->flips ? (double)info->query_runs * (double)bench->retrieval.bits : 0;
	double lookups = 1 + tables / all; /* one destination a step, and a table a query run */
	const struct bench_row rows[] = {
	    {"repeat", "repeats", NULL, NULL, (double)repeat, 0},
	    {"chunk", "steps at a time (0: all)", NULL, NULL, (double)bench->chunk, 0},
	    {"flips", "counterfactual tables", NULL, NULL, bench->flips, 0},
	    {"ns_per_token", "time per token, median", NULL, "ns", ns, 2},
	    {"ns_per_token_min", "  least", NULL, "ns", result->ns[0] / all, 2},
	    {"ns_per_token_max", "  most", NULL, "ns", result->ns[repeat - 1] / all, 2},
	    {"processor_ns_per_token_min", "  least processor time", NULL, "ns", result->processor_ns / all, 2},
	    {"lookups_per_token", "look-ups per token", NULL, NULL, lookups, 3},
	    {"ns_per_lookup", "time per look-up", NULL, "ns", ns / lookups, 2},
	    {"bytes_per_run", "memory per key run", NULL, "bytes", (double)info->bytes / (double)info->key_runs, 2},
	    {"runs_per_token", "key runs per token", NULL, NULL, (double)info->key_runs / all, 4},
	    {"ordered_routes", "routes in the ordered index", NULL, NULL, (double)info->ordered, 0},
	    {"hit_rate", "share of hits", NULL, NULL, (double)hits / all, 4},
	    {"mean_match", "mean match, of hits", NULL, "runs", hits ? matched / (double)hits : 0, 2},
	    {.key = NULL},
	};

	bench_print(bench, rows);
}

bool bench_throughput(const struct bench *bench, rosa_error *why)
{
	size_t cells = bench->pair.routes * bench->pair.steps;
	struct result result = {0};
	bool done = (result.ns = get_memory(bench->repeat, sizeof(double), "the times", why)) &&
		    (result.tau = get_memory(cells, sizeof(int32_t), "the destinations", why)) &&
		    (result.length = get_memory(cells, sizeof(int32_t), "the match lengths", why)) &&
		    time_all(bench, &result, why) && measure_memory(bench, &result, why);

	if (done)
		print(bench, &result);
	free(result.ns);
	free(result.tau);
	free(result.length);
	return done;
}
