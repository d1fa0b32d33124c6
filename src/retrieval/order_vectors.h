/*
 * Arrays of ORDER_FANOUT numbers, read and written as a whole, in each instruction set.
 *
 * order_template.h lists what the functions do. The names end with the instruction set.
 */
#pragma once

#include "retrieval/order_index.h"

/* ---- masks: bit i stands for entry i ---- */

static uint32_t greatest(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline unsigned lowest(uint32_t mask)
{
	return (unsigned)__builtin_ctz(mask);
}

static inline unsigned highest(uint32_t mask)
{
	return 31 - (unsigned)__builtin_clz(mask);
}

/* The bits below the lowest of a mask; all, if it has none. */
static inline uint32_t below_lowest(uint32_t mask)
{
	return ~mask & (mask - 1);
}

/* The bits up to the highest of a mask; none, if it has none. */
static inline uint32_t up_to_highest(uint32_t mask)
{
	/* a bit below the mask, so that there always is one: no branch */
	return first_bits(63 - (unsigned)__builtin_clzll((uint64_t)mask << 1 | 1));
}

/* ---- plain C ---- */

static inline uint32_t below_plain(const uint32_t *v, uint32_t x)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)(v[i] < x) << i;
	return mask;
}

static inline uint32_t equal_plain(const uint32_t *v, uint32_t x)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)(v[i] == x) << i;
	return mask;
}

static inline uint32_t holds_plain(const uint32_t *v, uint32_t bit)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)((v[i] & bit) != 0) << i;
	return mask;
}

typedef uint32_t vector_plain;

static inline vector_plain all_plain(uint32_t x)
{
	return x;
}

static inline vector_plain lower_plain(vector_plain so_far, const uint32_t *v, uint32_t mask)
{
	for (; mask; mask &= mask - 1)
		so_far = least(so_far, v[lowest(mask)]);
	return so_far;
}

static inline vector_plain higher_plain(vector_plain so_far, const uint32_t *v, uint32_t mask)
{
	for (; mask; mask &= mask - 1)
		so_far = greatest(so_far, v[lowest(mask)]);
	return so_far;
}

static inline bool under_plain(vector_plain so_far, uint32_t x)
{
	return so_far < x;
}

static inline uint32_t least_plain(vector_plain so_far)
{
	return so_far;
}

static inline uint32_t most_plain(vector_plain so_far)
{
	return so_far;
}

static inline void put_plain(uint32_t *v, unsigned place, uint32_t x)
{
	memmove(v + place + 1, v + place, (ORDER_FANOUT - 1 - place) * sizeof(*v));
	v[place] = x;
}

static inline void put2_plain(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	put_plain(v, place, x);
	if (place + 1 < ORDER_FANOUT)
		v[place + 1] = y;
}

#if ROSA_X86_VARIANTS
#include <immintrin.h>

/* ---- AVX2 ---- */

#define TARGET_AVX2 __attribute__((target("avx2,bmi,lzcnt")))

/* Each entry's bit of a mask, and its number; the last lane has a number that no entry has. */
static const uint32_t bit_of[ORDER_LANES] __attribute__((aligned(MEMORY_LINE))) = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
static const int32_t number_of[ORDER_LANES]
    __attribute__((aligned(MEMORY_LINE))) = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
					     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, -1};

TARGET_AVX2 static inline __m256i lanes_avx2(const void *v, unsigned from)
{
	return _mm256_loadu_si256((const __m256i *)((const uint32_t *)v + from));
}

/* All ones where a mask, given in every lane, has no bit. */
TARGET_AVX2 static inline __m256i absent_avx2(__m256i mask, unsigned from)
{
	return _mm256_cmpeq_epi32(_mm256_and_si256(mask, lanes_avx2(bit_of, from)), _mm256_setzero_si256());
}

/* The mask of 32 lanes of all ones or zeros. Packing works within halves of vectors, so the parts are sorted at last.
 */
TARGET_AVX2 static inline uint32_t bits_avx2(__m256i a, __m256i b, __m256i c, __m256i d)
{
	const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
	const __m256i sorted = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

	return (uint32_t)_mm256_movemask_epi8(sorted);
}

/* All ones where lanes are at most `most`. */
TARGET_AVX2 static inline __m256i at_most_avx2(__m256i lanes, __m256i most)
{
	return _mm256_cmpeq_epi32(_mm256_min_epu32(lanes, most), lanes);
}

TARGET_AVX2 static inline uint32_t below_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i most = _mm256_set1_epi32((int)(x - 1));
	const uint32_t mask = bits_avx2(at_most_avx2(lanes_avx2(v, 0), most), at_most_avx2(lanes_avx2(v, 8), most),
					at_most_avx2(lanes_avx2(v, 16), most), at_most_avx2(lanes_avx2(v, 24), most));

	return x ? mask : 0;
}

TARGET_AVX2 static inline uint32_t equal_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i wanted = _mm256_set1_epi32((int)x);

	return bits_avx2(_mm256_cmpeq_epi32(lanes_avx2(v, 0), wanted), _mm256_cmpeq_epi32(lanes_avx2(v, 8), wanted),
			 _mm256_cmpeq_epi32(lanes_avx2(v, 16), wanted), _mm256_cmpeq_epi32(lanes_avx2(v, 24), wanted));
}

TARGET_AVX2 static inline uint32_t holds_avx2(const uint32_t *v, uint32_t bit)
{
	const __m256i wanted = _mm256_set1_epi32((int)bit);

	return bits_avx2(_mm256_cmpeq_epi32(_mm256_and_si256(lanes_avx2(v, 0), wanted), wanted),
			 _mm256_cmpeq_epi32(_mm256_and_si256(lanes_avx2(v, 8), wanted), wanted),
			 _mm256_cmpeq_epi32(_mm256_and_si256(lanes_avx2(v, 16), wanted), wanted),
			 _mm256_cmpeq_epi32(_mm256_and_si256(lanes_avx2(v, 24), wanted), wanted));
}

typedef __m256i vector_avx2;

TARGET_AVX2 static inline vector_avx2 all_avx2(uint32_t x)
{
	return _mm256_set1_epi32((int)x);
}

TARGET_AVX2 static inline vector_avx2 lower_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	const __m256i wanted = _mm256_set1_epi32((int)mask);

	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		so_far = _mm256_min_epu32(so_far, _mm256_or_si256(absent_avx2(wanted, i), lanes_avx2(v, i)));
	return so_far;
}

TARGET_AVX2 static inline vector_avx2 higher_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	const __m256i wanted = _mm256_set1_epi32((int)mask);

	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		so_far = _mm256_max_epu32(so_far, _mm256_andnot_si256(absent_avx2(wanted, i), lanes_avx2(v, i)));
	return so_far;
}

TARGET_AVX2 static inline bool under_avx2(vector_avx2 so_far, uint32_t x)
{
	return x && _mm256_movemask_epi8(at_most_avx2(so_far, _mm256_set1_epi32((int)(x - 1))));
}

TARGET_AVX2 static inline uint32_t least_avx2(vector_avx2 so_far)
{
	__m128i fold = _mm_min_epu32(_mm256_castsi256_si128(so_far), _mm256_extracti128_si256(so_far, 1));

	fold = _mm_min_epu32(fold, _mm_shuffle_epi32(fold, 0x4e));
	fold = _mm_min_epu32(fold, _mm_shuffle_epi32(fold, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(fold);
}

TARGET_AVX2 static inline uint32_t most_avx2(vector_avx2 so_far)
{
	__m128i fold = _mm_max_epu32(_mm256_castsi256_si128(so_far), _mm256_extracti128_si256(so_far, 1));

	fold = _mm_max_epu32(fold, _mm_shuffle_epi32(fold, 0x4e));
	fold = _mm_max_epu32(fold, _mm_shuffle_epi32(fold, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(fold);
}

/* Put x at v[place] and, if there are `two`, y behind it. Whole vectors are read and written, so that reading them back
 * the next moment need not wait for parts. */
TARGET_AVX2 ALWAYS_INLINE void put_some_avx2(uint32_t *v, unsigned place, uint32_t x, bool two, uint32_t y)
{
	const __m256i at = _mm256_set1_epi32((int)place), next = _mm256_set1_epi32((int)place + 1);
	const __m256i first = _mm256_set1_epi32((int)x), second = _mm256_set1_epi32((int)y);
	__m256i before = first;

	for (unsigned i = 0; i < ORDER_LANES; i += 8) {
		const __m256i old = lanes_avx2(v, i), numbers = lanes_avx2(number_of, i);
		const __m256i turned = _mm256_permutevar8x32_epi32(old, _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6));
		__m256i new = _mm256_blend_epi32(turned, before, 1);

		if (two)
			new = _mm256_blendv_epi8(new, second, _mm256_cmpeq_epi32(numbers, next));
		new = _mm256_blendv_epi8(old, new, _mm256_cmpgt_epi32(numbers, at));
		new = _mm256_blendv_epi8(new, first, _mm256_cmpeq_epi32(numbers, at));
		_mm256_storeu_si256((__m256i *)(v + i), new);
		before = turned;
	}
}

TARGET_AVX2 static inline void put_avx2(uint32_t *v, unsigned place, uint32_t x)
{
	put_some_avx2(v, place, x, false, 0);
}

TARGET_AVX2 static inline void put2_avx2(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	put_some_avx2(v, place, x, true, y);
}

#endif
