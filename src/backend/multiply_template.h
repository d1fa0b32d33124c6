/*
 * The inner loops of products (multiply_loops.c), compiled once for each instruction set.
 *
 * A row of either side is taken in stretches of 16 numbers, one for each of the sums. Two shapes of loop are made here:
 *
 *   dot    a few rows of a weight by one step of x, widening the weight in registers on its way from memory
 *   tile   a few rows of a float32 weight by a few steps, for weights that have been widened before, by `unpack_row_`
 *
 * The sixteen sums of a tile may be more than there are registers for. Then they are taken part by part, in several
 * passes over the rows, which lie in the first-level cache; a sum is the same whichever pass it is taken in.
 *
 * Before inclusion are defined, and undefined again at the end,
 *
 *     MULTIPLY_NAME     suffix of the functions
 *     MULTIPLY_TARGET   function attribute, or nothing
 *     MULTIPLY_PASSES   of a tile
 *     MULTIPLY_STEPS    most steps of a tile, up to MULTIPLY_MOST_STEPS
 *
 * and with that suffix the types vec_ (16 numbers), part_ (16 / MULTIPLY_PASSES of them) and scale_ (what 4-bit numbers
 * turn into), and the functions
 *
 *     zero_(), load_(p), store_(p, v), madd_(sum, a, b)   of vectors; part_zero_, part_load_, part_madd_ of parts
 *     join_(parts)                     a vector of MULTIPLY_PASSES parts
 *     total_(v, sums)                  the sums over all numbers of four vectors each
 *     half_(p)                         a float16
 *     halves_(p, to)                   two of them side by side
 *     f16_(p), bf16_(p)                16 numbers
 *     bytes_(p, d)                     d q of 16 signed bytes
 *     scale_of_(zero, d, m)            d (q - zero) + m, for
 *     low_(p, s), high_(p, s)          the low and the high halves of 16 bytes
 *     fives_(p, a, fifth, zero, d, m)  16 numbers d (q - zero) + m, q being 4 bits of p[i] from bit a on, and bit i of
 *                                      `fifth` as the fifth
 */
#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(f)      PASTE(f, MULTIPLY_NAME)
#define VEC          NAME(vec_)
#define PART         NAME(part_)
#define SCALE        NAME(scale_)
#define INLINE       MULTIPLY_TARGET ALWAYS_INLINE

/* ---- from the formats to numbers ---- */

/* d and m of `count` stretches of a row of 4-bit numbers, from `first` on; of Q4_0, something in the place of m. They
 * are converted ahead, since a number that comes from memory is broadcast on its way, and one in a register takes a
 * permutation. */
INLINE void NAME(scales_)(enum format format, const uint8_t *row, size_t first, size_t count, float (*scales)[2])
{
	const size_t bytes = stretch_bytes(format);

	if (format == FORMAT_Q4_0 || format == FORMAT_Q4_1)
		for (size_t i = 0; i < count; i++)
			NAME(halves_)(row + (first + i) * bytes, scales[i]);
}

/* Stretch i of a row, 32 numbers, and its d and m from scales_. Called with a constant format, as are all functions
 * here. */
INLINE void NAME(unpack_)(enum format format, const uint8_t *row, size_t i, const float *dm, VEC to[2])
{
	SCALE scale;

	switch (format) {
	case FORMAT_F32:
		to[0] = NAME(load_)((const void *)(row + i * 128));
		to[1] = NAME(load_)((const void *)(row + i * 128 + 64));
		break;
	case FORMAT_F16:
		to[0] = NAME(f16_)(row + i * 64);
		to[1] = NAME(f16_)(row + i * 64 + 32);
		break;
	case FORMAT_BF16:
		to[0] = NAME(bf16_)(row + i * 64);
		to[1] = NAME(bf16_)(row + i * 64 + 32);
		break;
	case FORMAT_Q8_0:
		row += i * 34;
		to[0] = NAME(bytes_)(row + 2, NAME(half_)(row));
		to[1] = NAME(bytes_)(row + 18, NAME(half_)(row));
		break;
	case FORMAT_Q4_0:
		row += i * 18;
		/* -0 leaves every product as it is, even where that is a zero */
		scale = NAME(scale_of_)(8, dm[0], -0.0f);
		to[0] = NAME(low_)(row + 2, scale);
		to[1] = NAME(high_)(row + 2, scale);
		break;
	case FORMAT_Q4_1:
		row += i * 20;
		scale = NAME(scale_of_)(0, dm[0], dm[1]);
		to[0] = NAME(low_)(row + 4, scale);
		to[1] = NAME(high_)(row + 4, scale);
		break;
	case FORMAT_Q5_0:
		row += i * 22;
		for (unsigned half = 0; half < 2; half++)
			to[half] =
			    NAME(fives_)(row + 6, half * 4, two_bytes(row + 2 + half * 2), 16, NAME(half_)(row), -0.0f);
		break;
	case FORMAT_Q5_1:
		row += i * 24;
		for (unsigned half = 0; half < 2; half++)
			to[half] = NAME(fives_)(row + 8, half * 4, two_bytes(row + 4 + half * 2), 0, NAME(half_)(row),
						NAME(half_)(row + 2));
		break;
	case FORMAT_Q4_K:
	case FORMAT_Q5_K:
	case FORMAT_Q6_K: /* these are multiplied in whole numbers, fixed.h */
		break;
	}
}

/* ---- one step ---- */

INLINE void NAME(dot_four_)(enum format format, const uint8_t *const rows[MULTIPLY_ROWS], const struct operand *operand,
			    size_t columns, float sums[MULTIPLY_ROWS])
{
	const float *x = operand->wide;
	const size_t whole = columns / 32, rest = columns % 32;
	VEC sum[MULTIPLY_ROWS] = {NAME(zero_)(), NAME(zero_)(), NAME(zero_)(), NAME(zero_)()}, w[2];
	float scales[MULTIPLY_ROWS][SOME_STRETCHES][2];

	for (size_t first = 0; first < whole; first += SOME_STRETCHES) {
		const size_t some = smaller(whole - first, SOME_STRETCHES);

		for (int r = 0; r < MULTIPLY_ROWS; r++)
			NAME(scales_)(format, rows[r], first, some, scales[r]);
		for (size_t i = 0; i < some; i++) {
			const VEC x0 = NAME(load_)(x + (first + i) * 32), x1 = NAME(load_)(x + (first + i) * 32 + 16);

			for (int r = 0; r < MULTIPLY_ROWS; r++) {
				NAME(unpack_)(format, rows[r], first + i, scales[r][i], w);
				sum[r] = NAME(madd_)(sum[r], w[0], x0);
				sum[r] = NAME(madd_)(sum[r], w[1], x1);
			}
		}
	}
	if (rest) {
		float filled[2][32] = {{0}};

		memcpy(filled[0], x + whole * 32, rest * sizeof(float));
		for (int r = 0; r < MULTIPLY_ROWS; r++) {
			format_widen(format, rows[r] + format_row_bytes(format, whole * 32), rest, filled[1]);
			sum[r] = NAME(madd_)(sum[r], NAME(load_)(filled[1]), NAME(load_)(filled[0]));
			if (rest > 16)
				sum[r] = NAME(madd_)(sum[r], NAME(load_)(filled[1] + 16), NAME(load_)(filled[0] + 16));
		}
	}
	NAME(total_)(sum, sums);
}

/* ---- several steps ---- */

INLINE void NAME(unpack_row_)(enum format format, const uint8_t *row, size_t columns, const struct operand *operand)
{
	float *to = operand->wide;
	const size_t whole = columns / 32, rest = columns % 32;
	float scales[1][2];
	VEC w[2];

	for (size_t i = 0; i < whole; i++) {
		prefetch_ahead(format, row, i);
		NAME(scales_)(format, row, i, 1, scales);
		NAME(unpack_)(format, row, i, scales[0], w);
		NAME(store_)(to + i * 32, w[0]);
		NAME(store_)(to + i * 32 + 16, w[1]);
	}
	if (rest)
		format_widen(format, row + format_row_bytes(format, whole * 32), rest, to + whole * 32);
}

/* One part of the sums of a tile, over numbers [begin, end) of the rows; those before are in `sums`. */
INLINE void NAME(pass_)(const int steps, const float *const w[MULTIPLY_ROWS], const float *const *x, size_t begin,
			size_t end, PART (*sums)[MULTIPLY_ROWS])
{
	PART sum[MULTIPLY_STEPS][MULTIPLY_ROWS];

	for (int t = 0; t < steps; t++)
		for (int r = 0; r < MULTIPLY_ROWS; r++)
			sum[t][r] = begin ? sums[t][r] : NAME(part_zero_)();
	for (size_t k = begin; k < end; k += 16) {
		PART few[MULTIPLY_ROWS];

		/* the operand with fewer vectors stays in registers */
		if (steps < MULTIPLY_ROWS) {
			for (int t = 0; t < steps; t++)
				few[t] = NAME(part_load_)(x[t] + k);
			for (int r = 0; r < MULTIPLY_ROWS; r++) {
				const PART one = NAME(part_load_)(w[r] + k);

				for (int t = 0; t < steps; t++)
					sum[t][r] = NAME(part_madd_)(sum[t][r], one, few[t]);
			}
		} else {
			for (int r = 0; r < MULTIPLY_ROWS; r++)
				few[r] = NAME(part_load_)(w[r] + k);
			for (int t = 0; t < steps; t++) {
				const PART one = NAME(part_load_)(x[t] + k);

				for (int r = 0; r < MULTIPLY_ROWS; r++)
					sum[t][r] = NAME(part_madd_)(sum[t][r], few[r], one);
			}
		}
	}
	for (int t = 0; t < steps; t++)
		for (int r = 0; r < MULTIPLY_ROWS; r++)
			sums[t][r] = sum[t][r];
}

/* Not inlined: a compiler that sees several passes keeps the sums of all of them, and runs out of registers. */
#if MULTIPLY_PASSES > 1
MULTIPLY_TARGET static NEVER_INLINE void NAME(pass_apart_)(int steps, const float *const w[MULTIPLY_ROWS],
							   const float *const *x, size_t begin, size_t end,
							   PART (*sums)[MULTIPLY_ROWS])
{
	if (steps == MULTIPLY_STEPS)
		NAME(pass_)(MULTIPLY_STEPS, w, x, begin, end, sums);
	else
		for (int t = 0; t < steps; t++)
			NAME(pass_)(1, w, x + t, begin, end, sums + t);
}
#else
#define pass_apart_ pass_
#endif

INLINE void NAME(tile_)(const int steps, const struct operand *w, const struct operand *x, size_t columns,
			float (*sums)[MULTIPLY_ROWS])
{
	const size_t rest = columns % 16, whole = columns - rest;
	/* what is read several times must stay in the cache: it is divided into blocks of equal size */
	const size_t blocks = MULTIPLY_PASSES == 1 ? 1 : whole / PASS_COLUMNS + 1;
	const size_t block = (whole / 16 + blocks - 1) / blocks * 16;
	PART parts[MULTIPLY_PASSES][MULTIPLY_STEPS][MULTIPLY_ROWS];
	size_t begin = 0, end;

	do {
		end = MULTIPLY_PASSES == 1 || whole - begin < block ? whole : begin + block;
		for (int pass = 0; pass < MULTIPLY_PASSES; pass++) {
			const float *w_part[MULTIPLY_ROWS], *x_part[MULTIPLY_STEPS];

			for (int r = 0; r < MULTIPLY_ROWS; r++)
				w_part[r] = w[r].wide + pass * (16 / MULTIPLY_PASSES);
			for (int t = 0; t < steps; t++)
				x_part[t] = x[t].wide + pass * (16 / MULTIPLY_PASSES);
			NAME(pass_apart_)(steps, w_part, x_part, begin, end, parts[pass]);
		}
		begin = end;
	} while (MULTIPLY_PASSES > 1 && begin < whole);
	for (int t = 0; t < steps; t++) {
		VEC sum[MULTIPLY_ROWS];

		for (int r = 0; r < MULTIPLY_ROWS; r++) {
			PART some[MULTIPLY_PASSES];

			for (int pass = 0; pass < MULTIPLY_PASSES; pass++)
				some[pass] = parts[pass][t][r];
			sum[r] = NAME(join_)(some);
		}
		if (rest) {
			float filled[2][16] = {{0}};

			memcpy(filled[0], x[t].wide + columns - rest, rest * sizeof(float));
			for (int r = 0; r < MULTIPLY_ROWS; r++) {
				memcpy(filled[1], w[r].wide + columns - rest, rest * sizeof(float));
				sum[r] = NAME(madd_)(sum[r], NAME(load_)(filled[1]), NAME(load_)(filled[0]));
			}
		}
		NAME(total_)(sum, sums[t]);
	}
}

/* ---- as functions of their own ---- */

#include "backend/loops_template.h"

DEFINE_FORMAT(f32, FORMAT_F32)
DEFINE_FORMAT(f16, FORMAT_F16)
DEFINE_FORMAT(bf16, FORMAT_BF16)
DEFINE_FORMAT(q8_0, FORMAT_Q8_0)
DEFINE_FORMAT(q4_0, FORMAT_Q4_0)
DEFINE_FORMAT(q4_1, FORMAT_Q4_1)
DEFINE_FORMAT(q5_0, FORMAT_Q5_0)
DEFINE_FORMAT(q5_1, FORMAT_Q5_1)
#undef DEFINE_FORMAT

static const struct multiply_loops NAME(loops_) = {
    .steps = MULTIPLY_STEPS,
    .dot = {[FORMAT_F32] = NAME(dot_f32_),
	    [FORMAT_F16] = NAME(dot_f16_),
	    [FORMAT_BF16] = NAME(dot_bf16_),
	    [FORMAT_Q8_0] = NAME(dot_q8_0_),
	    [FORMAT_Q4_0] = NAME(dot_q4_0_),
	    [FORMAT_Q4_1] = NAME(dot_q4_1_),
	    [FORMAT_Q5_0] = NAME(dot_q5_0_),
	    [FORMAT_Q5_1] = NAME(dot_q5_1_)},
    .unpack = {[FORMAT_F32] = NAME(unpack_f32_),
	       [FORMAT_F16] = NAME(unpack_f16_),
	       [FORMAT_BF16] = NAME(unpack_bf16_),
	       [FORMAT_Q8_0] = NAME(unpack_q8_0_),
	       [FORMAT_Q4_0] = NAME(unpack_q4_0_),
	       [FORMAT_Q4_1] = NAME(unpack_q4_1_),
	       [FORMAT_Q5_0] = NAME(unpack_q5_0_),
	       [FORMAT_Q5_1] = NAME(unpack_q5_1_)},
    .tile = {NAME(tile1_), NAME(tile2_), NAME(tile3_), NAME(tile4_), NAME(tile5_), NAME(tile6_)},
};

#undef PASTE2
#undef PASTE
#undef NAME
#undef VEC
#undef PART
#undef SCALE
#undef INLINE
#undef pass_apart_
#undef MULTIPLY_NAME
#undef MULTIPLY_TARGET
#undef MULTIPLY_PASSES
#undef MULTIPLY_STEPS
