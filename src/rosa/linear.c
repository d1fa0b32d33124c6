/*
 * The rule `linear`: all candidates of a step have the same weight.
 *
 * With theta_t = dL/dy_t (e1 - e0), D_td = theta_t . P[d] and n_t candidates d < t, the gradient of a step's symbol is
 *
 *     q_t:     s'(q_t) / n_t * (N_t - mean_t K_t)
 *     k_p(d):  s'(k_p(d)) * (E_d - sum over t > d of mean_t Y_t)
 *     N_t = sum over d of D_td sgn(k_p(d)),  K_t = sum over d of sgn(k_p(d))
 *     E_d = sum over t > d of D_td Y_t,  Y_t = sgn(q_t) / n_t
 *
 * where mean_t = sum over d of D_td, divided by n_t. N_t, the sum in mean_t, and E_d are products of the matrix D below
 * its diagonal (or above it, transposed) with a matrix of a few columns per route. D is itself a product and need not
 * be stored: a step multiplies theta_t by the running state S = sum over d < t of P[d] x_d^T, and then adds its own
 * P[t] x_t^T. This is linear in the number of steps. The same code runs backwards in time for the keys, with theta and
 * P exchanged.
 *
 * Step by step these would be products of a matrix and a vector, which are bound by memory. So steps are taken in
 * chunks: the contribution of earlier chunks is theta S for a whole chunk, that of the chunk itself is its own part of
 * D times its columns, and the state is updated by P^T X. With credit `all` the parts of D are computed once and serve
 * all routes, and a block of routes with adjacent columns is the unit of work. With credit `route` every route has its
 * own D over its few channels; then a state fits into the L1 cache and steps are taken one by one.
 *
 * The state has as many rows as there are channels, C. Over T steps and both directions it costs 8 T C^2 operations,
 * where computing and using D below the diagonal directly costs 3 T^2 C. So sequences of up to 8/3 C steps do without
 * the state and store that half of D instead. The choice depends on the shape alone.
 *
 * Memory beyond the arguments, for C channels in float32: per step 8 C bytes for theta and P, 4 * CHUNK bytes for parts
 * of D (in short sequences up to 16/3 C) and 4 bytes per route for symbols, all for the batch entries in work; and per
 * worker a block's gradients, runs and, in short sequences, columns, some 1200 bytes per step. That is two to four
 * times one array of activations in float32.
 */
#include "rosa/candidates.h"
#include "backend/gemm.h"
#include "base/pool.h"
#include "rosa/weighing.h"

#define CHUNK 128
#define LANES 4 /* columns of a route's state that are processed together */

/* Scratch memory of one worker for a block of routes. */
struct bench {
	float *x;        /* [CHUNK, or whole: steps][columns]: what steps put into the state */
	float *out;      /* [CHUNK][columns]: what the steps of a chunk take out of it */
	float *state;    /* credit all: [channels][columns]; credit route: [routes][bits][columns of a route] */
	float *gradient; /* [steps][channels of the block] */
	float *mean;     /* [steps][routes of the block] */
	float *passed;   /* [columns]: K_t, or the sum of mean_t Y_t */
	struct runs *query, *key; /* [routes of the block] */
};

struct linear {
	struct weighing job;
	size_t chunks;         /* of a batch entry */
	bool whole;            /* credit all: all of D below the diagonal is kept, and no state */
	float *worth;          /* credit all: parts of D, by batch entry and chunk: see rows_of_chunk() */
	size_t worth_size;     /* of a batch entry */
	struct bench *benches; /* [workers] */
};

/* A block of routes in work, in one direction of time. */
struct unit {
	const struct linear *linear;
	const struct weighing *job; /* of it */
	const struct bench *bench;
	size_t entry;          /* of the group */
	size_t route, routes;  /* the first, and how many */
	bool backward;         /* in time: for the keys */
	size_t width, columns; /* of a route, and of all of them */
	float *x;              /* of the chunk */
};

/* --------------------------------------------------------------------------------------------------- parts of D -- */

/* The rows of D of one chunk, of CHUNK steps each or, where all of it is kept, of all steps up to the chunk's end. */
struct chunk_rows {
	float *rows;
	size_t first; /* step of the first column */
	size_t ld;
};

static struct chunk_rows rows_of_chunk(const struct linear *linear, size_t entry, size_t chunk)
{
	const size_t parts = linear->whole ? chunk * (chunk + 1) / 2 : chunk;

	return (struct chunk_rows){.rows = linear->worth + entry * linear->worth_size + parts * CHUNK * CHUNK,
				   .first = linear->whole ? 0 : chunk * CHUNK,
				   .ld = linear->whole ? (chunk + 1) * CHUNK : CHUNK};
}

static void load_chunk(void *context, size_t piece, unsigned worker)
{
	const struct linear *linear = context;
	const size_t t0 = piece % linear->chunks * CHUNK;

	(void)worker;
	weighing_load(&linear->job, piece / linear->chunks, t0, smaller(linear->job.steps - t0, CHUNK));
}

static void judge_chunk(void *context, size_t piece, unsigned worker)
{
	const struct linear *linear = context;
	const struct weighing *job = &linear->job;
	const size_t entry = piece / linear->chunks, chunk = piece % linear->chunks, channels = job->channels;
	const size_t t0 = chunk * CHUNK, steps = smaller(job->steps - t0, CHUNK), row = entry * job->steps;
	const struct chunk_rows d = rows_of_chunk(linear, entry, chunk);

	(void)worker;
	gemm(false, true, steps, t0 + steps - d.first, channels, 1, job->theta + (row + t0) * channels, channels,
	     job->p + (row + d.first) * channels, channels, 0, d.rows, d.ld);
	for (size_t t = 0; t < steps; t++)
		memset(d.rows + t * d.ld + t0 - d.first + t, 0, (steps - t) * sizeof(*d.rows));
}

/* ---------------------------------------------------------------------------------------------- products with D -- */

/* out = D x for a chunk: by what earlier chunks left in the state, and by the chunk's own part of D. */
static void multiply_all(const struct unit *unit, size_t chunk, size_t steps, bool is_first, bool is_last)
{
	const struct weighing *job = unit->job;
	const struct bench *bench = unit->bench;
	const struct chunk_rows d = rows_of_chunk(unit->linear, unit->entry, chunk);
	const size_t channels = job->channels, columns = unit->columns;
	const size_t row = unit->entry * job->steps + chunk * CHUNK;
	const float *take = (unit->backward ? job->p : job->theta) + row * channels;
	const float *put = (unit->backward ? job->theta : job->p) + row * channels;

	if (!is_first)
		gemm(false, false, steps, columns, channels, 1, take, channels, bench->state, columns, 0, bench->out,
		     columns);
	gemm(unit->backward, false, steps, columns, steps, 1, d.rows, d.ld, unit->x, columns, is_first ? 0 : 1,
	     bench->out, columns);
	if (!is_last)
		gemm(true, false, channels, columns, steps, 1, put, channels, unit->x, columns, is_first ? 0 : 1,
		     bench->state, columns);
}

/* The same by all parts of D that concern the chunk. */
static void multiply_whole(const struct unit *unit, size_t chunk, size_t steps, bool is_first, bool is_last)
{
	const struct bench *bench = unit->bench;
	const size_t columns = unit->columns, all = unit->job->steps, t0 = chunk * CHUNK;
	struct chunk_rows d = rows_of_chunk(unit->linear, unit->entry, chunk);

	(void)is_first;
	(void)is_last;
	if (!unit->backward) {
		gemm(false, false, steps, columns, t0 + steps, 1, d.rows, d.ld, bench->x, columns, 0, bench->out,
		     columns);
		return;
	}
	for (size_t later = chunk; later < unit->linear->chunks; later++) {
		d = rows_of_chunk(unit->linear, unit->entry, later);
		gemm(true, false, steps, columns, smaller(all - later * CHUNK, CHUNK), 1, d.rows + t0, d.ld,
		     bench->x + later * CHUNK * columns, columns, later == chunk ? 0 : 1, bench->out, columns);
	}
}

/* The same with each route's own D: out = take S, S += put x^T, step by step. */
static void multiply_route(const struct unit *unit, size_t chunk, size_t steps, bool is_first, bool is_last)
{
	const struct weighing *job = unit->job;
	const struct bench *bench = unit->bench;
	const size_t bits = job->bits, width = unit->width;
	const size_t first = (unit->entry * job->steps + chunk * CHUNK) * job->channels + unit->route * bits;
	const float *take = (unit->backward ? job->p : job->theta) + first;
	const float *put = (unit->backward ? job->theta : job->p) + first;

	(void)is_last;
	if (is_first)
		memset(bench->state, 0, unit->routes * bits * width * sizeof(*bench->state));
	for (size_t r = 0; r < unit->routes; r++) {
		float *state = bench->state + r * bits * width;

		for (size_t i = 0; i < steps; i++) {
			const size_t t = unit->backward ? steps - 1 - i : i;
			const float *takes = take + t * job->channels + r * bits,
				    *puts = put + t * job->channels + r * bits;
			const float *x = unit->x + t * unit->columns + r * width;
			float *out = bench->out + t * unit->columns + r * width;

			for (size_t c = 0; c < width; c += LANES) {
				float sum[LANES] = {0};

				for (size_t m = 0; m < bits; m++) {
					float *s = state + m * width + c;

					for (size_t l = 0; l < LANES; l++) {
						sum[l] += takes[m] * s[l];
						s[l] += puts[m] * x[c + l];
					}
				}
				memcpy(out + c, sum, sizeof(sum));
			}
		}
	}
}

/* ------------------------------------------------------------------------------------------ columns, in and out -- */

/* A candidate d puts sgn(k_p(d)) and a 1 into the state, and with `suffix` the signs of the run before. */
static void put_keys(const struct unit *unit, size_t t0, size_t steps)
{
	const struct weighing *job = unit->job;
	const size_t bits = job->bits, width = unit->width;

	for (size_t r = 0; r < unit->routes; r++) {
		const struct runs *key = &unit->bench->key[r];
		const uint16_t *symbols = weighing_symbols(job, job->key, unit->entry, unit->route + r);

		for (size_t t = 0; t < steps; t++) {
			float *x = unit->x + t * unit->columns + r * width;
			int32_t before;

			memset(x, 0, width * sizeof(*x));
			if (!candidate_at(key, t0 + t))
				continue;
			spread_signs(x, 1, symbols[runs_before(key, t0 + t, 1)], bits);
			x[bits] = 1;
			before = runs_before(key, t0 + t, 2);
			if (job->suffix > 0 && before >= 0)
				spread_signs(x + bits + 1, 1, symbols[before], bits);
		}
	}
}

static void take_queries(const struct unit *unit, size_t t0, size_t steps)
{
	const struct bench *bench = unit->bench;
	const size_t bits = unit->job->bits, width = unit->width, across = unit->routes * bits;

	for (size_t r = 0; r < unit->routes; r++) {
		float *passed = bench->passed + r * width;

		for (size_t i = 0; i < steps; i++) {
			const size_t t = t0 + i;
			const float *x = unit->x + i * unit->columns + r * width;
			const float *out = bench->out + i * unit->columns + r * width;
			const int32_t count = candidate_count(&bench->key[r], t);
			const float share = count ? 1 / (float)count : 0, mean = out[bits] * share;
			const int32_t before = runs_before(&bench->query[r], t, 1);
			float *gradient = bench->gradient + t * across + r * bits;

			for (size_t j = 0; j < bits; j++)
				gradient[j] += share * (out[j] - mean * passed[j]);
			if (unit->job->suffix > 0 && before >= 0) {
				const float weight = unit->job->suffix * share;

				gradient = bench->gradient + (size_t)before * across + r * bits;
				for (size_t j = 0; j < bits; j++)
					gradient[j] += weight * (out[bits + 1 + j] - mean * passed[bits + 1 + j]);
			}
			bench->mean[t * unit->routes + r] = mean;
			for (size_t c = 0; c < width; c++)
				passed[c] += x[c];
		}
	}
}

/* A step puts Y_t = sgn(q_t) / n_t into the state, and with `suffix` the signs of the run before. */
static void put_queries(const struct unit *unit, size_t t0, size_t steps)
{
	const struct weighing *job = unit->job;
	const size_t bits = job->bits, width = unit->width;

	for (size_t r = 0; r < unit->routes; r++) {
		const struct runs *query = &unit->bench->query[r];
		const uint16_t *symbols = weighing_symbols(job, job->query, unit->entry, unit->route + r);

		for (size_t t = 0; t < steps; t++) {
			float *x = unit->x + t * unit->columns + r * width;
			const int32_t count = candidate_count(&unit->bench->key[r], t0 + t);
			const int32_t before = runs_before(query, t0 + t, 1);

			memset(x, 0, width * sizeof(*x));
			if (!count)
				continue;
			spread_signs(x, 1 / (float)count, symbols[t0 + t], bits);
			if (job->suffix > 0 && before >= 0)
				spread_signs(x + bits, job->suffix / (float)count, symbols[before], bits);
		}
	}
}

static void take_keys(const struct unit *unit, size_t t0, size_t steps)
{
	const struct bench *bench = unit->bench;
	const size_t bits = unit->job->bits, width = unit->width, across = unit->routes * bits;
	const int32_t reach = unit->job->suffix > 0 ? 2 : 1;

	for (size_t r = 0; r < unit->routes; r++) {
		const struct runs *key = &bench->key[r];
		float *passed = bench->passed + r * width;

		for (size_t i = steps; i-- > 0;) {
			const size_t t = t0 + i;
			const float *x = unit->x + i * unit->columns + r * width;
			const float *out = bench->out + i * unit->columns + r * width;
			const float mean = bench->mean[t * unit->routes + r];

			for (int32_t back = 1; back <= reach && candidate_at(key, t); back++) {
				const int32_t before = runs_before(key, t, back);
				const size_t c = (size_t)(back - 1) * bits;

				for (size_t j = 0; j < bits && before >= 0; j++)
					bench->gradient[(size_t)before * across + r * bits + j] +=
					    out[c + j] - passed[c + j];
			}
			for (size_t c = 0; c < width; c++)
				passed[c] += mean * x[c];
		}
	}
}

/* -------------------------------------------------------------------------------------------- a block of routes -- */

/* Columns of one route; for credit `route` padded to a multiple of LANES. */
static size_t route_width(const struct weighing *job, bool backward)
{
	const size_t width = job->bits * (job->suffix > 0 ? 2 : 1) + !backward;

	return job->all ? width : (width + LANES - 1) / LANES * LANES;
}

/* Process all steps in one direction of time, and write the gradient of q or k where it is wanted. */
static void sweep(struct unit *unit, bool backward, void *to, const void *x)
{
	const struct weighing *job = unit->job;
	const struct bench *bench = unit->bench;
	const size_t chunks = unit->linear->chunks, across = unit->routes * job->bits;

	void (*const multiply)(const struct unit *, size_t, size_t, bool, bool) = unit->linear->whole ? multiply_whole
										  : job->all          ? multiply_all
												      : multiply_route;

	unit->backward = backward;
	unit->width = route_width(job, backward);
	unit->columns = unit->width * unit->routes;
	memset(bench->gradient, 0, job->steps * across * sizeof(*bench->gradient));
	memset(bench->passed, 0, unit->columns * sizeof(*bench->passed));
	for (size_t i = 0; i < chunks; i++) {
		const size_t chunk = backward ? chunks - 1 - i : i, t0 = chunk * CHUNK;
		const size_t steps = smaller(job->steps - t0, CHUNK);

		unit->x = bench->x + (unit->linear->whole ? t0 * unit->columns : 0);
		(backward ? put_queries : put_keys)(unit, t0, steps);
		multiply(unit, chunk, steps, i == 0, i + 1 == chunks);
		(backward ? take_keys : take_queries)(unit, t0, steps);
	}
	for (size_t t = 0; t < job->steps && to; t++)
		weighing_store(job, to, x, unit->entry, t, unit->route, unit->routes, bench->gradient + t * across);
}

static void do_block(void *context, size_t piece, unsigned worker)
{
	const struct linear *linear = context;
	const struct weighing *job = &linear->job;
	const struct bench *bench = &linear->benches[worker];
	const rosa_read_pass *args = job->call->args;
	const size_t entry = piece / job->blocks, route = piece % job->blocks * job->block;
	struct unit unit = {.linear = linear,
			    .job = job,
			    .bench = bench,
			    .entry = entry,
			    .route = route,
			    .routes = smaller(job->routes - route, job->block)};

	for (size_t r = 0; r < unit.routes; r++) {
		runs_find(&bench->query[r], weighing_symbols(job, job->query, entry, route + r), job->steps,
			  job->call->fold);
		runs_find(&bench->key[r], weighing_symbols(job, job->key, entry, route + r), job->steps,
			  job->call->fold);
	}
	sweep(&unit, false, args->gq, args->q); /* the keys need its means */
	if (args->gk)
		sweep(&unit, true, args->gk, args->k);
}

/* ----------------------------------------------------------------------------------------------------- the rule -- */

static void take_bench(const struct linear *linear, struct bench *bench, struct scratch *scratch)
{
	const struct weighing *job = &linear->job;
	const size_t columns = route_width(job, false) * job->block;

	*bench = (struct bench){.x = scratch_floats(scratch, (linear->whole ? job->steps : CHUNK) * columns),
				.out = scratch_floats(scratch, CHUNK * columns),
				.state = scratch_floats(scratch, (job->all ? job->channels : job->bits) * columns),
				.gradient = scratch_floats(scratch, job->steps * job->block * job->bits),
				.mean = scratch_floats(scratch, job->steps * job->block),
				.passed = scratch_floats(scratch, columns),
				.query = scratch_runs(scratch, job->block, job->steps),
				.key = scratch_runs(scratch, job->block, job->steps)};
}

rosa_status grad_qk_linear(const struct backward *call, rosa_error *err)
{
	const rosa_read_pass *args = call->args;
	const bool all = call->learning->credit == ROSA_CREDIT_ALL;
	struct scratch scratch = {.allocator = call->allocator};
	struct linear linear = {.chunks = (args->steps + CHUNK - 1) / CHUNK,
				.whole = all && 3 * args->steps <= 8 * args->channels};
	struct weighing *job = &linear.job;

	if (!args->gq && !args->gk)
		return ROSA_OK;
	if (all)
		linear.worth_size =
		    (linear.whole ? linear.chunks * (linear.chunks + 1) / 2 : linear.chunks) * CHUNK * CHUNK;
	weighing_init(job, call, linear.worth_size / args->steps * sizeof(float), &scratch);
	linear.worth = scratch_floats(&scratch, job->group * linear.worth_size);
	linear.benches = scratch_take(&scratch, call->workers, sizeof(*linear.benches));
	for (unsigned i = 0; i < call->workers && !scratch.short_of_memory; i++)
		take_bench(&linear, &linear.benches[i], &scratch);
	for (; job->first < args->batch && !scratch.short_of_memory; job->first += job->group) {
		job->entries = smaller(args->batch - job->first, job->group);
		backward_run(call, job->entries * linear.chunks, load_chunk, &linear);
		if (all)
			backward_run(call, job->entries * linear.chunks, judge_chunk, &linear);
		backward_run(call, job->entries * job->blocks, do_block, &linear);
	}
	scratch_free(&scratch);
	return scratch.short_of_memory ? weighing_failed(job, err) : ROSA_OK;
}
