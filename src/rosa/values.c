/* Value bits in blocks of steps. */
#include "rosa/values.h"
#include "backend/backend.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)1 << VALUES_SHIFT)

void values_init(struct values *values, size_t channels)
{
	*values = (struct values){.channels = channels};
}

void values_free(struct values *values)
{
	for (size_t i = 0; i < values->block_count; i++)
		free(values->blocks[i]);
	free(values->blocks);
	*values = (struct values){0};
}

static size_t row_bytes(const struct values *values)
{
	return bit_words(values->channels) * sizeof(uint64_t);
}

/* Blocks for `steps` steps in all. */
static rosa_status reserve(struct values *values, size_t steps, rosa_error *err)
{
	const size_t need = (steps + BLOCK - 1) / BLOCK;

	if (need > values->block_count) {
		uint64_t **blocks = realloc(values->blocks, need * sizeof(*blocks));

		if (!blocks)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the values of %zu steps", steps);
		values->blocks = blocks;
	}
	while (values->block_count < need) {
		uint64_t *block = malloc(BLOCK * row_bytes(values));

		if (!block)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the values of %zu steps", steps);
		values->blocks[values->block_count++] = block;
	}
	return ROSA_OK;
}

/* Copy the rows of steps first .. first + count - 1 between the blocks and an array of bytes. */
static void copy_rows(const struct values *values, size_t first, size_t count, char *rows, bool in)
{
	const size_t bytes = row_bytes(values);

	while (count) {
		const size_t here = BLOCK - first % BLOCK, some = here < count ? here : count;
		char *kept = (char *)values->blocks[first / BLOCK] + first % BLOCK * bytes;

		memcpy(in ? kept : rows, in ? rows : kept, some * bytes);
		first += some;
		rows += some * bytes;
		count -= some;
	}
}

rosa_status values_append(struct values *values, size_t steps, const uint64_t *bits, rosa_error *err)
{
	rosa_status status = reserve(values, values->steps + steps, err);

	if (status != ROSA_OK)
		return status;
	copy_rows(values, values->steps, steps, (char *)bits, true);
	values->steps += steps;
	return ROSA_OK;
}

void values_rewind(struct values *values, size_t steps)
{
	values->steps = steps;
}

rosa_status values_fork(const struct values *values, size_t steps, struct values *copy, rosa_error *err)
{
	rosa_status status;

	values_init(copy, values->channels);
	status = reserve(copy, steps, err);
	if (status != ROSA_OK) {
		values_free(copy);
		return status;
	}
	for (size_t i = 0; i < copy->block_count; i++) {
		const size_t left = steps - i * BLOCK;

		memcpy(copy->blocks[i], values->blocks[i], (left < BLOCK ? left : BLOCK) * row_bytes(values));
	}
	copy->steps = steps;
	return ROSA_OK;
}

struct value_rows values_rows(const struct values *values)
{
	return (struct value_rows){(const uint64_t *const *)values->blocks, VALUES_SHIFT, bit_words(values->channels)};
}

uint64_t values_bytes(const struct values *values)
{
	return values->block_count * (sizeof(*values->blocks) + BLOCK * row_bytes(values));
}

size_t values_image_bytes(size_t channels, size_t steps)
{
	return steps * bit_words(channels) * sizeof(uint64_t);
}

void values_save(const struct values *values, void *image)
{
	copy_rows(values, 0, values->steps, image, false);
}

rosa_status values_load(struct values *values, size_t channels, size_t steps, const void *image, rosa_error *err)
{
	const size_t words = bit_words(channels);
	rosa_status status;

	values_init(values, channels);
	status = reserve(values, steps, err);
	if (status != ROSA_OK) {
		values_free(values);
		return status;
	}
	copy_rows(values, 0, steps, (char *)image, true);
	values->steps = steps;
	for (size_t t = 0; t < steps && channels % 64; t++) {
		if (values->blocks[t / BLOCK][t % BLOCK * words + words - 1] >> channels % 64) {
			values_free(values);
			return rosa_fail(err, ROSA_EFORMAT, "the saved values have bits behind their %zu channels",
					 channels);
		}
	}
	return ROSA_OK;
}
