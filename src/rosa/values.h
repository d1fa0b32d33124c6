/*
 * The values of one layer and one sequence: for every step the signs of v, a bit per channel.
 *
 * A place that retrieval found is a step; what is read there is this row of bits. Rows are kept in blocks, so that a
 * growing text never moves what is there. A step takes bit_words(channels) * 8 bytes, an eighth of a byte per channel.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

#define VALUES_SHIFT 12 /* log2 of the steps of a block */

/* Rows of value bits in blocks of 2^shift steps, `words` words each. An array without blocks is one block: its shift is
 * VALUES_WHOLE. */
struct value_rows {
	const uint64_t *const *blocks;
	unsigned shift;
	size_t words;
};

#define VALUES_WHOLE 63

static inline const uint64_t *value_row(const struct value_rows *rows, size_t step)
{
	return rows->blocks[step >> rows->shift] + (step & (((size_t)1 << rows->shift) - 1)) * rows->words;
}

struct values {
	size_t channels, steps;
	uint64_t **blocks; /* [block_count][2^VALUES_SHIFT][words] */
	size_t block_count;
};

/* Values without steps. */
void values_init(struct values *values, size_t channels);
void values_free(struct values *values); /* safe on a zeroed one */

/* Append rows as backend_ops.pack makes them: bits [steps][words]. */
rosa_status values_append(struct values *values, size_t steps, const uint64_t *bits, rosa_error *err);

/* Goes back to the first `steps` steps. */
void values_rewind(struct values *values, size_t steps);
/* A copy of the first `steps` steps. On failure there is nothing to release. */
rosa_status values_fork(const struct values *values, size_t steps, struct values *copy, rosa_error *err);

/* For reading them; valid until the next values_append. */
struct value_rows values_rows(const struct values *values);

/* Bytes in use; all of them grow with the text. */
uint64_t values_bytes(const struct values *values);

/* All rows, for saving: values_image_bytes() bytes, little-endian words. */
size_t values_image_bytes(size_t channels, size_t steps);
void values_save(const struct values *values, void *image);
/* Values from an image of `steps` steps, which need not be aligned. ROSA_EFORMAT: bits are set behind the channels. */
rosa_status values_load(struct values *values, size_t channels, size_t steps, const void *image, rosa_error *err);
