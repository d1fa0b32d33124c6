/*
 * Arrays of ORDER_FANOUT numbers, read and written as a whole, in each instruction set.
 *
 * order_template.h lists what the functions do. The names end with the instruction set.
 */
#ifndef ROSATUNE_ORDER_VECTORS_H
#define ROSATUNE_ORDER_VECTORS_H

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

static inline uint32_t holds_plain(const uint64_t *v, uint64_t set)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_FANOUT; i++)
		mask |= (uint32_t)((v[i] & set) != 0) << i;
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

#define TARGET_AVX2   __attribute__((target("avx2,bmi,lzcnt")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,bmi,bmi2,lzcnt")))

/* A vector whose lanes are all ones where the mask has a bit, from bit `from` on. */
TARGET_AVX2 static inline __m256i spread_avx2(uint32_t mask, unsigned from)
{
	const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);

	return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(mask >> from)), bits), bits);
}

TARGET_AVX2 static inline uint32_t bits_avx2(__m256i lanes)
{
	return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(lanes));
}

TARGET_AVX2 static inline uint32_t below_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i most = _mm256_set1_epi32((int)(x - 1));
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 8) {
		__m256i lanes = _mm256_loadu_si256((const __m256i *)(v + i));

		mask |= bits_avx2(_mm256_cmpeq_epi32(_mm256_min_epu32(lanes, most), lanes)) << i;
	}
	return x ? mask : 0;
}

TARGET_AVX2 static inline uint32_t equal_avx2(const uint32_t *v, uint32_t x)
{
	const __m256i wanted = _mm256_set1_epi32((int)x);
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		mask |= bits_avx2(_mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(v + i)), wanted)) << i;
	return mask;
}

TARGET_AVX2 static inline uint32_t holds_avx2(const uint64_t *v, uint64_t set)
{
	const __m256i wanted = _mm256_set1_epi64x((long long)set), zero = _mm256_setzero_si256();
	uint32_t mask = 0;

	for (unsigned i = 0; i < ORDER_LANES; i += 4) {
		__m256i lanes = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(v + i)), wanted);

		mask |= (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(lanes, zero))) << i;
	}
	return ~mask;
}

typedef __m256i vector_avx2;

TARGET_AVX2 static inline vector_avx2 all_avx2(uint32_t x)
{
	return _mm256_set1_epi32((int)x);
}

TARGET_AVX2 static inline vector_avx2 lower_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	const __m256i none = _mm256_set1_epi32(-1);

	for (unsigned i = 0; i < ORDER_LANES; i += 8) {
		__m256i absent = _mm256_andnot_si256(spread_avx2(mask, i), none);

		so_far =
		    _mm256_min_epu32(so_far, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(v + i)), absent));
	}
	return so_far;
}

TARGET_AVX2 static inline vector_avx2 higher_avx2(vector_avx2 so_far, const uint32_t *v, uint32_t mask)
{
	for (unsigned i = 0; i < ORDER_LANES; i += 8)
		so_far = _mm256_max_epu32(
		    so_far, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(v + i)), spread_avx2(mask, i)));
	return so_far;
}

TARGET_AVX2 static inline bool under_avx2(vector_avx2 so_far, uint32_t x)
{
	return x && bits_avx2(_mm256_cmpeq_epi32(_mm256_min_epu32(so_far, _mm256_set1_epi32((int)(x - 1))), so_far));
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

TARGET_AVX2 static inline void put_avx2(uint32_t *v, unsigned place, uint32_t x)
{
	put_plain(v, place, x);
}

TARGET_AVX2 static inline void put2_avx2(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	put2_plain(v, place, x, y);
}

/* ---- AVX-512 ---- */

TARGET_AVX512 static inline uint32_t below_avx512(const uint32_t *v, uint32_t x)
{
	const __m512i limit = _mm512_set1_epi32((int)x);
	uint32_t mask = _mm512_cmplt_epu32_mask(_mm512_loadu_si512(v), limit);

	return mask | (uint32_t)_mm512_cmplt_epu32_mask(_mm512_loadu_si512(v + 16), limit) << 16;
}

TARGET_AVX512 static inline uint32_t equal_avx512(const uint32_t *v, uint32_t x)
{
	const __m512i wanted = _mm512_set1_epi32((int)x);

	return _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(v), wanted) |
	       (uint32_t)_mm512_cmpeq_epi32_mask(_mm512_loadu_si512(v + 16), wanted) << 16;
}

TARGET_AVX512 static inline uint32_t holds_avx512(const uint64_t *v, uint64_t set)
{
	const __m512i wanted = _mm512_set1_epi64((long long)set);

	return _mm512_test_epi64_mask(_mm512_loadu_si512(v), wanted) |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 8), wanted) << 8 |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 16), wanted) << 16 |
	       (uint32_t)_mm512_test_epi64_mask(_mm512_loadu_si512(v + 24), wanted) << 24;
}

typedef __m512i vector_avx512;

TARGET_AVX512 static inline vector_avx512 all_avx512(uint32_t x)
{
	return _mm512_set1_epi32((int)x);
}

TARGET_AVX512 static inline vector_avx512 lower_avx512(vector_avx512 so_far, const uint32_t *v, uint32_t mask)
{
	so_far = _mm512_mask_min_epu32(so_far, (__mmask16)mask, so_far, _mm512_loadu_si512(v));
	return _mm512_mask_min_epu32(so_far, (__mmask16)(mask >> 16), so_far, _mm512_loadu_si512(v + 16));
}

TARGET_AVX512 static inline vector_avx512 higher_avx512(vector_avx512 so_far, const uint32_t *v, uint32_t mask)
{
	so_far = _mm512_mask_max_epu32(so_far, (__mmask16)mask, so_far, _mm512_loadu_si512(v));
	return _mm512_mask_max_epu32(so_far, (__mmask16)(mask >> 16), so_far, _mm512_loadu_si512(v + 16));
}

TARGET_AVX512 static inline bool under_avx512(vector_avx512 so_far, uint32_t x)
{
	return _mm512_cmplt_epu32_mask(so_far, _mm512_set1_epi32((int)x)) != 0;
}

TARGET_AVX512 static inline uint32_t least_avx512(vector_avx512 so_far)
{
	return _mm512_reduce_min_epu32(so_far);
}

TARGET_AVX512 static inline uint32_t most_avx512(vector_avx512 so_far)
{
	return _mm512_reduce_max_epu32(so_far);
}

/* Whole vectors are read and written, so that reading them back the next moment need not wait for parts. */
TARGET_AVX512 static inline void put_avx512(uint32_t *v, unsigned place, uint32_t x)
{
	const uint32_t behind = first_bits(ORDER_FANOUT) & ~first_bits(place + 1), here = 1u << place;
	const __m512i low = _mm512_loadu_si512(v), high = _mm512_loadu_si512(v + 16);
	const __m512i a = _mm512_mask_alignr_epi32(low, (__mmask16)behind, low, low, 15);
	const __m512i b = _mm512_mask_alignr_epi32(high, (__mmask16)(behind >> 16), high, low, 15);

	_mm512_storeu_si512(v, _mm512_mask_set1_epi32(a, (__mmask16)here, (int)x));
	_mm512_storeu_si512(v + 16, _mm512_mask_set1_epi32(b, (__mmask16)(here >> 16), (int)x));
}

TARGET_AVX512 static inline void put2_avx512(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
	const uint32_t behind = first_bits(ORDER_FANOUT) & ~first_bits(place + 1), here = 1u << place;
	const __m512i low = _mm512_loadu_si512(v), high = _mm512_loadu_si512(v + 16), next = _mm512_set1_epi32((int)y);
	__m512i a = _mm512_mask_alignr_epi32(low, (__mmask16)behind, low, low, 15);
	__m512i b = _mm512_mask_alignr_epi32(high, (__mmask16)(behind >> 16), high, low, 15);

	a = _mm512_mask_mov_epi32(a, (__mmask16)(here << 1 & behind), next);
	b = _mm512_mask_mov_epi32(b, (__mmask16)((here << 1 & behind) >> 16), next);
	_mm512_storeu_si512(v, _mm512_mask_set1_epi32(a, (__mmask16)here, (int)x));
	_mm512_storeu_si512(v + 16, _mm512_mask_set1_epi32(b, (__mmask16)(here >> 16), (int)x));
}

#endif

#endif
