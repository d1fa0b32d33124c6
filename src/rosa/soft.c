/*
 * The rule `soft`: candidates weigh by a softmax over the Hamming distances between symbols.
 *
 *     w_td = softmax over d of -slope * Hamming(q_t, k_p(d))
 *     g_td = slope * w_td (D_td - sum over d of w_td D_td),  D_td = theta_t . P[d]
 *     q_t:    s'(q_t) * sum over d of g_td sgn(k_p(d))
 *     k_p(d): s'(k_p(d)) * sum over t of g_td sgn(q_t)
 *
 * Every pair of steps counts in every route, so this is quadratic in the number of steps, as attention is. Nothing of
 * that size is stored. Query steps are taken TILE at a time, in order: their rows of D are computed once for all routes
 * (credit `all`) or per route, a route computes its rows of g from them, and both sums are matrix products of g with
 * signs. A route is processed by one worker at a time, and its tiles in order, so sums are taken in the same order
 * whatever the number of workers.
 *
 * Distances are small integers, so weights are looked up: a pair has a level, its distance, and with `suffix` the pair
 * of its two distances; the weights of all levels are computed once per row. Weights are relative to the best level in
 * the row: a row of far candidates is as good as one of near ones, and no exponential overflows. Steps that are no
 * candidates stay in the row at a level of their own with weight 0: at the usual widths most steps are candidates, and
 * rows without gaps suit vector instructions.
 *
 * Memory beyond the arguments, for C channels in float32: per step 16 C bytes for theta, P and the sums of q and k (4 C
 * more with `suffix`), 4 * TILE for the rows of D and 4 bytes per route for symbols, all for the batch entries in work;
 * and per worker 4 * TILE (twice with credit `route`) and up to 200 bytes per step.
 */
#include "rosa/candidates.h"
#include "backend/gemm.h"
#include "base/compiler.h"
#include "base/pool.h"
#include "backend/sigmoid.h"
#include "rosa/soft.h"
#include "rosa/weighing.h"

#include <math.h>

#define TILE        64                  /* query steps */
#define SLAB        256                 /* steps of the rows of D that one piece of work computes */
#define DISTANCES   (ROSA_MAX_BITS + 1) /* 0 to 16 */
#define MOST_LEVELS (DISTANCES * DISTANCES)

/* Scratch memory of one worker for a route. */
struct bench {
	float *worth;               /* credit route: [TILE][steps]: rows of D */
	float *g;                   /* [TILE][steps] */
	int16_t *level;             /* [steps] */
	uint16_t *near, *far;       /* [steps]: symbols of the one and the two runs before a candidate */
	uint16_t *is_near, *is_far; /* [steps]: all ones where there is such a run */
	float *key_signs;           /* [steps][columns] */
	float *query_signs;         /* [TILE][columns] */
	float *sums;                /* [TILE][columns] */
	struct runs *query, *key;
};

struct row;

struct soft {
	struct weighing job;
	float slope;
	uint16_t stride; /* level = first distance * stride + second distance */
	size_t levels;   /* the level of steps that are no candidates */
	float distance[MOST_LEVELS];
	void (*do_row)(const struct row *row);
	size_t columns;   /* of a route: bits, with suffix twice as many */
	size_t t0, steps; /* the tile */
	size_t before;    /* steps that can be read from it */
	float *worth;     /* credit all: [entries][TILE][steps]: rows of D */
	float *gq;        /* [entries][routes][steps][bits] */
	float *gk;        /* [entries][routes][steps][columns], at the candidates, not yet at the runs before them */
	struct bench *benches; /* [workers] */
};

/* ---------------------------------------------------------------------------------------------------- rows of D -- */

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

/* ---------------------------------------------------------------------------------------------------- rows of g -- */

/* Also for two symbols in one number: no bit leaves its half. */
ALWAYS_INLINE uint16_t count_ones(uint16_t x)
{
	x = (uint16_t)(x - (x >> 1 & 0x5555));
	x = (uint16_t)((x & 0x3333) + (x >> 2 & 0x3333));
	x = (uint16_t)((x + (x >> 4)) & 0x0f0f);
	return (uint16_t)((x + (x >> 8)) & 0x1f);
}

/* One row of g: of the query symbol `symbol`, after a run of `before` where `twice`, over the first `count` steps. */
struct row {
	const struct soft *soft;
	const struct bench *bench;
	uint16_t symbol, before;
	bool twice;
	size_t count;
	const float *worth; /* D */
	float *g;
};

ALWAYS_INLINE void find_levels(const struct row *row)
{
	const uint16_t *near = row->bench->near, *far = row->bench->far, *is_near = row->bench->is_near,
		       *is_far = row->bench->is_far;
	const uint16_t symbol = row->symbol, before = row->before, no_level = (uint16_t)row->soft->levels,
		       stride = row->soft->stride;
	int16_t *level = row->bench->level;

	if (row->twice)
		for (size_t d = 0; d < row->count; d++) {
			const uint16_t distance = count_ones(symbol ^ near[d]), further = count_ones(before ^ far[d]);
			const uint16_t both = (uint16_t)(distance * stride + (further & is_far[d]));

			level[d] = (int16_t)((both & is_near[d]) | (no_level & (uint16_t)~is_near[d]));
		}
	else
		for (size_t d = 0; d < row->count; d++) {
			const uint16_t distance = (uint16_t)(count_ones(symbol ^ near[d]) * stride);

			level[d] = (int16_t)((distance & is_near[d]) | (no_level & (uint16_t)~is_near[d]));
		}
}

/* The least distance in the row. */
ALWAYS_INLINE float best_distance(const struct row *row)
{
	const struct soft *soft = row->soft;
	const int16_t *level = row->bench->level;
	unsigned char seen[MOST_LEVELS + 1];
	int16_t least = (int16_t)soft->levels;
	float best = INFINITY;

	if (soft->stride == 1) { /* levels are distances */
		for (size_t d = 0; d < row->count; d++)
			least = level[d] < least ? level[d] : least;
		return (float)least;
	}
	memset(seen, 0, soft->levels + 1);
	for (size_t d = 0; d < row->count; d++)
		seen[level[d]] = 1;
	for (size_t l = 0; l < soft->levels; l++)
		if (seen[l] && soft->distance[l] < best)
			best = soft->distance[l];
	return best;
}

/* Weights, of which the best is 1. */
ALWAYS_INLINE void weigh(const struct row *row)
{
	const struct soft *soft = row->soft;
	const int16_t *level = row->bench->level;
	const float best = best_distance(row);
	float table[MOST_LEVELS + 1];

	/* Levels nearer than the best do not occur in the row, so their weights, which are wrong, are not used. */
	for (size_t l = 0; l < soft->levels; l++)
		table[l] = exp_minus(soft->slope * (soft->distance[l] - best));
	table[soft->levels] = 0;
	for (size_t d = 0; d < row->count; d++)
		row->g[d] = table[level[d]];
}

/* Sixteen partial sums, in the same order on every instruction set. */
#define LANES 16
typedef float four __attribute__((vector_size(16)));

/* From weights to slope w (D - mean), w being the weights divided by their sum. */
ALWAYS_INLINE void weights_to_gradient(const struct row *row)
{
	const float *worth = row->worth;
	float *g = row->g;
	four sum[LANES / 4] = {{0}}, product[LANES / 4] = {{0}};
	float total = 0, mean = 0, scale;
	size_t d = 0;

	for (; d + LANES <= row->count; d += LANES) {
		for (size_t i = 0; i < LANES / 4; i++) {
			four weights, worths;

			memcpy(&weights, g + d + 4 * i, sizeof(weights));
			memcpy(&worths, worth + d + 4 * i, sizeof(worths));
			sum[i] += weights;
			product[i] += weights * worths;
		}
	}
	for (size_t l = 0; l < LANES; l++) {
		total += sum[l / 4][l % 4];
		mean += product[l / 4][l % 4];
	}
	for (; d < row->count; d++) {
		total += g[d];
		mean += g[d] * worth[d];
	}
	mean /= total;
	scale = row->soft->slope / total;
	for (d = 0; d < row->count; d++)
		g[d] *= scale * (worth[d] - mean);
}

#define DEFINE_ROW(name, attribute)                                                                                    \
	attribute static void name(const struct row *row)                                                              \
	{                                                                                                              \
		find_levels(row);                                                                                      \
		weigh(row);                                                                                            \
		weights_to_gradient(row);                                                                              \
	}

DEFINE_ROW(row_plain, )
#if ROSA_X86_VARIANTS
DEFINE_ROW(row_avx2, __attribute__((target("avx2"))))
DEFINE_ROW(row_avx512, __attribute__((target("avx512f,avx512bw"))))
#endif

static void (*const row_variants[ROSA_ISA_COUNT])(const struct row *row) = {
    [ROSA_ISA_PLAIN] = row_plain,
#if ROSA_X86_VARIANTS
    [ROSA_ISA_AVX2] = row_avx2,
    [ROSA_ISA_AVX512] = row_avx512,
#endif
};

/* ------------------------------------------------------------------------------------------------------ a route -- */

/* The steps before the end of the tile as candidates. */
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

	runs_find(bench->query, query, t0 + soft->steps, job->call->fold);
	runs_find(bench->key, key, t0 + soft->steps, job->call->fold);
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
			const bool twice = columns > bits && earlier >= 0;
			const struct row row = {.soft = soft,
						.bench = bench,
						.symbol = query[t],
						.before = query[twice ? (size_t)earlier : t],
						.twice = twice,
						.count = count = t,
						.worth = worth + i * job->steps,
						.g = g};

			soft->do_row(&row);
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

/* ----------------------------------------------------------------------------------------------------- the rule -- */

/* Move a route's sums for the keys from the candidates to the runs before them. In order of time, elements are read
 * before they are overwritten, so no second array is needed. */
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
	const rosa_read_pass *args = job->call->args;
	const size_t entry = piece / job->blocks, route = piece % job->blocks * job->block, bits = job->bits;
	const size_t routes = smaller(job->routes - route, job->block), first = entry * job->routes + route;
	float row[BLOCK_CHANNELS + ROSA_MAX_BITS];

	for (size_t r = 0; r < routes && args->gk; r++) {
		runs_find(bench->key, weighing_symbols(job, job->key, entry, route + r), job->steps, job->call->fold);
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
	const struct backward *call = job->call;

	memset(soft->gq, 0, rows * job->bits * sizeof(*soft->gq));
	memset(soft->gk, 0, rows * soft->columns * sizeof(*soft->gk));
	backward_run(call, job->entries * tiles, load_tile, soft);
	for (soft->t0 = 0; soft->t0 < job->steps; soft->t0 += TILE) {
		soft->steps = smaller(job->steps - soft->t0, TILE);
		soft->before = soft->t0 + soft->steps - 1;
		if (!soft->before)
			continue;
		if (job->all)
			backward_run(call, job->entries * ((soft->before + SLAB - 1) / SLAB), judge_slab, soft);
		backward_run(call, job->entries * job->routes, do_route, soft);
	}
	backward_run(call, job->entries * job->blocks, write_block, soft);
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
	bench->level = (int16_t *)words;
	bench->near = words + steps;
	bench->far = words + 2 * steps;
	bench->is_near = words + 3 * steps;
	bench->is_far = words + 4 * steps;
}

rosa_status grad_qk_soft_with(rosa_isa isa, const struct backward *call, rosa_error *err)
{
	const rosa_read_pass *args = call->args;
	const bool all = call->learning->credit == ROSA_CREDIT_ALL;
	const size_t sides = call->learning->suffix > 0 ? 2 : 1;
	struct scratch scratch = {.allocator = call->allocator};
	struct soft soft = {.slope = call->learning->slope,
			    .stride = sides > 1 ? DISTANCES : 1,
			    .levels = sides > 1 ? MOST_LEVELS : DISTANCES,
			    .do_row = row_variants[isa],
			    .columns = call->bits * sides};
	struct weighing *job = &soft.job;

	if (!args->gq && !args->gk)
		return ROSA_OK;
	for (size_t l = 0; l < soft.levels; l++)
		soft.distance[l] = (float)(l / soft.stride) + call->learning->suffix * (float)(l % soft.stride);
	weighing_init(job, call, (args->channels * (1 + sides) + (all ? TILE : 0)) * sizeof(float), &scratch);
	soft.worth = scratch_floats(&scratch, all ? job->group * TILE * job->steps : 0);
	soft.gq = scratch_floats(&scratch, job->group * job->steps * job->channels);
	soft.gk = scratch_floats(&scratch, job->group * job->steps * job->channels * sides);
	soft.benches = scratch_take(&scratch, call->workers, sizeof(*soft.benches));
	for (unsigned i = 0; i < call->workers && !scratch.short_of_memory; i++)
		take_bench(&soft, &soft.benches[i], &scratch);
	for (; job->first < args->batch && !scratch.short_of_memory; job->first += job->group) {
		job->entries = smaller(args->batch - job->first, job->group);
		do_group(&soft);
	}
	scratch_free(&scratch);
	return scratch.short_of_memory ? weighing_failed(job, err) : ROSA_OK;
}

rosa_status grad_qk_soft(const struct backward *call, rosa_error *err)
{
	return grad_qk_soft_with(rosa_isa_best(), call, err);
}
