/* Rows of activations on their way through float32. */
#include "rosa/rows.h"
#include "backend/convert.h"

#include <string.h>

size_t rows_chunk(const struct rows *rows)
{
	return rows->all < ROWS_CHUNK ? rows->all : ROWS_CHUNK;
}

static bool rows_set(struct rows *rows, size_t first)
{
	rows->first = first;
	rows->count = rows->all - first < ROWS_CHUNK ? rows->all - first : ROWS_CHUNK;
	return rows->count > 0;
}

bool rows_begin(struct rows *rows)
{
	return rows_set(rows, 0);
}

bool rows_next(struct rows *rows)
{
	return rows_set(rows, rows->first + rows->count);
}

void *rows_at(const struct rows *rows, const void *array, size_t row)
{
	return (char *)array + row * rows->channels * activation_size(rows->dtype);
}

const float *rows_floats(const struct rows *rows, const void *array, size_t row, float *room)
{
	if (rows->dtype == ROSA_FLOAT32)
		return (const float *)array + row * rows->channels;
	activations_load(room, rows->dtype, array, row * rows->channels, rows->channels);
	return room;
}

void rows_each(const struct rows *rows, pool_work *work, void *context)
{
	pool_run(rows->pool, (rows->count + ROWS_BLOCK - 1) / ROWS_BLOCK, work, context, NULL);
}

void rows_block(const struct rows *rows, size_t block, size_t *first, size_t *last)
{
	const size_t end = rows->first + rows->count;

	*first = rows->first + block * ROWS_BLOCK;
	*last = end - *first < ROWS_BLOCK ? end : *first + ROWS_BLOCK;
}

struct conversion {
	const struct rows *rows;
	const void *narrow; /* all rows */
	void *narrow_out;
	float *wide; /* those of the chunk */
};

static void convert_block(void *context, size_t block, unsigned worker)
{
	const struct conversion *conversion = context;
	const struct rows *rows = conversion->rows;
	size_t first, last, count;
	float *wide;

	(void)worker;
	rows_block(rows, block, &first, &last);
	count = (last - first) * rows->channels;
	wide = conversion->wide + (first - rows->first) * rows->channels;
	if (conversion->narrow_out)
		activations_store(conversion->narrow_out, rows->dtype, wide, first * rows->channels, count);
	else
		activations_load(wide, rows->dtype, conversion->narrow, first * rows->channels, count);
}

const float *rows_widen(const struct rows *rows, const void *array, float *room)
{
	struct conversion conversion = {.rows = rows, .narrow = array, .wide = room};

	if (rows->dtype == ROSA_FLOAT32)
		return rows_at(rows, array, rows->first);
	rows_each(rows, convert_block, &conversion);
	return room;
}

float *rows_target(const struct rows *rows, void *array, float *room)
{
	return rows->dtype == ROSA_FLOAT32 ? rows_at(rows, array, rows->first) : room;
}

void rows_narrow(const struct rows *rows, float *target, void *array)
{
	struct conversion conversion = {.rows = rows, .narrow_out = array, .wide = target};

	if (rows->dtype != ROSA_FLOAT32)
		rows_each(rows, convert_block, &conversion);
}

float *row_sums_of_block(const struct row_sums *sums, size_t block)
{
	float *partial = sums->partial + block * sums->channels;

	memset(partial, 0, sums->channels * sizeof(*partial));
	return partial;
}

void row_sums_gather(const struct row_sums *sums, const struct rows *rows)
{
	for (size_t block = 0; block * ROWS_BLOCK < rows->count; block++)
		for (size_t c = 0; c < sums->channels; c++)
			sums->total[c] += (double)sums->partial[block * sums->channels + c];
}
