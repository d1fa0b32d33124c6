/*
 * The inner loops of products in whole numbers (fixed.h), compiled once for each instruction set by fixed.c.
 *
 * As in multiply_template.h there is a dot for one row of x, which unpacks a weight in registers, and a tile for
 * several, of weights that have been unpacked before. The sixteen sums of a tile are taken in parts, a vector each, so
 * that the sums fit into the registers.
 *
 * Before inclusion are defined, and undefined again at the end,
 *
 *     MULTIPLY_NAME     suffix of the functions
 *     MULTIPLY_TARGET   function attribute, or nothing
 *     MULTIPLY_PASSES   vectors that hold the sixteen sums
 *     MULTIPLY_STEPS    most steps of a tile, up to MULTIPLY_MOST_STEPS
 *
 * and with that suffix the types words_ (32 / MULTIPLY_PASSES numbers of 16 bits), whole_ (16 / MULTIPLY_PASSES whole
 * sums) and reals_ (as many in float32), and the functions
 *
 *     round_words_(x, factor, n)          32 numbers of x, times the factor, to the nearest whole numbers
 *     words_at_(n), words_to_(n, words)   from and to memory; for reals too
 *     half_(p)                            a float16
 *     q4_k_factors_(block, s, m)          of a Q4_K or Q5_K block: s of each group, and -m
 *     q6_k_factors_(block, s)             of a Q6_K block: s of each half group. Every s stands twice, side by side
 *     unpack_(format, block, j, s, to)    v of group j, a constant
 *     none_(), add_(sum, a, b)            whole sums; a b added, neighbours together
 *     zeros_(), all_(number), times_(a, b), whole_madd_(y, whole, b)
 *     no_eight_(), eight_plus_(a, b), eight_madd_(z, a, b), eight_at_(p), eight_to_(p, z)   of eight reals, eight_
 *     total_(y, sums)                     sums of four times 16 numbers, as fixed.h adds them
 */
#define PASTE2(a, b) a##b
#define PASTE(a, b)  PASTE2(a, b)
#define NAME(f)      PASTE(f, MULTIPLY_NAME)
#define WORDS        NAME(words_)
#define WHOLE        NAME(whole_)
#define REALS        NAME(reals_)
#define EIGHT        NAME(eight_)
#define INLINE       MULTIPLY_TARGET ALWAYS_INLINE
#define PART_WORDS   (32 / MULTIPLY_PASSES)
#define PART_SUMS    (16 / MULTIPLY_PASSES)

/* ---- x ---- */

/* Loops over whole numbers are left to the compiler: their order does not matter. */
MULTIPLY_TARGET static void NAME(round_)(const float *x, size_t columns, const struct operand *to)
{
	for (size_t b = 0; b < columns / FIXED_BLOCK; b++) {
		const float *from = x + b * FIXED_BLOCK;
		int16_t *n = to->n + b * FIXED_BLOCK;
		const struct fixed_scale scale = fixed_scale(fixed_most(from));

		for (int i = 0; i < FIXED_BLOCK; i += 32)
			NAME(round_words_)(from + i, scale.factor, n + i);
		to->scale[b] = scale.scale;
		for (int g = 0; g < FIXED_GROUPS; g++) {
			int32_t sum = 0;

			for (int i = 0; i < 32; i++)
				sum += n[g * 32 + i];
			to->sum[b * FIXED_GROUPS + g] = scale.scale * (float)sum;
		}
	}
}

/* The sums of m, added to the others. */
INLINE void NAME(join_)(float (*y)[16], const EIGHT *z)
{
	for (int r = 0; r < MULTIPLY_ROWS; r++)
		NAME(eight_to_)(y[r], NAME(eight_plus_)(NAME(eight_at_)(y[r]), z[r]));
}

/* ---- one step ---- */

struct NAME(factors_) {
	_Alignas(64) uint32_t s[16];
	float m[FIXED_GROUPS]; /* -m */
	float d;
};

INLINE void NAME(open_)(enum format format, const uint8_t *block, struct NAME(factors_) * factors)
{
	factors->d = NAME(half_)(block + (format == FORMAT_Q6_K ? 208 : 0));
	if (format == FORMAT_Q6_K)
		NAME(q6_k_factors_)(block, factors->s);
	else
		NAME(q4_k_factors_)(block, factors->s, factors->m);
	FROM_MEMORY(*factors);
}

INLINE void NAME(dot_four_)(enum format format, const uint8_t *const rows[MULTIPLY_ROWS], const struct operand *x,
			    size_t columns, float sums[MULTIPLY_ROWS])
{
	const size_t bytes = format_info[format].bytes;
	REALS sum[MULTIPLY_ROWS][MULTIPLY_PASSES];
	EIGHT z[MULTIPLY_ROWS];
	float y[MULTIPLY_ROWS][16];

	for (int r = 0; r < MULTIPLY_ROWS; r++) {
		z[r] = NAME(no_eight_)();
		for (int p = 0; p < MULTIPLY_PASSES; p++)
			sum[r][p] = NAME(zeros_)();
	}
	for (size_t b = 0; b < columns / FIXED_BLOCK; b++) {
		struct NAME(factors_) factors[MULTIPLY_ROWS];
		WHOLE whole[MULTIPLY_ROWS][MULTIPLY_PASSES];

		for (int r = 0; r < MULTIPLY_ROWS; r++) {
			NAME(open_)(format, rows[r] + b * bytes, &factors[r]);
			for (int p = 0; p < MULTIPLY_PASSES; p++)
				whole[r][p] = NAME(none_)();
		}
		UNROLL_8
		for (unsigned j = 0; j < FIXED_GROUPS; j++) {
			const int16_t *n = x->n + b * FIXED_BLOCK + j * 32;

			for (int r = 0; r < MULTIPLY_ROWS; r++) {
				WORDS v[MULTIPLY_PASSES];

				NAME(unpack_)(format, rows[r] + b * bytes, j, factors[r].s, v);
				for (int p = 0; p < MULTIPLY_PASSES; p++)
					whole[r][p] =
					    NAME(add_)(whole[r][p], v[p], NAME(words_at_)(n + p * PART_WORDS));
			}
		}
		for (int r = 0; r < MULTIPLY_ROWS; r++) {
			const REALS scale = NAME(times_)(NAME(all_)(factors[r].d), NAME(all_)(x->scale[b]));

			for (int p = 0; p < MULTIPLY_PASSES; p++)
				sum[r][p] = NAME(whole_madd_)(sum[r][p], whole[r][p], scale);
			if (format != FORMAT_Q6_K)
				z[r] = NAME(eight_madd_)(z[r], NAME(eight_at_)(factors[r].m),
							 NAME(eight_at_)(x->sum + b * FIXED_GROUPS));
		}
	}
	for (int r = 0; r < MULTIPLY_ROWS; r++)
		for (int p = 0; p < MULTIPLY_PASSES; p++)
			NAME(reals_to_)(y[r] + p * PART_SUMS, sum[r][p]);
	if (format != FORMAT_Q6_K)
		NAME(join_)(y, z);
	NAME(total_)(y, sums);
}

/* ---- several steps ---- */

INLINE void NAME(unpack_row_)(enum format format, const uint8_t *row, size_t columns, const struct operand *to)
{
	for (size_t b = 0; b < columns / FIXED_BLOCK; b++) {
		const uint8_t *block = row + b * format_info[format].bytes;
		struct NAME(factors_) factors;

		prefetch_ahead(block, format_info[format].bytes);
		NAME(open_)(format, block, &factors);
		to->scale[b] = factors.d;
		if (format != FORMAT_Q6_K)
			memcpy(to->sum + b * FIXED_GROUPS, factors.m, sizeof(factors.m));
		UNROLL_8
		for (unsigned j = 0; j < FIXED_GROUPS; j++) {
			WORDS v[MULTIPLY_PASSES];

			NAME(unpack_)(format, block, j, factors.s, v);
			for (int p = 0; p < MULTIPLY_PASSES; p++)
				NAME(words_to_)(to->n + b * FIXED_BLOCK + j * 32 + p * PART_WORDS, v[p]);
		}
	}
}

/* Part p of the sums of block b, added to y. */
INLINE void NAME(tile_block_)(const int steps, const int p, const struct operand *w, const struct operand *x, size_t b,
			      float (*y)[MULTIPLY_ROWS][16])
{
	const size_t first = b * FIXED_BLOCK + (size_t)p * PART_WORDS;
	WHOLE sum[MULTIPLY_STEPS][MULTIPLY_ROWS];
	REALS d[MULTIPLY_ROWS];

	for (int t = 0; t < steps; t++)
		for (int r = 0; r < MULTIPLY_ROWS; r++)
			sum[t][r] = NAME(none_)();
	for (size_t k = first; k < first + FIXED_BLOCK; k += 32)
		for (int t = 0; t < steps; t++)
			for (int r = 0; r < MULTIPLY_ROWS; r++)
				sum[t][r] =
				    NAME(add_)(sum[t][r], NAME(words_at_)(w[r].n + k), NAME(words_at_)(x[t].n + k));
	for (int r = 0; r < MULTIPLY_ROWS; r++)
		d[r] = NAME(all_)(w[r].scale[b]);
	for (int t = 0; t < steps; t++) {
		const REALS scale = NAME(all_)(x[t].scale[b]);

		for (int r = 0; r < MULTIPLY_ROWS; r++) {
			float *to = y[t][r] + p * PART_SUMS;

			NAME(reals_to_)
			(to, NAME(whole_madd_)(NAME(reals_at_)(to), sum[t][r], NAME(times_)(d[r], scale)));
		}
	}
}

/* The sums of m, which are float32 products of an eighth of a 256th of the numbers. */
INLINE void NAME(tile_m_)(const int steps, const struct operand *w, const struct operand *x, size_t count,
			  float (*y)[MULTIPLY_ROWS][16])
{
	EIGHT z[MULTIPLY_STEPS][MULTIPLY_ROWS];

	for (int t = 0; t < steps; t++)
		for (int r = 0; r < MULTIPLY_ROWS; r++)
			z[t][r] = NAME(no_eight_)();
	for (size_t i = 0; i < count; i += FIXED_GROUPS)
		for (int t = 0; t < steps; t++)
			for (int r = 0; r < MULTIPLY_ROWS; r++)
				z[t][r] = NAME(eight_madd_)(z[t][r], NAME(eight_at_)(w[r].sum + i),
							    NAME(eight_at_)(x[t].sum + i));
	for (int t = 0; t < steps; t++)
		NAME(join_)(y[t], z[t]);
}

INLINE void NAME(tile_)(const int steps, const struct operand *w, const struct operand *x, size_t columns,
			float (*sums)[MULTIPLY_ROWS])
{
	const size_t blocks = columns / FIXED_BLOCK;
	float y[MULTIPLY_STEPS][MULTIPLY_ROWS][16];

	for (int t = 0; t < steps; t++)
		for (int r = 0; r < MULTIPLY_ROWS; r++)
			for (int p = 0; p < MULTIPLY_PASSES; p++)
				NAME(reals_to_)(y[t][r] + p * PART_SUMS, NAME(zeros_)());
	for (size_t b = 0; b < blocks; b++)
		for (int p = 0; p < MULTIPLY_PASSES; p++)
			NAME(tile_block_)(steps, p, w, x, b, y);
	if (w->sum)
		NAME(tile_m_)(steps, w, x, blocks * FIXED_GROUPS, y);
	for (int t = 0; t < steps; t++)
		NAME(total_)(y[t], sums[t]);
}

/* ---- as functions of their own ---- */

#include "backend/loops_template.h"

DEFINE_FORMAT(q4_k, FORMAT_Q4_K)
DEFINE_FORMAT(q5_k, FORMAT_Q5_K)
DEFINE_FORMAT(q6_k, FORMAT_Q6_K)
#undef DEFINE_FORMAT

static const struct multiply_loops NAME(loops_) = {
    .steps = MULTIPLY_STEPS,
    .round = NAME(round_),
    .dot = {[FORMAT_Q4_K] = NAME(dot_q4_k_), [FORMAT_Q5_K] = NAME(dot_q5_k_), [FORMAT_Q6_K] = NAME(dot_q6_k_)},
    .unpack =
	{[FORMAT_Q4_K] = NAME(unpack_q4_k_), [FORMAT_Q5_K] = NAME(unpack_q5_k_), [FORMAT_Q6_K] = NAME(unpack_q6_k_)},
    .tile = {NAME(tile1_), NAME(tile2_), NAME(tile3_), NAME(tile4_), NAME(tile5_), NAME(tile6_)},
};

#undef PASTE2
#undef PASTE
#undef NAME
#undef WORDS
#undef WHOLE
#undef REALS
#undef EIGHT
#undef INLINE
#undef PART_WORDS
#undef PART_SUMS
#undef MULTIPLY_NAME
#undef MULTIPLY_TARGET
#undef MULTIPLY_PASSES
#undef MULTIPLY_STEPS
