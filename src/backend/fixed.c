/*
 * Products in whole numbers: the vectors of each instruction set, from which fixed_template.h makes the loops.
 */
#include "backend/fixed.h"

#include "base/compiler.h"
#include "base/sizes.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* With sanitizers the loops are compiled as they are written: unrolled they take a compiler most of a minute. */
#ifndef ROSATUNE_ONE_VERSION
#define UNROLL_8 _Pragma("GCC unroll 8")
/* Makes the compiler load what it would keep in registers. Filling a register with copies of a number costs nothing if
 * the number comes from memory, and a permutation if it is in a register. */
#define FROM_MEMORY(object) __asm__ volatile("" : "+m"(object))
#else
#define FROM_MEMORY(object) (void)0
#define UNROLL_8
#endif

#define PREFETCH_BYTES 4096 /* far enough for memory, near enough for the L1 cache */

/* Rows are unpacked in turns with using them, which hardware prefetchers take for the end of a stream. An address
 * beyond the weight does no harm. */
ALWAYS_INLINE void prefetch_ahead(const uint8_t *block, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		PREFETCH(block + i + PREFETCH_BYTES);
}

/* The greatest magnitude of a block. The bits of floats without sign are in the order of their values, infinity and
 * what is not a number above all. */
ALWAYS_INLINE float fixed_most(const float *x)
{
	int32_t bits[FIXED_BLOCK], most = 0;
	float number;

	memcpy(bits, x, sizeof(bits));
	for (int i = 0; i < FIXED_BLOCK; i++) {
		bits[i] &= INT32_MAX;
		most = bits[i] > most ? bits[i] : most;
	}
	memcpy(&number, &most, sizeof(number));
	return number;
}

struct fixed_scale {
	float scale, factor; /* x = scale n; n = factor x */
};

ALWAYS_INLINE struct fixed_scale fixed_scale(float most)
{
	if (!(most <= FLT_MAX))
		return (struct fixed_scale){NAN, 0};
	if (most < 0x1p-100f)
		return (struct fixed_scale){0, 0};
	return (struct fixed_scale){most / 32767, 32767 / most};
}

/* -------------------------------------------------------------------------------------------------------- plain -- */

typedef struct {
	int16_t at[32];
} words_plain;

typedef struct {
	int32_t at[16];
} whole_plain;

typedef struct {
	float at[16];
} reals_plain;

typedef struct {
	float at[FIXED_GROUPS];
} eight_plain;

ALWAYS_INLINE void round_words_plain(const float *x, float factor, int16_t *n)
{
	for (int i = 0; i < 32; i++) /* what is not a number has no whole number */
		n[i] = (int16_t)(factor > 0 ? lrintf(x[i] * factor) : 0);
}

ALWAYS_INLINE words_plain words_at_plain(const int16_t *n)
{
	words_plain words;

	memcpy(&words, n, sizeof(words));
	return words;
}

ALWAYS_INLINE void words_to_plain(int16_t *n, words_plain words)
{
	memcpy(n, &words, sizeof(words));
}

ALWAYS_INLINE float half_plain(const uint8_t *p)
{
	return format_half(p);
}

ALWAYS_INLINE uint32_t twice(int factor)
{
	return (uint32_t)factor << 16 | ((uint32_t)factor & 0xffff);
}

ALWAYS_INLINE void q4_k_factors_plain(const uint8_t *block, uint32_t *s, float *m)
{
	for (unsigned j = 0; j < FIXED_GROUPS; j++) {
		const struct q4_k_bits bits = q4_k_bits(block, j);

		s[j] = twice((int)bits.s);
		m[j] = -format_half(block + 2) * (float)bits.m;
	}
}

ALWAYS_INLINE void q6_k_factors_plain(const uint8_t *block, uint32_t *s)
{
	for (int i = 0; i < 16; i++)
		s[i] = twice((int8_t)block[192 + i]);
}

ALWAYS_INLINE void unpack_plain(enum format format, const uint8_t *block, unsigned j, const uint32_t *s,
				words_plain *to)
{
	const uint8_t *q4 = block + 16 + j / 2 * 32, *q5 = block + 48 + j / 2 * 32;
	const uint8_t *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;

	for (unsigned i = 0; i < 32; i++) {
		int q;

		if (format == FORMAT_Q4_K)
			q = q4[i] >> j % 2 * 4 & 15;
		else if (format == FORMAT_Q5_K)
			q = (q5[i] >> j % 2 * 4 & 15) | (block[16 + i] >> j & 1) << 4;
		else
			q = ((low[i] >> j % 4 / 2 * 4 & 15) | (high[i] >> j % 4 * 2 & 3) << 4) - 32;
		to->at[i] = (int16_t)(q * (int16_t)(format == FORMAT_Q6_K ? s[2 * j + i / 16] : s[j]));
	}
}

ALWAYS_INLINE whole_plain none_plain(void)
{
	return (whole_plain){{0}};
}

ALWAYS_INLINE whole_plain add_plain(whole_plain sum, words_plain a, words_plain b)
{
	for (int l = 0; l < 16; l++)
		sum.at[l] += a.at[2 * l] * b.at[2 * l] + a.at[2 * l + 1] * b.at[2 * l + 1];
	return sum;
}

ALWAYS_INLINE reals_plain zeros_plain(void)
{
	return (reals_plain){{0}};
}

ALWAYS_INLINE reals_plain all_plain(float number)
{
	reals_plain all;

	for (int l = 0; l < 16; l++)
		all.at[l] = number;
	return all;
}

ALWAYS_INLINE reals_plain reals_at_plain(const float *p)
{
	reals_plain reals;

	memcpy(&reals, p, sizeof(reals));
	return reals;
}

ALWAYS_INLINE void reals_to_plain(float *p, reals_plain reals)
{
	memcpy(p, &reals, sizeof(reals));
}

ALWAYS_INLINE reals_plain times_plain(reals_plain a, reals_plain b)
{
	for (int l = 0; l < 16; l++)
		a.at[l] *= b.at[l];
	return a;
}

ALWAYS_INLINE reals_plain whole_madd_plain(reals_plain y, whole_plain whole, reals_plain b)
{
	for (int l = 0; l < 16; l++)
		y.at[l] += (float)whole.at[l] * b.at[l];
	return y;
}

ALWAYS_INLINE eight_plain no_eight_plain(void)
{
	return (eight_plain){{0}};
}

ALWAYS_INLINE eight_plain eight_at_plain(const float *p)
{
	eight_plain eight;

	memcpy(&eight, p, sizeof(eight));
	return eight;
}

ALWAYS_INLINE eight_plain eight_plus_plain(eight_plain a, eight_plain b)
{
	for (int g = 0; g < FIXED_GROUPS; g++)
		a.at[g] += b.at[g];
	return a;
}

ALWAYS_INLINE eight_plain eight_madd_plain(eight_plain z, eight_plain a, eight_plain b)
{
	for (int g = 0; g < FIXED_GROUPS; g++)
		z.at[g] += a.at[g] * b.at[g];
	return z;
}

ALWAYS_INLINE void eight_to_plain(float *p, eight_plain z)
{
	memcpy(p, &z, sizeof(z));
}

ALWAYS_INLINE void total_plain(float (*y)[16], float *sums)
{
	for (int r = 0; r < MULTIPLY_ROWS; r++) {
		for (int half = 8; half; half /= 2)
			for (int l = 0; l < half; l++)
				y[r][l] += y[r][l + half];
		sums[r] = y[r][0];
	}
}

#define MULTIPLY_NAME plain
#define MULTIPLY_TARGET
#define MULTIPLY_PASSES 1
#define MULTIPLY_STEPS  1
#include "backend/fixed_template.h"

#if ROSA_X86_VARIANTS
#include <immintrin.h>

/* --------------------------------------------------------------------------------------------------------- AVX2 -- */

#define TARGET_AVX2   __attribute__((target("avx2,fma,f16c")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
#define AVX2          TARGET_AVX2 ALWAYS_INLINE
#define AVX512        TARGET_AVX512 ALWAYS_INLINE

typedef __m256i words_avx2, whole_avx2;
typedef __m256 reals_avx2, eight_avx2;

AVX2 __m256i rounded(const float *x, __m256 factor)
{
	return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
}

AVX2 void round_words_avx2(const float *x, float factor, int16_t *n)
{
	const __m256 f = _mm256_set1_ps(factor);

	if (!(factor > 0)) {
		memset(n, 0, 32 * sizeof(*n));
		return;
	}
	for (int i = 0; i < 32; i += 16) /* packing works on halves, which are put in order */
		_mm256_storeu_si256(
		    (__m256i *)(n + i),
		    _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded(x + i, f), rounded(x + i + 8, f)), 0xd8));
}

AVX2 words_avx2 words_at_avx2(const int16_t *n)
{
	return _mm256_loadu_si256((const __m256i *)n);
}

AVX2 void words_to_avx2(int16_t *n, words_avx2 words)
{
	_mm256_storeu_si256((__m256i *)n, words);
}

AVX2 float half_avx2(const uint8_t *p)
{
	uint16_t half;

	memcpy(&half, p, sizeof(half));
	return _cvtsh_ss(half);
}

AVX2 __m256i twice_avx2(__m256i factors)
{
	return _mm256_or_si256(_mm256_slli_epi32(factors, 16), _mm256_and_si256(factors, _mm256_set1_epi32(0xffff)));
}

/* q4_k_bits in format.h describes the layout. All sixteen at once: of each the byte with its low bits, and for the
 * second four of s and of m the one with the high bits. */
AVX2 void q4_k_factors_avx2(const uint8_t *block, uint32_t *s, float *m)
{
	const __m128i bytes = _mm_loadu_si128((const __m128i *)block); /* 4 to 15 have the factors */
	const __m128i low =
	    _mm_shuffle_epi8(bytes, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
	const __m128i high =
	    _mm_shuffle_epi8(bytes, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
	const __m128i lows = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0)),
		      upper_lows = _mm_and_si128(_mm_srli_epi16(low, 4), _mm_setr_epi32(0, 0, 0, 0x0f0f0f0f)),
		      highs = _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(0x30));
	const __m128i all = _mm_or_si128(_mm_or_si128(lows, upper_lows), highs);
	const __m256i of_s = _mm256_cvtepu8_epi32(all), of_m = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(all, all));

	_mm256_storeu_si256((__m256i *)s, _mm256_or_si256(of_s, _mm256_slli_epi32(of_s, 16)));
	_mm256_storeu_ps(m, _mm256_mul_ps(_mm256_cvtepi32_ps(of_m), _mm256_set1_ps(-half_avx2(block + 2))));
}

AVX2 void q6_k_factors_avx2(const uint8_t *block, uint32_t *s)
{
	for (int i = 0; i < 16; i += 8)
		_mm256_storeu_si256((__m256i *)(s + i), twice_avx2(_mm256_cvtepi8_epi32(
							    _mm_loadl_epi64((const __m128i *)(block + 192 + i)))));
}

AVX2 __m256i bytes_at(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

/* 4 bits of each of 32 bytes, from bit `a` on, 0 or 4. */
AVX2 __m256i fours(const uint8_t *p, unsigned a)
{
	return _mm256_and_si256(a ? _mm256_srli_epi16(bytes_at(p), 4) : bytes_at(p), _mm256_set1_epi8(15));
}

/* Bits of each of 32 bytes, those from bit `from` on moved to bit 4 and on, as the mask has them. */
AVX2 __m256i upper(const uint8_t *p, unsigned from, int mask)
{
	const __m256i bytes = bytes_at(p), moved = from < 4 ? _mm256_slli_epi16(bytes, 4 - (int)from)
							    : _mm256_srli_epi16(bytes, (int)from - 4);

	return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* q of group j, a constant, in bytes. */
AVX2 __m256i q_bytes(enum format format, const uint8_t *block, unsigned j)
{
	if (format == FORMAT_Q4_K)
		return fours(block + 16 + j / 2 * 32, j % 2 * 4);
	if (format == FORMAT_Q5_K)
		return _mm256_or_si256(fours(block + 48 + j / 2 * 32, j % 2 * 4), upper(block + 16, j, 16));
	return _mm256_sub_epi8(_mm256_or_si256(fours(block + j / 4 * 64 + j % 2 * 32, j % 4 / 2 * 4),
					       upper(block + 128 + j / 4 * 32, j % 4 * 2, 48)),
			       _mm256_set1_epi8(32));
}

AVX2 void unpack_avx2(enum format format, const uint8_t *block, unsigned j, const uint32_t *s, words_avx2 *to)
{
	const __m256i q = q_bytes(format, block, j);
	const uint32_t low = format == FORMAT_Q6_K ? s[2 * j] : s[j], high = format == FORMAT_Q6_K ? s[2 * j + 1] : low;

	to[0] = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)), _mm256_set1_epi32((int)low));
	to[1] = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)), _mm256_set1_epi32((int)high));
}

AVX2 whole_avx2 none_avx2(void)
{
	return _mm256_setzero_si256();
}

/* Written out: gcc 12 computes the products of a tile ahead of their sums, for which there are too few registers. */
AVX2 whole_avx2 add_avx2(whole_avx2 sum, words_avx2 a, words_avx2 b)
{
	__m256i products;

	__asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "xm"(b));
	return sum;
}

AVX2 reals_avx2 zeros_avx2(void)
{
	return _mm256_setzero_ps();
}

AVX2 reals_avx2 all_avx2(float number)
{
	return _mm256_set1_ps(number);
}

AVX2 reals_avx2 reals_at_avx2(const float *p)
{
	return _mm256_loadu_ps(p);
}

AVX2 void reals_to_avx2(float *p, reals_avx2 reals)
{
	_mm256_storeu_ps(p, reals);
}

#define no_eight_avx2 zeros_avx2
#define eight_at_avx2 reals_at_avx2
#define eight_to_avx2 reals_to_avx2

AVX2 reals_avx2 times_avx2(reals_avx2 a, reals_avx2 b)
{
	return _mm256_mul_ps(a, b);
}

AVX2 eight_avx2 eight_plus_avx2(eight_avx2 a, eight_avx2 b)
{
	return _mm256_add_ps(a, b);
}

AVX2 eight_avx2 eight_madd_avx2(eight_avx2 z, eight_avx2 a, eight_avx2 b)
{
	return _mm256_add_ps(z, _mm256_mul_ps(a, b));
}

AVX2 reals_avx2 whole_madd_avx2(reals_avx2 y, whole_avx2 whole, reals_avx2 b)
{
	return _mm256_add_ps(y, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), b));
}

AVX2 __m128 four_of(const float *y)
{
	const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(y), _mm256_loadu_ps(y + 8));

	return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

AVX2 void total_avx2(float (*y)[16], float *sums)
{
	const __m128 a = four_of(y[0]), b = four_of(y[1]), c = four_of(y[2]), d = four_of(y[3]);
	const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
	const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));

	_mm_storeu_ps(sums, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

#define MULTIPLY_NAME   avx2
#define MULTIPLY_TARGET TARGET_AVX2
#define MULTIPLY_PASSES 2
#define MULTIPLY_STEPS  3
#include "backend/fixed_template.h"

/* ------------------------------------------------------------------------------------------------------ AVX-512 -- */

typedef __m512i words_avx512, whole_avx512;
typedef __m512 reals_avx512;
typedef __m256 eight_avx512;

#define round_words_avx512  round_words_avx2
#define half_avx512         half_avx2
#define q4_k_factors_avx512 q4_k_factors_avx2
#define q6_k_factors_avx512 q6_k_factors_avx2
#define total_avx512        total_avx2
#define no_eight_avx512     no_eight_avx2
#define eight_at_avx512     eight_at_avx2
#define eight_to_avx512     eight_to_avx2
#define eight_madd_avx512   eight_madd_avx2
#define eight_plus_avx512   eight_plus_avx2

AVX512 words_avx512 words_at_avx512(const int16_t *n)
{
	return _mm512_loadu_si512(n);
}

AVX512 void words_to_avx512(int16_t *n, words_avx512 words)
{
	_mm512_storeu_si512(n, words);
}

AVX512 void unpack_avx512(enum format format, const uint8_t *block, unsigned j, const uint32_t *s, words_avx512 *to)
{
	const __m512i q = _mm512_cvtepi8_epi16(q_bytes(format, block, j));

	if (format != FORMAT_Q6_K)
		*to = _mm512_mullo_epi16(q, _mm512_set1_epi32((int)s[j]));
	else
		*to = _mm512_mullo_epi16(
		    q, _mm512_mask_set1_epi32(_mm512_set1_epi32((int)s[2 * j]), 0xff00, (int)s[2 * j + 1]));
}

AVX512 whole_avx512 none_avx512(void)
{
	return _mm512_setzero_si512();
}

/* Written out since gcc 12 moves the sums of the intrinsic from register to register, and spills them. */
AVX512 whole_avx512 add_avx512(whole_avx512 sum, words_avx512 a, words_avx512 b)
{
	__asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
	return sum;
}

AVX512 reals_avx512 zeros_avx512(void)
{
	return _mm512_setzero_ps();
}

AVX512 reals_avx512 all_avx512(float number)
{
	return _mm512_set1_ps(number);
}

AVX512 reals_avx512 reals_at_avx512(const float *p)
{
	return _mm512_loadu_ps(p);
}

AVX512 void reals_to_avx512(float *p, reals_avx512 reals)
{
	_mm512_storeu_ps(p, reals);
}

AVX512 reals_avx512 times_avx512(reals_avx512 a, reals_avx512 b)
{
	return _mm512_mul_ps(a, b);
}

AVX512 reals_avx512 whole_madd_avx512(reals_avx512 y, whole_avx512 whole, reals_avx512 b)
{
	return _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), b));
}

#define MULTIPLY_NAME   avx512
#define MULTIPLY_TARGET TARGET_AVX512
#define MULTIPLY_PASSES 1
#define MULTIPLY_STEPS  6
#include "backend/fixed_template.h"
#endif

/* -------------------------------------------------------------------------------------------------------- choice -- */

const struct multiply_loops *fixed_loops_of(rosa_isa isa)
{
	static const struct multiply_loops *const all[ROSA_ISA_COUNT] = {
		[ROSA_ISA_PLAIN] = &loops_plain,
#if ROSA_X86_VARIANTS
		[ROSA_ISA_AVX2] = &loops_avx2,
		[ROSA_ISA_AVX512] = &loops_avx512,
#endif
	};

#if ROSA_X86_VARIANTS
	/* Neighbours are multiplied and added in one instruction, which the first processors with AVX-512 have not. */
	if (isa == ROSA_ISA_AVX512 && !(__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")))
		return &loops_avx2;
#endif
	return all[isa];
}
