/*
 * Attention over a cache: for each query first all scores, then their softmax, then the sum of values.
 *
 * An online softmax, which is corrected block by block, needs no memory for scores, but its rounding depends on the
 * blocks and so on how a text was cut into calls. Here the greatest score is known before the first exponential is
 * taken, exponentials are summed by lane of a panel, and values are summed in the order of positions: sinks, then the
 * window from old to new. All of this depends on what the query sees and on nothing else. Positions that another query
 * of the same tile sees and this one does not get weight zero, and their values are skipped, not multiplied by it: zero
 * times infinity is not zero.
 *
 * A tile is a few queries of one key head: of the query heads that share it and of neighbouring steps. They use keys
 * and values together, so that each vector loaded serves all of them. In a prompt, tiles are the pieces of work that
 * threads share. A single step has one tile per key head, which may be fewer than the threads or not a multiple of
 * them. Then the scores are divided by ranges of panels and, once all are done, the values by ranges of channels:
 * neither divides a sum.
 */
#include "backend/attend.h"
#include "backend/kv_store.h"
#include "base/status.h"
#include "base/sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------- inner loops -- */

#define MOST_ROWS   12 /* of a tile, in any variant */
#define ROWS_PLAIN  2
#define ROWS_AVX2   6
#define ROWS_AVX512 12

#define VECTORS VECTORS_PLAIN
#include "backend/vectors.h"
#define ATTEND_ROWS      ROWS_PLAIN
#define ATTEND_REGISTERS 16
#include "backend/attend_template.h"

#if ROSA_X86_VARIANTS
#define VECTORS VECTORS_AVX2
#include "backend/vectors.h"
#define ATTEND_ROWS      ROWS_AVX2
#define ATTEND_REGISTERS 16
#include "backend/attend_template.h"

#define VECTORS VECTORS_AVX512
#include "backend/vectors.h"
#define ATTEND_ROWS      ROWS_AVX512
#define ATTEND_REGISTERS 32
#include "backend/attend_template.h"
#endif

static const struct kernels {
	size_t rows; /* of a tile */
	void (*score)(size_t count, size_t head_size, const float *q, const float *keys, size_t panels, float *scores);
	void (*value)(size_t count, const float *weights, size_t lane, size_t end, const float *values, size_t stride,
		      size_t width, float *acc);
	float (*soften)(const float *scores, size_t panels, float *weights);
} variants[ROSA_ISA_COUNT] = {
    [ROSA_ISA_PLAIN] = {ROWS_PLAIN, score_plain, value_plain, soften_plain},
#if ROSA_X86_VARIANTS
    [ROSA_ISA_AVX2] = {ROWS_AVX2, score_avx2, value_avx2, soften_avx2},
    [ROSA_ISA_AVX512] = {ROWS_AVX512, score_avx512, value_avx512, soften_avx512},
#endif
};

bool attend_isa_available(rosa_isa isa)
{
#if ROSA_X86_VARIANTS
	if (isa != ROSA_ISA_PLAIN && !__builtin_cpu_supports("fma"))
		return false;
#endif
	return rosa_isa_available(isa);
}

/* ------------------------------------------------------------------------------------------------------- scratch -- */

struct attend_scratch {
	unsigned workers;
	size_t head_size, heads, panels; /* capacity */
	float *memory;
	size_t each;   /* numbers per worker */
	float *shared; /* scores of one tile for every key head: [heads][panels][MOST_ROWS][16] */
};

rosa_status attend_scratch_new(unsigned workers, struct attend_scratch **made, rosa_error *err)
{
	*made = calloc(1, sizeof(**made));
	if (!*made)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for attention");
	(*made)->workers = workers;
	return ROSA_OK;
}

void attend_scratch_free(struct attend_scratch *scratch)
{
	if (!scratch)
		return;
	free(scratch->memory);
	free(scratch->shared);
	free(scratch);
}

/* An array that begins at a cache line, or NULL. */
static float *take_floats(size_t count, size_t each)
{
	if (each && count > SIZE_MAX / 8 / sizeof(float) / each)
		return NULL;
	return aligned_alloc(64, (count * each * sizeof(float) + 63) / 64 * 64);
}

rosa_status attend_scratch_reserve(struct attend_scratch *scratch, const struct kv_cache *cache, size_t steps,
				   rosa_error *err)
{
	const size_t panels = kv_most_panels(cache, steps);
	struct attend_scratch grown = *scratch;

	if (panels <= scratch->panels && cache->head_size <= scratch->head_size && cache->heads <= scratch->heads)
		return ROSA_OK;
	grown.heads = larger(scratch->heads, cache->heads);
	grown.head_size = larger(scratch->head_size, cache->head_size);
	/* grown by more than is needed, so that a growing text does not reallocate at every panel */
	grown.panels = panels <= scratch->panels ? scratch->panels : panels + panels / 4 + 16;
	/* scores of a tile, its queries, its sums */
	grown.each = MOST_ROWS * (grown.panels * KV_LANES + 2 * kv_row(grown.head_size));
	grown.memory = take_floats(grown.workers, grown.each);
	grown.shared = grown.workers > 1 ? take_floats(grown.heads, MOST_ROWS * KV_LANES * grown.panels) : NULL;
	if (!grown.memory || (grown.workers > 1 && !grown.shared)) {
		free(grown.memory);
		free(grown.shared);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the scores of %zu positions", panels * KV_LANES);
	}
	free(scratch->memory);
	free(scratch->shared);
	*scratch = grown;
	return ROSA_OK;
}

/* ---------------------------------------------------------------------------------------------------------- tile -- */

struct call {
	const struct kernels *kernels;
	struct attend_scratch *scratch;
	struct kv_cache *cache;
	size_t steps, heads, group; /* group: query heads of a key head */
	const float *q, *k, *v;
	float *y;
	size_t tiles; /* of a key head */
	size_t parts; /* of a tile's panels, and of its channels */
};

/* Some queries of one key head. Query i of a head is step i / group of query head i % group. Scores and weights of
 * everything they see are stored in consecutive panels: first the sinks, then the window. Lanes are counted from the
 * first. */
struct tile {
	size_t head, first, rows;
	size_t sink_panels, panels; /* panels: all of them */
	size_t window;              /* the first panel of the window, in positions */
	struct seen {
		size_t sinks_end;  /* lanes 0 .. sinks_end-1 */
		size_t begin, end; /* and these */
	} seen[MOST_ROWS];
};

static void make_tile(const struct call *call, size_t head, size_t number, struct tile *tile)
{
	const struct kv_cache *cache = call->cache;
	size_t newest;

	tile->head = head;
	tile->first = number * call->kernels->rows;
	tile->rows = smaller(call->kernels->rows, call->steps * call->group - tile->first);
	newest = cache->steps + (tile->first + tile->rows - 1) / call->group;
	tile->window = kv_begin(cache, cache->steps + tile->first / call->group) / KV_LANES;
	tile->sink_panels = (kv_sinks_end(cache, newest) + KV_LANES - 1) / KV_LANES;
	tile->panels = tile->sink_panels + newest / KV_LANES + 1 - tile->window;
	for (size_t r = 0; r < tile->rows; r++) {
		const size_t t = cache->steps + (tile->first + r) / call->group,
			     shift = (tile->window - tile->sink_panels) * KV_LANES; /* modulo 2^n */

		tile->seen[r] = (struct seen){kv_sinks_end(cache, t), kv_begin(cache, t) - shift, t + 1 - shift};
	}
}

/* Neighbouring panels, from panel `panel` of the tile to at most `end`. */
static struct kv_run run_of(const struct call *call, const struct tile *tile, size_t panel, size_t end)
{
	struct kv_run run;

	if (panel >= tile->sink_panels)
		return kv_run_at(call->cache, tile->head, tile->window + panel - tile->sink_panels, end - panel);
	run = kv_sinks(call->cache, tile->head);
	run.keys += panel * call->cache->head_size * KV_LANES;
	run.values += panel * kv_row(call->cache->head_size) * KV_LANES;
	run.panels = smaller(end, tile->sink_panels) - panel;
	return run;
}

/* The tile's part of x, which is q or y. */
static size_t query_at(const struct call *call, const struct tile *tile, size_t row)
{
	const size_t i = tile->first + row;

	return (i / call->group * call->heads + tile->head * call->group + i % call->group) * call->cache->head_size;
}

/* Queries, transposed and scaled. */
static void lay_out_queries(const struct call *call, const struct tile *tile, float *q)
{
	const size_t size = call->cache->head_size;
	const float scale = (float)(1 / sqrt((double)size));

	for (size_t r = 0; r < tile->rows; r++) {
		const float *query = call->q + query_at(call, tile, r);

		for (size_t c = 0; c < size; c++)
			q[c * call->kernels->rows + r] = query[c] * scale;
	}
}

/* Mask lanes begin .. end-1 of a row, as far as they lie in these panels, with the least score. */
static void hide(const struct call *call, size_t row, size_t begin, size_t end, size_t panel, size_t panel_end,
		 float *scores)
{
	begin = larger(begin, panel * KV_LANES);
	end = smaller(end, panel_end * KV_LANES);
	for (size_t i = begin; i < end; i++)
		scores[(i / KV_LANES * call->kernels->rows + row) * KV_LANES + i % KV_LANES] = -INFINITY;
}

/* Scores of the tile with panels `panel` .. `end`-1. */
static void score(const struct call *call, const struct tile *tile, const float *q, size_t panel, size_t end,
		  float *scores)
{
	for (size_t p = panel; p < end;) {
		const struct kv_run run = run_of(call, tile, p, end);

		call->kernels->score(tile->rows, call->cache->head_size, q, run.keys, run.panels,
				     scores + p * call->kernels->rows * KV_LANES);
		p += run.panels;
	}
	for (size_t r = 0; r < tile->rows; r++) {
		const struct seen *seen = &tile->seen[r];

		hide(call, r, seen->sinks_end, seen->begin, panel, end, scores);
		hide(call, r, seen->end, tile->panels * KV_LANES, panel, end, scores);
	}
}

static bool sees(const struct tile *tile, size_t row, size_t lane)
{
	const struct seen *seen = &tile->seen[row];

	return lane < seen->sinks_end || (lane >= seen->begin && lane < seen->end);
}

/* The rows that see a lane, which are neighbours, since they are in the order of steps. Returns the first lane after it
 * where this may change. */
static size_t rows_that_see(const struct tile *tile, size_t lane, size_t end, size_t *from, size_t *to)
{
	*from = 0;
	while (*from < tile->rows && !sees(tile, *from, lane))
		++*from;
	*to = *from;
	while (*to < tile->rows && sees(tile, *to, lane))
		++*to;
	for (size_t r = 0; r < tile->rows; r++) {
		const struct seen *seen = &tile->seen[r];
		const size_t changes[] = {seen->sinks_end, seen->begin, seen->end};

		for (size_t i = 0; i < 3; i++)
			if (changes[i] > lane && changes[i] < end)
				end = changes[i];
	}
	return end;
}

/* Sums of channels `channel` .. `channel` + width-1, a part of a row in multiples of 16. */
static void add_values(const struct call *call, const struct tile *tile, const float *weights, size_t channel,
		       size_t width, float *acc)
{
	const size_t stride = kv_row(call->cache->head_size), rows = call->kernels->rows;

	for (size_t r = 0; r < tile->rows; r++)
		memset(acc + r * stride + channel, 0, width * sizeof(*acc));
	for (size_t p = 0; p < tile->panels;) {
		const struct kv_run run = run_of(call, tile, p, tile->panels);
		const size_t base = p * KV_LANES, end = base + run.panels * KV_LANES;

		for (size_t lane = base, next; lane < end; lane = next) {
			size_t from, to;

			next = rows_that_see(tile, lane, end, &from, &to);
			call->kernels->value(to - from, weights + (p * rows + from) * KV_LANES, lane - base,
					     next - base, run.values + channel, stride, width,
					     acc + from * stride + channel);
		}
		p += run.panels;
	}
}

/* Softmax of a tile's scores and the sum of values, for a part of the channels. `weights` may be `scores`. */
static void weigh(const struct call *call, const struct tile *tile, const float *scores, float *weights, size_t channel,
		  size_t width, float *acc)
{
	const size_t size = call->cache->head_size, stride = kv_row(size);
	float sum[MOST_ROWS];

	for (size_t r = 0; r < tile->rows; r++)
		sum[r] = call->kernels->soften(scores + r * KV_LANES, tile->panels, weights + r * KV_LANES);
	add_values(call, tile, weights, channel, width, acc);
	for (size_t r = 0; r < tile->rows; r++) {
		const float inverse = 1 / sum[r];
		float *y = call->y + query_at(call, tile, r);

		for (size_t c = channel; c < smaller(channel + width, size); c++)
			y[c] = acc[r * stride + c] * inverse;
	}
}

/* -------------------------------------------------------------------------------------------------------- pieces -- */

/* A worker's own memory. */
struct own {
	float *q, *acc, *scores;
};

static struct own own_of(const struct attend_scratch *scratch, unsigned worker)
{
	float *q = scratch->memory + worker * scratch->each, *acc = q + MOST_ROWS * kv_row(scratch->head_size);

	return (struct own){q, acc, acc + MOST_ROWS * kv_row(scratch->head_size)};
}

static void store_head(void *context, size_t head, unsigned worker)
{
	const struct call *call = context;
	const size_t at = head * call->cache->head_size;

	(void)worker;
	kv_store(call->cache, head, call->steps, call->k + at, call->v + at,
		 call->cache->heads * call->cache->head_size);
}

static void whole_tile(void *context, size_t i, unsigned worker)
{
	const struct call *call = context;
	const struct own own = own_of(call->scratch, worker);
	struct tile tile;

	make_tile(call, i / call->tiles, i % call->tiles, &tile);
	lay_out_queries(call, &tile, own.q);
	score(call, &tile, own.q, 0, tile.panels, own.scores);
	weigh(call, &tile, own.scores, own.scores, 0, kv_row(call->cache->head_size), own.acc);
}

static float *shared_scores(const struct call *call, size_t head)
{
	return call->scratch->shared + head * call->scratch->panels * MOST_ROWS * KV_LANES;
}

static void score_part(void *context, size_t i, unsigned worker)
{
	const struct call *call = context;
	const size_t head = i / call->parts, part = i % call->parts;
	const struct own own = own_of(call->scratch, worker);
	struct tile tile;

	make_tile(call, head, 0, &tile);
	lay_out_queries(call, &tile, own.q);
	score(call, &tile, own.q, tile.panels * part / call->parts, tile.panels * (part + 1) / call->parts,
	      shared_scores(call, head));
}

static void weigh_part(void *context, size_t i, unsigned worker)
{
	const struct call *call = context;
	const size_t head = i / call->parts, part = i % call->parts,
		     vectors = kv_row(call->cache->head_size) / KV_LANES, from = vectors * part / call->parts,
		     to = vectors * (part + 1) / call->parts;
	const struct own own = own_of(call->scratch, worker);
	struct tile tile;

	make_tile(call, head, 0, &tile);
	weigh(call, &tile, shared_scores(call, head), own.scores, from * KV_LANES, (to - from) * KV_LANES, own.acc);
}

/* ---------------------------------------------------------------------------------------------------------- call -- */

/* Multiplications below which waking other threads does not pay. */
#define WORTH_SHARING ((size_t)1 << 18)

static void share_out(struct pool *pool, bool worth_it, size_t count, pool_work *work, struct call *call)
{
	if (worth_it && count > 1)
		pool_run(pool, count, work, call, NULL);
	else
		for (size_t i = 0; i < count; i++)
			work(call, i, 0);
}

/* How many parts to divide the tile of a key head into, so that the work of all threads is equal. */
static size_t parts_of(const struct call *call)
{
	const size_t vectors = kv_row(call->cache->head_size) / KV_LANES, workers = call->scratch->workers;
	size_t parts = 1;

	if (call->tiles > 1)
		return 1;
	while (parts < vectors && call->cache->heads * parts % workers)
		parts++;
	return parts;
}

void attend(rosa_isa isa, struct pool *pool, struct attend_scratch *scratch, struct kv_cache *cache, size_t steps,
	    size_t heads, const float *q, const float *k, const float *v, float *y)
{
	struct call call = {.kernels = &variants[isa],
			    .scratch = scratch,
			    .cache = cache,
			    .steps = steps,
			    .heads = heads,
			    .group = heads / cache->heads,
			    .q = q,
			    .k = k,
			    .v = v,
			    .y = y};
	const size_t seen = kv_most_panels(cache, steps) * KV_LANES;
	const bool worth_it = scratch->workers > 1 && steps * heads * cache->head_size * seen > WORTH_SHARING;

	if (!steps)
		return;
	call.tiles = (steps * call.group + call.kernels->rows - 1) / call.kernels->rows;
	share_out(pool, worth_it && steps >= KV_LANES, cache->heads, store_head, &call);
	call.parts = worth_it ? parts_of(&call) : 1;
	if (call.parts > 1) {
		share_out(pool, true, cache->heads * call.parts, score_part, &call);
		share_out(pool, true, cache->heads * call.parts, weigh_part, &call);
	} else {
		share_out(pool, worth_it, cache->heads * call.tiles, whole_tile, &call);
	}
	cache->steps += steps;
}
