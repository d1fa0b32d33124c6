/*
 * The rule `soft`: candidates weigh by a softmax over the Hamming distances between symbols.
 *
 *     w_td = softmax over d of -slope * Hamming(q_t, k_p(d))
 *     g_td = slope * w_td (D_td - sum over d of w_td D_td),  D_td = theta_t . P[d]
 *     q_t:    s'(q_t) * sum over d of g_td sgn(k_p(d))
 *     k_p(d): s'(k_p(d)) * sum over t of g_td sgn(q_t)
 *
 * Every pair of steps counts in every route, so this is quadratic in the number of steps, as attention is. Nothing of
 * that size is kept. Query steps are taken TILE at a time, in order: their rows of D are made once for all routes
 * (credit `all`) or by each route for itself, a route makes its rows of g from them, and both sums are matrix products
 * of g with signs. A route is worked on by one worker at a time, and its tiles one after the other, so sums are taken
 * in the same order whatever the number of workers.
 *
 * Distances are small whole numbers, so weights are looked up: a pair has a level, its distance, and with `suffix` the
 * pair of its two distances; the few levels that a row really has get their weight once. Weights are relative to the
 * best level in the row: a row of far candidates is as good as one of near ones, and no exponential overflows.
 * Steps that are no candidates stay in the row at a level of their own, of weight 0. At the widths this is used at most
 * steps are candidates, and rows without gaps are what vector instructions want.
 *
 * Memory beyond the arguments, for C channels in float32: 16 C bytes a step for theta, P and the sums of both sides (4
 * C more with `suffix`), 4 * TILE for the rows of D, 4 bytes a route for symbols, all for the batch entries that are
 * being worked on; and for each worker 4 * TILE (twice with credit `route`) and up to 200 bytes a step.
 */
#include "candidates.h"
#include "gemm.h"
#include "pool.h"
#include "weighing.h"

#include <math.h>

#define TILE      64                                  /* query steps */
#define SLAB      256                                 /* steps of the rows of D that are made in one piece */
#define DISTANCES (ROSA_MAX_BITS + 1)                 /* 0 to 16 */
#define LEVELS    ((size_t)DISTANCES * DISTANCES)     /* first distance * DISTANCES + second */
#define NO_LEVEL  ((uint16_t)(DISTANCES * DISTANCES)) /* of steps that are no candidates */
#define LANES     16                                  /* partial sums of a row */

/* What one worker needs for a route. */
struct bench {
	float *worth;               /* credit route: [TILE][steps]: rows of D */
	float *g;                   /* [TILE][steps] */
	uint16_t *level;            /* [steps] */
	uint16_t *near, *far;       /* [steps]: symbols of the one and the two runs before a candidate */
	uint16_t *is_near, *is_far; /* [steps]: all ones where there is such a run */
	float *key_signs;           /* [steps][columns] */
	float *query_signs;         /* [TILE][columns] */
	float *sums;                /* [TILE][columns] */
	struct runs *query, *key;
};

struct soft {
	struct weighing job;
	float slope;
	size_t columns;   /* of a route: bits, with suffix twice as many */
	size_t t0, steps; /* the tile */
	size_t before;    /* steps that can be read from it */
	float *worth;     /* credit all: [entries][TILE][steps]: rows of D */
	float *gq;        /* [entries][routes][steps][bits] */
	float *gk;        /* [entries][routes][steps][columns], at the candidates, not yet at the runs before them */
	struct bench *benches; /* [workers] */
};

/* ------------------------------------------------------------------------------------------------- rows of D -- */

static void load_tile(void *context, size_t piece, unsigned worker)
{
	const struct soft *soft = context;
	const struct weighing *job = &soft->job;
	const size_t tiles = (job->steps + TILE - 1) / TILE, t0 = piece % tiles * TILE;

	(void)worker;
	weighing_load(job, piece / tiles, t0, smaller(job->steps - t0, TILE));
}

static void judge_slab(void *context, size_t piece, unsigned worker)
{
	const struct soft *soft = context;
	const struct weighing *job = &soft->job;
	const size_t slabs = (soft->before + SLAB - 1) / SLAB, entry = piece / slabs, d = piece % slabs * SLAB;
	const size_t channels = job->channels, row = entry * job->steps;

	(void)worker;
	gemm(false, true, soft->steps, smaller(soft->before - d, SLAB), channels, 1,
	     job->theta + (row + soft->t0) * channels, channels, job->p + (row + d) * channels, channels, 0,
	     soft->worth + entry * TILE * job->steps + d, job->steps);
}

/* ------------------------------------------------------------------------------------------------- rows of g -- */

static inline unsigned count_ones(unsigned x)
{
	x -= x >> 1 & 0x5555;
	x = (x & 0x3333) + (x >> 2 & 0x3333);
	x = (x + (x >> 4)) & 0x0f0f;
	return (x + (x >> 8)) & 0x1f;
}

/* The levels of `count` steps for a query symbol. */
static void find_levels(const struct bench *bench, unsigned symbol, size_t count)
{
	for (size_t d = 0; d < count; d++) {
		const unsigned distance = count_ones(symbol ^ bench->near[d]);

		bench->level[d] =
		    (uint16_t)((distance * DISTANCES & bench->is_near[d]) | (NO_LEVEL & (uint16_t)~bench->is_near[d]));
	}
}

/* The same with the symbol of the run before. */
static void find_levels_twice(const struct bench *bench, unsigned symbol, unsigned before, size_t count)
{
	for (size_t d = 0; d < count; d++) {
		const unsigned distance = count_ones(symbol ^ bench->near[d]);
		const unsigned further = count_ones(before ^ bench->far[d]) & bench->is_far[d];

		bench->level[d] = (uint16_t)(((distance * DISTANCES + further) & bench->is_near[d]) |
					     (NO_LEVEL & (uint16_t)~bench->is_near[d]));
	}
}

/* Put the weights of `count` steps, the best being 1, into `weight`. */
static void weigh(const struct soft *soft, const uint16_t *level, size_t count, float *weight)
{
	unsigned char seen[LEVELS + 1] = {0};
	float table[LEVELS + 1], distance[LEVELS];
	float best = INFINITY;

	for (size_t d = 0; d < count; d++)
		seen[level[d]] = 1;
	for (size_t l = 0; l < LEVELS; l++) {
		distance[l] = (float)(l / DISTANCES) + soft->job.suffix * (float)(l % DISTANCES);
		if (seen[l] && distance[l] < best)
			best = distance[l];
	}
	for (size_t l = 0; l < LEVELS; l++)
		if (seen[l])
			table[l] = expf(-soft->slope * (distance[l] - best));
	table[NO_LEVEL] = 0;
	for (size_t d = 0; d < count; d++)
		weight[d] = table[level[d]];
}

/* From weights to g = slope w (D - mean), w being the weights divided by their sum. */
static void weights_to_gradient(float slope, const float *worth, size_t count, float *weight)
{
	float sum[LANES] = {0}, product[LANES] = {0};
	float total, mean, scale;
	size_t d = 0;

	for (; d + LANES <= count; d += LANES) {
		for (size_t l = 0; l < LANES; l++) {
			sum[l] += weight[d + l];
			product[l] += weight[d + l] * worth[d + l];
		}
	}
	for (size_t l = 0; d < count; d++, l++) {
		sum[l] += weight[d];
		product[l] += weight[d] * worth[d];
	}
	total = mean = 0;
	for (size_t l = 0; l < LANES; l++) {
		total += sum[l];
		mean += product[l];
	}
	mean /= total;
	scale = slope / total;
	for (d = 0; d < count; d++)
		weight[d] *= scale * (worth[d] - mean);
}

/* --------------------------------------------------------------------------------------------------- a route -- */

/* What the steps before the end of the tile are as candidates. */
static void find_candidates(const struct soft *soft, const struct bench *bench, const uint16_t *symbols)
{
	const size_t bits = soft->job.bits, columns = soft->columns;

	for (size_t d = 0; d < soft->before; d++) {
		const int32_t before = runs_before(bench->key, d, 2);
		const bool near = candidate_at(bench->key, d), far = near && before >= 0;
		float *signs = bench->key_signs + d * columns;

		bench->near[d] = near ? symbols[runs_before(bench->key, d, 1)] : 0;
		bench->far[d] = far ? symbols[before] : 0;
		bench->is_near[d] = near ? UINT16_MAX : 0;
		bench->is_far[d] = far ? UINT16_MAX : 0;
		spread_signs(signs, near, bench->near[d], bits);
		if (columns > bits)
			spread_signs(signs + bits, far, bench->far[d], bits);
	}
}

static void do_route(void *context, size_t piece, unsigned worker)
{
	const struct soft *soft = context;
	const struct weighing *job = &soft->job;
	const struct bench *bench = &soft->benches[worker];
	const size_t entry = piece / job->routes, route = piece % job->routes;
	const size_t bits = job->bits, columns = soft->columns, t0 = soft->t0, before = soft->before;
	const uint16_t *query = weighing_symbols(job, job->query, entry, route);
	const uint16_t *key = weighing_symbols(job, job->key, entry, route);
	const float *worth = job->all ? soft->worth + entry * TILE * job->steps : bench->worth;
	float *gq = soft->gq + piece * job->steps * bits, *gk = soft->gk + piece * job->steps * columns;

	runs_find(bench->query, query, t0 + soft->steps, job->pass->fold);
	runs_find(bench->key, key, t0 + soft->steps, job->pass->fold);
	find_candidates(soft, bench, key);
	if (!job->all) {
		const size_t first = entry * job->steps * job->channels + route * bits;

		gemm(false, true, soft->steps, before, bits, 1, job->theta + first + t0 * job->channels, job->channels,
		     job->p + first, job->channels, 0, bench->worth, job->steps);
	}
	for (size_t i = 0; i < soft->steps; i++) {
		const size_t t = t0 + i;
		const int32_t earlier = runs_before(bench->query, t, 1);
		float *g = bench->g + i * before, *signs = bench->query_signs + i * columns;
		size_t count = 0;

		if (candidate_count(bench->key, t)) {
			count = t;
			if (columns > bits && earlier >= 0)
				find_levels_twice(bench, query[t], query[earlier], count);
			else
				find_levels(bench, query[t], count);
			weigh(soft, bench->level, count, g);
			weights_to_gradient(soft->slope, worth + i * job->steps, count, g);
		}
		memset(g + count, 0, (before - count) * sizeof(*g));
		spread_signs(signs, 1, query[t], bits);
		if (columns > bits)
			spread_signs(signs + bits, earlier >= 0 ? job->suffix : 0, query[earlier >= 0 ? earlier : 0],
				     bits);
	}
	gemm(false, false, soft->steps, columns, before, 1, bench->g, before, bench->key_signs, columns, 0, bench->sums,
	     columns);
	gemm(true, false, before, columns, soft->steps, 1, bench->g, before, bench->query_signs, columns, 1, gk,
	     columns);
	for (size_t i = 0; i < soft->steps; i++) {
		const int32_t earlier = runs_before(bench->query, t0 + i, 1);
		const float *sums = bench->sums + i * columns;

		for (size_t j = 0; j < bits; j++)
			gq[(t0 + i) * bits + j] += sums[j];
		for (size_t j = 0; j < bits && columns > bits && earlier >= 0; j++)
			gq[(size_t)earlier * bits + j] += job->suffix * sums[bits + j];
	}
}

/* --------------------------------------------------------------------------------------------------- the rule -- */

/* Bring a route's sums for the keys from the candidates to the runs before them. In order of time the places written to
 * have been read already, so this needs no second array. */
static void settle_keys(float *gk, const struct runs *key, size_t steps, size_t bits, size_t columns)
{
	for (size_t d = 0; d < steps; d++) {
		float row[2 * ROSA_MAX_BITS];

		memcpy(row, gk + d * columns, columns * sizeof(*row));
		memset(gk + d * columns, 0, columns * sizeof(*row));
		for (int32_t back = 1; (size_t)back * bits <= columns && candidate_at(key, d); back++) {
			const int32_t before = runs_before(key, d, back);

			for (size_t j = 0; j < bits && before >= 0; j++)
				gk[(size_t)before * columns + j] += row[(size_t)(back - 1) * bits + j];
		}
	}
}

static void write_block(void *context, size_t piece, unsigned worker)
{
	const struct soft *soft = context;
	const struct weighing *job = &soft->job;
	const struct bench *bench = &soft->benches[worker];
	const rosa_read_pass *args = job->pass->args;
	const size_t entry = piece / job->blocks, route = piece % job->blocks * job->block, bits = job->bits;
	const size_t routes = smaller(job->routes - route, job->block), first = entry * job->routes + route;
	float row[BLOCK_CHANNELS + ROSA_MAX_BITS];

	for (size_t r = 0; r < routes && args->gk; r++) {
		runs_find(bench->key, weighing_symbols(job, job->key, entry, route + r), job->steps, job->pass->fold);
		settle_keys(soft->gk + (first + r) * job->steps * soft->columns, bench->key, job->steps, bits,
			    soft->columns);
	}
	for (size_t t = 0; t < job->steps; t++) {
		for (size_t r = 0; r < routes; r++)
			memcpy(row + r * bits, soft->gq + ((first + r) * job->steps + t) * bits, bits * sizeof(*row));
		if (args->gq)
			weighing_store(job, args->gq, args->q, entry, t, route, routes, row);
		for (size_t r = 0; r < routes; r++)
			memcpy(row + r * bits, soft->gk + ((first + r) * job->steps + t) * soft->columns,
			       bits * sizeof(*row));
		if (args->gk)
			weighing_store(job, args->gk, args->k, entry, t, route, routes, row);
	}
}

static void do_group(struct soft *soft)
{
	const struct weighing *job = &soft->job;
	const size_t tiles = (job->steps + TILE - 1) / TILE, rows = job->entries * job->routes * job->steps;
	struct pool *pool = job->pass->pool;

	memset(soft->gq, 0, rows * job->bits * sizeof(*soft->gq));
	memset(soft->gk, 0, rows * soft->columns * sizeof(*soft->gk));
	pool_run(pool, job->entries * tiles, load_tile, soft, NULL);
	for (soft->t0 = 0; soft->t0 < job->steps; soft->t0 += TILE) {
		soft->steps = smaller(job->steps - soft->t0, TILE);
		soft->before = soft->t0 + soft->steps - 1;
		if (!soft->before)
			continue;
		if (job->all)
			pool_run(pool, job->entries * ((soft->before + SLAB - 1) / SLAB), judge_slab, soft, NULL);
		pool_run(pool, job->entries * job->routes, do_route, soft, NULL);
	}
	pool_run(pool, job->entries * job->blocks, write_block, soft, NULL);
}

static void take_bench(const struct soft *soft, struct bench *bench, struct scratch *scratch)
{
	const size_t steps = soft->job.steps;
	uint16_t *words = scratch_take(scratch, 5 * steps, sizeof(*words));

	*bench = (struct bench){.worth = scratch_floats(scratch, soft->job.all ? 0 : TILE * steps),
				.g = scratch_floats(scratch, TILE * steps),
				.key_signs = scratch_floats(scratch, steps * soft->columns),
				.query_signs = scratch_floats(scratch, TILE * soft->columns),
				.sums = scratch_floats(scratch, TILE * soft->columns),
				.query = scratch_runs(scratch, 1, steps),
				.key = scratch_runs(scratch, 1, steps)};
	if (!words)
		return;
	bench->level = words;
	bench->near = words + steps;
	bench->far = words + 2 * steps;
	bench->is_near = words + 3 * steps;
	bench->is_far = words + 4 * steps;
}

rosa_status grad_qk_soft(const struct pass *pass, rosa_error *err)
{
	const rosa_read_pass *args = pass->args;
	const bool all = pass->learning->credit == ROSA_CREDIT_ALL;
	const size_t sides = pass->learning->suffix > 0 ? 2 : 1;
	struct scratch scratch = {.allocator = pass->allocator};
	struct soft soft = {.slope = pass->learning->slope, .columns = pass->bits * sides};
	struct weighing *job = &soft.job;

	if (!args->gq && !args->gk)
		return ROSA_OK;
	weighing_init(job, pass, (args->channels * (1 + sides) + (all ? TILE : 0)) * sizeof(float), &scratch);
	soft.worth = scratch_floats(&scratch, all ? job->group * TILE * job->steps : 0);
	soft.gq = scratch_floats(&scratch, job->group * job->steps * job->channels);
	soft.gk = scratch_floats(&scratch, job->group * job->steps * job->channels * sides);
	soft.benches = scratch_take(&scratch, pass->workers, sizeof(*soft.benches));
	for (unsigned i = 0; i < pass->workers && !scratch.short_of_memory; i++)
		take_bench(&soft, &soft.benches[i], &scratch);
	for (; job->first < args->batch && !scratch.short_of_memory; job->first += job->group) {
		job->entries = smaller(args->batch - job->first, job->group);
		do_group(&soft);
	}
	scratch_free(&scratch);
	return scratch.short_of_memory ? weighing_failed(job, err) : ROSA_OK;
}
