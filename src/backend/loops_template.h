/*
 * What multiply_template.h and fixed_template.h have in common: the functions of a table of loops, made of their
 * dot_four_, unpack_row_ and tile_. Included by them; afterwards DEFINE_FORMAT(name, format) makes the functions of a
 * format.
 */

/* The rows taken together are far apart: each of them is the next of a quarter of all rows, so that memory is read as
 * MULTIPLY_ROWS long stretches. Rows side by side would be lines in an order that hardware prefetchers do not follow,
 * and arrive at less than half the speed. Beyond the last row, that row is used again. */
INLINE void NAME(dot_)(enum format format, const uint8_t *row, size_t row_bytes, size_t count, const struct operand *x,
		       size_t columns, float *sums)
{
	const size_t quarter = (count + MULTIPLY_ROWS - 1) / MULTIPLY_ROWS;
	float four[MULTIPLY_ROWS];

	for (size_t r = 0; r < quarter; r++) {
		const uint8_t *rows[MULTIPLY_ROWS];

		for (size_t i = 0; i < MULTIPLY_ROWS; i++)
			rows[i] = row + smaller(i * quarter + r, count - 1) * row_bytes;
		NAME(dot_four_)(format, rows, x, columns, four);
		for (size_t i = 0; i < MULTIPLY_ROWS && i * quarter + r < count; i++)
			sums[i * quarter + r] = four[i];
	}
}

#define DEFINE_FORMAT(name, format)                                                                                    \
	MULTIPLY_TARGET static void NAME(dot_##name##_)(const uint8_t *row, size_t row_bytes, size_t count,            \
							const struct operand *x, size_t columns, float *sums)          \
	{                                                                                                              \
		NAME(dot_)(format, row, row_bytes, count, x, columns, sums);                                           \
	}                                                                                                              \
	MULTIPLY_TARGET static void NAME(unpack_##name##_)(const uint8_t *row, size_t columns,                         \
							   const struct operand *to)                                   \
	{                                                                                                              \
		NAME(unpack_row_)(format, row, columns, to);                                                           \
	}

#define DEFINE_TILE(steps)                                                                                             \
	MULTIPLY_TARGET static void NAME(tile##steps##_)(const struct operand *w, const struct operand *x,             \
							 size_t columns, float(*sums)[MULTIPLY_ROWS])                  \
	{                                                                                                              \
		NAME(tile_)(steps <= MULTIPLY_STEPS ? steps : 1, w, x, columns, sums);                                 \
	}

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
#undef DEFINE_TILE
