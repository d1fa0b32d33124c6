/*
 * How long one step of decoding takes, when every new token has to be answered before the next one exists.
 *
 * The history is pushed many steps at a time, then the last steps one at a time, each timed alone. Thousands of single
 * steps that are not timed come between: only then do the caches hold what single steps leave in them. The symbols of a
 * step are gathered before the clock starts: in use they come from the packer already side by side.
 *
 * A made history is made piece by piece (bench_streams.c says why). Making symbols must not come between the timed
 * steps, or just before them, for it leaves cold caches. So these lie in the last piece behind thousands of others: a
 * rest too short for that is made together with the piece before it.
 */
#include "cli/bench.h"

#include "base/clock.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "retrieval/symbol_array.h"

#include <stdlib.h>

#define PUSH  ((size_t)4096)   /* steps pushed at a time */
#define PIECE ((size_t)131072) /* steps made at a time, but for the last */
#define WARM  ((size_t)2048)   /* single steps before the timed ones, but at most half of the history */

/* The last piece has all timed steps, and a push before them. */
static size_t last_piece(size_t singles)
{
	return PIECE + PUSH + WARM + singles;
}

size_t bench_decode_room(size_t steps, size_t singles)
{
	return steps < last_piece(singles) ? steps : last_piece(singles);
}

/* One step of all routes, side by side. */
struct step {
	void *query, *key;
	int32_t *tau;
};

static bool push_piece(const struct symbol_pair *pair, rosa_stream *stream, size_t steps, struct progress *progress,
		       rosa_error *why)
{
	for (size_t t = 0; t < steps; t += PUSH) {
		size_t some = steps - t < PUSH ? steps - t : PUSH;
		if (symbol_pair_push(pair, stream, t, some, NULL, NULL, NULL, why) != ROSA_OK)
			return false;
		if (progress_tick(progress, (t + some) * pair->routes, 0))
			return refuse(why, "interrupted");
	}
	progress_advance(progress, (uint64_t)steps * pair->routes);
	return true;
}

/* Pushes all but the last `singly` steps, and leaves the piece that ends with them in the pair; *last is its length. */
static bool push_history(const struct bench *bench, rosa_stream *stream, size_t singly, size_t *last, rosa_error *why)
{
	bool made = bench->kind != BENCH_FILE, done = true;
	struct progress progress;

	progress_begin(&progress, "filling", (bench->steps - singly) * bench->pair.routes);
	for (size_t left = bench->steps, number = 0; left > 0 && done; left -= *last, number++) {
		*last = !made || left <= last_piece(bench->singles) ? left : PIECE;
		size_t steps = *last == left ? left - singly : *last;
		done = (!made || bench_make(bench, number, *last, why)) &&
		       push_piece(&bench->pair, stream, steps, &progress, why);
	}
	progress_end(&progress);
	return done;
}

/* The last `singly` steps of the piece that lies in the pair, `end` being its length. The last of them are timed. */
static bool time_steps(const struct bench *bench, rosa_stream *stream, size_t end, size_t singly, struct step *step,
		       double *us, rosa_error *why)
{
	const struct symbol_pair *pair = &bench->pair;
	const size_t first = end - singly, warm = singly - bench->singles;

	for (size_t i = 0; i < singly; i++) {
		for (size_t r = 0; r < pair->routes; r++) {
			const size_t at = r * pair->steps + first + i;

			symbol_set(step->query, pair->bits, r, symbol_get(pair->query, pair->bits, at));
			symbol_set(step->key, pair->bits, r, symbol_get(pair->key, pair->bits, at));
		}
		uint64_t begin = clock_ns();
		if (rosa_stream_push(stream, 1, step->query, step->key, 1, step->tau, NULL, NULL, why) != ROSA_OK)
			return false;
		if (i >= warm)
			us[i - warm] = (double)(clock_ns() - begin) * 1e-3;
		if (interrupted())
			return refuse(why, "interrupted");
	}
	return true;
}

static void print(const struct bench *bench, double *us, const rosa_stream_info *info)
{
	const size_t singles = bench->singles;

	bench_sort(us, singles);
	const struct bench_row rows[] = {
	    {"steps_timed", "steps timed", NULL, NULL, (double)singles, 0},
	    {"step_us_median", "one step of all, median", NULL, "us", bench_quantile(us, singles, 0.5), 2},
	    {"step_us_p99", "  99th percentile", NULL, "us", bench_quantile(us, singles, 0.99), 2},
	    {"step_us_max", "  longest", NULL, "us", us[singles - 1], 2},
	    {"bytes_per_run", "memory per key run", NULL, "bytes", (double)info->bytes / (double)info->key_runs, 2},
	    {"runs_per_token", "key runs per token", NULL, NULL,
	     (double)info->key_runs / ((double)bench->pair.routes * (double)bench->steps), 4},
	    {"ordered_routes", "routes in the ordered index", NULL, NULL, (double)info->ordered, 0},
	    {.key = NULL},
	};

	bench_print(bench, rows);
}

static bool measure(const struct bench *bench, rosa_stream *stream, struct step *step, double *us, rosa_error *why)
{
	rosa_stream_info info = {.size = sizeof(info)};
	const size_t history = bench->steps - bench->singles, warm = history / 2 < WARM ? history / 2 : WARM;
	const size_t singly = bench->singles + warm;
	size_t last = 0;

	if (!push_history(bench, stream, singly, &last, why) || !time_steps(bench, stream, last, singly, step, us, why))
		return false;
	if (rosa_stream_describe(stream, &info, why) != ROSA_OK)
		return false;
	print(bench, us, &info);
	return true;
}

bool bench_decode(const struct bench *bench, rosa_error *why)
{
	rosa_options options = retrieval_options(&bench->retrieval);
	const size_t routes = bench->pair.routes, symbol = symbol_size(bench->pair.bits);
	rosa_stream *stream = NULL;
	struct step step = {0};
	double *us = NULL;
	bool done = (step.query = get_memory(routes, symbol, "a step's queries", why)) &&
		    (step.key = get_memory(routes, symbol, "a step's keys", why)) &&
		    (step.tau = get_memory(routes, sizeof(int32_t), "a step's destinations", why)) &&
		    (us = get_memory(bench->singles, sizeof(*us), "the times of steps", why));

	done = done && rosa_stream_new(&options, routes, &stream, why) == ROSA_OK &&
	       measure(bench, stream, &step, us, why);
	rosa_stream_free(stream);
	free(step.query);
	free(step.key);
	free(step.tau);
	free(us);
	return done;
}
