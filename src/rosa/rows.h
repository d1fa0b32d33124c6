/*
 * Rows of activations on their way through float32.
 *
 * Products and sums want float32; what is kept and what the caller has may be bfloat16. Widening all rows of a pass at
 * once would take more memory than the pass keeps, so a pass walks over its rows in chunks: large enough for products
 * to be efficient, small enough to stay near the processor. Within a chunk, blocks of rows are what the workers share
 * out. Rows that are float32 already are used where they lie.
 *
 * Sums over time follow the blocks: every block has a partial sum of its own, and these are added in order, in double
 * precision. Which worker did which block does not show in the result.
 */
#ifndef ROSATUNE_ROWS_H
#define ROSATUNE_ROWS_H

#include "rosatune.h"

#include "base/pool.h"

#include <stdbool.h>

#define ROWS_CHUNK ((size_t)1024)
#define ROWS_BLOCK ((size_t)32)

/* The chunk at hand: rows first .. first + count-1 of arrays of [all][channels] elements. */
struct rows {
	struct pool *pool;
	rosa_dtype dtype;
	size_t channels, all;
	size_t first, count;
};

/* Rows of the largest chunk. */
size_t rows_chunk(const struct rows *rows);

/* The first chunk, and the next; false after the last one. */
bool rows_begin(struct rows *rows);
bool rows_next(struct rows *rows);

/* Row `row`, counted from the first of all, of an array. */
void *rows_at(const struct rows *rows, const void *array, size_t row);

/* One row in float32: the row itself, or `room` filled with it. */
const float *rows_floats(const struct rows *rows, const void *array, size_t row, float *room);

/* The chunk's rows of an array in float32: in place, or in `room`, [rows_chunk][channels]. */
const float *rows_widen(const struct rows *rows, const void *array, float *room);

/* Where float32 results meant for the chunk's rows of an array are to be written, and the step that puts them there. */
float *rows_target(const struct rows *rows, void *array, float *room);
void rows_narrow(const struct rows *rows, float *target, void *array);

/* Call `work` for each block of the chunk: with its number within the chunk, to be turned into rows by rows_block. */
void rows_each(const struct rows *rows, pool_work *work, void *context);
void rows_block(const struct rows *rows, size_t block, size_t *first, size_t *last);

/* A sum over all rows, of one number a channel. */
struct row_sums {
	size_t channels;
	float *partial; /* [blocks of a chunk][channels] */
	double *total;  /* [channels] */
};

/* Where a block adds its rows: zeroes at first. */
float *row_sums_of_block(const struct row_sums *sums, size_t block);

/* Add the partial sums of the chunk at hand to the total. */
void row_sums_gather(const struct row_sums *sums, const struct rows *rows);

#endif
