/*
 * Products of activations by weights of any format.
 *
 * A weight stays as it is in its file, and is widened to float32, or in K formats unpacked to whole numbers (fixed.h),
 * on its way into a product. With one step that is done in registers, and every block is used once. With several steps
 * a strip of rows is widened into a worker's scratch memory, small enough for the caches, and multiplied from there by
 * all steps.
 *
 * Sums run along the rows of both operands, as these are stored, so nothing is transposed. The usual method of a BLAS,
 * the sums of several rows side by side in one register, would need a transposed weight for a single step too, since
 * the order of summation must be the same for any number of steps. The price is the tree at the end of each sum: a few
 * instructions per hundreds of multiplications.
 */
#include "backend/multiply.h"

#include "backend/fixed.h"
#include "backend/multiply_loops.h"
#include "base/sizes.h"
#include "base/status.h"

#include <stdlib.h>

#define SCRATCH_FLOATS ((size_t)96 << 10) /* per worker: a third of an L2 cache of 1 MiB */
#define ROUND_STEPS    16                 /* rounded by a worker at once */
#define NEAR_FLOATS    ((size_t)4 << 10)  /* a strip that stays in the L1 cache beside x */
#define FEW_STEPS      16                 /* with fewer steps a strip in L2 is not loaded again in time */
#define SMALL_WORK     ((size_t)32 << 10) /* multiplications below which waking the workers does not pay */
#define DIRECT_ROWS    1024               /* rows whose sums are put in place together */
#define PIECES         4                  /* pieces per worker: a slow worker's pieces can be taken over */

/* ------------------------------------------------------------------------------------------------------- scratch -- */

struct multiply_scratch {
	float *at; /* [workers][SCRATCH_FLOATS] */
	unsigned workers;
	struct operand x; /* MULTIPLY_MOST_FIXED numbers, for the weights that are multiplied in whole numbers */
};

rosa_status multiply_scratch_new(unsigned workers, struct multiply_scratch **made, rosa_error *err)
{
	struct multiply_scratch *scratch = calloc(1, sizeof(*scratch));

	*made = NULL;
	if (scratch) {
		scratch->at = aligned_alloc(64, workers * SCRATCH_FLOATS * sizeof(float));
		scratch->x.n = aligned_alloc(64, MULTIPLY_MOST_FIXED * sizeof(*scratch->x.n));
		scratch->x.scale = malloc(MULTIPLY_MOST_FIXED / FIXED_BLOCK * sizeof(float));
		scratch->x.sum = malloc(MULTIPLY_MOST_FIXED / FIXED_BLOCK * FIXED_GROUPS * sizeof(float));
	}
	if (!scratch || !scratch->at || !scratch->x.n || !scratch->x.scale || !scratch->x.sum) {
		multiply_scratch_free(scratch);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the products of %u workers", workers);
	}
	scratch->workers = workers;
	*made = scratch;
	return ROSA_OK;
}

void multiply_scratch_free(struct multiply_scratch *scratch)
{
	if (!scratch)
		return;
	free(scratch->at);
	free(scratch->x.n);
	free(scratch->x.scale);
	free(scratch->x.sum);
	free(scratch);
}

/* ---------------------------------------------------------------------------------------------------------- work -- */

struct job {
	const struct multiply_loops *wide, *fixed;
	struct multiply_scratch *scratch;
	size_t first, steps, columns; /* steps from `first` on */
	const float *x;               /* of the first */
	const struct product *products;
	size_t piece_rows;
};

/* A product, or some rows of it. */
struct part {
	const struct job *job;
	const struct product *product;
	const struct multiply_loops *loops;
	enum format format;
	size_t row_bytes;
};

static const uint8_t *row_of(const struct part *part, size_t r)
{
	return (const uint8_t *)part->product->weight->data + r * part->row_bytes;
}

/* Row t of x. */
static struct operand x_of(const struct job *job, const struct multiply_loops *loops, size_t t)
{
	const size_t at = t * job->columns;
	const struct operand *fixed = &job->scratch->x;

	if (!loops->round)
		return (struct operand){.wide = (float *)(uintptr_t)(job->x + at)}; /* which is only read */
	return (struct operand){.n = fixed->n + at,
				.scale = fixed->scale + at / FIXED_BLOCK,
				.sum = fixed->sum + at / FIXED_BLOCK * FIXED_GROUPS};
}

/* Floats between rows of a strip. Rows a power of two apart would compete for the same cache sets. */
static size_t stride_of(const struct part *part)
{
	const size_t columns = part->job->columns;
	const size_t floats = part->loops->round ? columns / 2 + columns / FIXED_BLOCK * (1 + FIXED_GROUPS) : columns;

	return (floats + 15) / 16 * 16 + 16;
}

/* A row of a strip, at `at`. */
static struct operand strip_row(const struct part *part, float *at)
{
	const size_t columns = part->job->columns;

	if (!part->loops->round)
		return (struct operand){.wide = at};
	return (struct operand){.n = (int16_t *)(void *)at,
				.scale = at + columns / 2,
				.sum = part->format == FORMAT_Q6_K ? NULL : at + columns / 2 + columns / FIXED_BLOCK};
}

static void put(const struct part *part, size_t t, size_t r, const float *sums, size_t count)
{
	const struct product *product = part->product;
	float *y = product->y + (part->job->first + t) * product->weight->rows + r;

	for (size_t i = 0; i < count; i++)
		y[i] = product->add ? y[i] + sums[i] : sums[i];
}

/* Rows [begin, end), unpacked in registers for each of the steps. */
static void multiply_directly(const struct part *part, size_t begin, size_t end)
{
	float sums[DIRECT_ROWS];

	for (size_t r = begin; r < end; r += DIRECT_ROWS) {
		const size_t count = smaller(end - r, DIRECT_ROWS);

		for (size_t t = 0; t < part->job->steps; t++) {
			const struct operand x = x_of(part->job, part->loops, t);

			part->loops->dot[part->format](row_of(part, r), part->row_bytes, count, &x, part->job->columns,
						       sums);
			put(part, t, r, sums, count);
		}
	}
}

/* A strip of rows [begin, end), unpacked at w, `stride` numbers apart. */
static void multiply_strip(const struct part *part, float *w, size_t stride, size_t begin, size_t end)
{
	const struct multiply_loops *loops = part->loops;
	struct operand rows[MULTIPLY_ROWS], x[MULTIPLY_MOST_STEPS];
	float sums[MULTIPLY_MOST_STEPS][MULTIPLY_ROWS];

	for (size_t t = 0; t < part->job->steps; t += loops->steps) {
		const size_t steps = smaller(part->job->steps - t, loops->steps);

		for (size_t i = 0; i < steps; i++)
			x[i] = x_of(part->job, loops, t + i);
		for (size_t r = begin; r < end; r += MULTIPLY_ROWS) {
			for (size_t i = 0; i < MULTIPLY_ROWS; i++)
				rows[i] = strip_row(part, w + (smaller(r + i, end - 1) - begin) * stride);
			loops->tile[steps - 1](rows, x, part->job->columns, sums);
			for (size_t i = 0; i < steps; i++)
				put(part, t + i, r, sums[i], smaller(end - r, MULTIPLY_ROWS));
		}
	}
}

static void multiply_rows(const struct part *part, size_t begin, size_t end, float *scratch)
{
	const struct job *job = part->job;
	const size_t stride = stride_of(part);
	const size_t room = job->steps < FEW_STEPS ? NEAR_FLOATS : SCRATCH_FLOATS;
	size_t strip = room / stride / MULTIPLY_ROWS * MULTIPLY_ROWS;

	if (!strip)
		strip = MULTIPLY_ROWS;
	if (job->steps == 1 || strip * stride > SCRATCH_FLOATS) {
		multiply_directly(part, begin, end);
		return;
	}
	for (size_t r = begin; r < end; r += strip) {
		const size_t stop = smaller(r + strip, end);

		for (size_t i = r; i < stop; i++) {
			const struct operand to = strip_row(part, scratch + (i - r) * stride);

			part->loops->unpack[part->format](row_of(part, i), job->columns, &to);
		}
		multiply_strip(part, scratch, stride, r, stop);
	}
}

/* -------------------------------------------------------------------------------------------------------- pieces -- */

static size_t pieces_of(const struct job *job, const struct product *product)
{
	return (product->weight->rows + job->piece_rows - 1) / job->piece_rows;
}

static void multiply_piece(void *context, size_t i, unsigned worker)
{
	const struct job *job = context;
	const struct product *product = job->products;

	for (; i >= pieces_of(job, product); product++)
		i -= pieces_of(job, product);
	const struct matrix *weight = product->weight;
	const struct part part = {job, product, format_is_fixed(weight->format) ? job->fixed : job->wide,
				  weight->format, format_row_bytes(weight->format, weight->columns)};

	multiply_rows(&part, i * job->piece_rows, smaller((i + 1) * job->piece_rows, weight->rows),
		      job->scratch->at + worker * SCRATCH_FLOATS);
}

static void round_piece(void *context, size_t piece, unsigned worker)
{
	const struct job *job = context;

	(void)worker;
	for (size_t t = piece * ROUND_STEPS; t < smaller((piece + 1) * ROUND_STEPS, job->steps); t++) {
		const struct operand to = x_of(job, job->fixed, t);

		job->fixed->round(job->x + t * job->columns, job->columns, &to);
	}
}

static void run(struct pool *pool, pool_work *work, struct job *job, size_t pieces, bool alone)
{
	if (!alone)
		pool_run(pool, pieces, work, job, NULL);
	else
		for (size_t i = 0; i < pieces; i++)
			work(job, i, 0);
}

void multiply_on(rosa_isa isa, struct pool *pool, struct multiply_scratch *scratch, size_t steps, const float *x,
		 size_t count, const struct product *products)
{
	struct job job = {multiply_loops_of(isa), fixed_loops_of(isa), scratch, 0, 0, 0, x, products, 0};
	size_t rows = 0, pieces = 0, at_once = steps;
	bool any_fixed = false, alone;

	if (!count || !steps)
		return;
	job.columns = products->weight->columns;
	for (size_t i = 0; i < count; i++) {
		rows += products[i].weight->rows;
		any_fixed |= format_is_fixed(products[i].weight->format);
	}
	if (!rows)
		return;
	alone = !pool || scratch->workers == 1 || rows * job.columns * steps <= SMALL_WORK;
	job.piece_rows = alone ? rows : (rows / (scratch->workers * PIECES) / MULTIPLY_ROWS + 1) * MULTIPLY_ROWS;
	for (size_t i = 0; i < count; i++)
		pieces += pieces_of(&job, &products[i]);
	if (any_fixed)
		at_once = smaller(steps, MULTIPLY_MOST_FIXED / job.columns);
	for (; job.first < steps; job.first += job.steps) {
		job.steps = smaller(steps - job.first, at_once);
		job.x = x + job.first * job.columns;
		if (any_fixed)
			run(pool, round_piece, &job, (job.steps + ROUND_STEPS - 1) / ROUND_STEPS,
			    alone || job.steps <= ROUND_STEPS);
		run(pool, multiply_piece, &job, pieces, alone);
	}
}

void multiply(struct pool *pool, struct multiply_scratch *scratch, size_t steps, const float *x, size_t count,
	      const struct product *products)
{
	multiply_on(multiply_isa_best(), pool, scratch, steps, x, count, products);
}
