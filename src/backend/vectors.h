/*
 * Vectors of float32 on one instruction set, for loops that are written once and compiled for each.
 *
 * Include with VECTORS defined as VECTORS_PLAIN, VECTORS_AVX2 or VECTORS_AVX512, as often as there are variants; each
 * time the macros below are made anew. V_NAME is the variant's name, to be pasted to names of functions, V_TARGET the
 * attribute that these need.
 *
 *   V, V_LANES          a vector, of 16 lanes or a part of 16
 *   V_ZERO() V_SET(x) V_LOAD(p) V_STORE(p, a)       addresses need no alignment
 *   V_ADD(a, b) V_SUB(a, b) V_MUL(a, b) V_DIV(a, b)
 *   V_MAX(a, b)         a where it is greater, else b (also where either is NaN)
 *   V_FMA(a, b, c)      a * b + c, rounded once; PLAIN rounds twice, since fusing without an instruction is slow
 *   V_MINUS_ABS(a)      -|a|
 *   V_NEGATIVE(a, b, c) b where a has a minus, else c
 *   V_POWER(a)          the number whose exponent bits are the lowest bits of a
 *   V_NOT_BELOW(a, x, b)  b, but 0 where a < x
 *   V_POSITIVE(a)       an integer, bit i of which is 1 where lane i is > 0 (so 0, -0 and NaN give 0)
 *   V_EXP(a)            e^a for a <= 0, within 2 units in the last place; 0 below -87, where float32 ends
 *   V_SIGMOID(a)        1 / (1 + e^-a)
 *
 * NaN stays NaN everywhere. AVX-512 and AVX2 do the same operations lane by lane, and so give equal bits.
 */
#ifndef ROSATUNE_VECTORS_H
#define ROSATUNE_VECTORS_H

#include "base/compiler.h"
#include "base/cpu.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#if ROSA_X86_VARIANTS
#include <immintrin.h>
#endif

#define VECTORS_PLAIN  0
#define VECTORS_AVX2   1
#define VECTORS_AVX512 2

#define V_PASTE_(a, b) a##b
#define V_PASTE(a, b)  V_PASTE_(a, b)
#define V_FUNC(name)   V_PASTE(name, V_NAME)
#define V_EXP(a)       V_FUNC(v_exp_)(a)
#define V_SIGMOID(a)   V_FUNC(v_sigmoid_)(a)
#define V_INLINE       V_TARGET ALWAYS_INLINE __attribute__((unused))

/* Four numbers. What no operator of C does, the compiler vectorises the loops of. */
#if defined(__GNUC__)
typedef float four __attribute__((vector_size(16)));
#define FOUR_LANE(a, i)                 (a)[i]
#define FOUR_OPERATION(a, operation, b) return (a)operation(b)
#else
typedef struct {
	float lane[4];
} four;
#define FOUR_LANE(a, i)                 (a).lane[i]
#define FOUR_OPERATION(a, operation, b) FOUR_OF((a).lane[i] operation(b).lane[i])
#endif

#define FOUR_OF(expression)                                                                                            \
	four result;                                                                                                   \
                                                                                                                       \
	for (int i = 0; i < 4; i++)                                                                                    \
		FOUR_LANE(result, i) = (expression);                                                                   \
	return result

static inline four four_load(const float *p)
{
	four a;

	memcpy(&a, p, sizeof(a));
	return a;
}

static inline void four_store(float *p, four a)
{
	memcpy(p, &a, sizeof(a));
}

static inline four four_set(float x)
{
	return (four){x, x, x, x};
}

static inline four four_add(four a, four b)
{
	FOUR_OPERATION(a, +, b);
}

static inline four four_sub(four a, four b)
{
	FOUR_OPERATION(a, -, b);
}

static inline four four_mul(four a, four b)
{
	FOUR_OPERATION(a, *, b);
}

static inline four four_div(four a, four b)
{
	FOUR_OPERATION(a, /, b);
}

static inline four four_max(four a, four b)
{
	FOUR_OF(FOUR_LANE(a, i) > FOUR_LANE(b, i) ? FOUR_LANE(a, i) : FOUR_LANE(b, i));
}

static inline four four_minus_abs(four a)
{
	FOUR_OF(-fabsf(FOUR_LANE(a, i)));
}

static inline four four_negative(four a, four b, four c)
{
	FOUR_OF(signbit(FOUR_LANE(a, i)) ? FOUR_LANE(b, i) : FOUR_LANE(c, i));
}

static inline float one_power(float a)
{
	uint32_t bits;

	memcpy(&bits, &a, sizeof(bits));
	bits <<= 23;
	memcpy(&a, &bits, sizeof(a));
	return a;
}

static inline four four_power(four a)
{
	FOUR_OF(one_power(FOUR_LANE(a, i)));
}

/* x > 0 tested on the bit pattern, an unsigned number from 1 to that of infinity. So denormals count as positive even
 * where the program has set the processor to flush them. */
static inline unsigned one_positive(float a)
{
	uint32_t bits;

	memcpy(&bits, &a, sizeof(bits));
	return bits - 1 < 0x7f800000;
}

static inline unsigned four_positive(four a)
{
	unsigned bits = 0;

	for (int i = 0; i < 4; i++)
		bits |= one_positive(FOUR_LANE(a, i)) << i;
	return bits;
}

static inline four four_not_below(four a, four x, four b)
{
	FOUR_OF(FOUR_LANE(a, i) < FOUR_LANE(x, i) ? 0 : FOUR_LANE(b, i));
}
#endif

#undef V_NAME
#undef V_TARGET
#undef V
#undef V_LANES
#undef V_ZERO
#undef V_SET
#undef V_LOAD
#undef V_STORE
#undef V_ADD
#undef V_SUB
#undef V_MUL
#undef V_DIV
#undef V_MAX
#undef V_FMA
#undef V_MINUS_ABS
#undef V_NEGATIVE
#undef V_POWER
#undef V_NOT_BELOW
#undef V_POSITIVE

#if VECTORS == VECTORS_AVX512
#define V_NAME         avx512
#define V_TARGET       __attribute__((target("avx512f,avx2,fma")))
#define V              __m512
#define V_LANES        16
#define V_ZERO()       _mm512_setzero_ps()
#define V_SET(x)       _mm512_set1_ps(x)
#define V_LOAD(p)      _mm512_loadu_ps(p)
#define V_STORE(p, a)  _mm512_storeu_ps(p, a)
#define V_ADD(a, b)    _mm512_add_ps(a, b)
#define V_SUB(a, b)    _mm512_sub_ps(a, b)
#define V_MUL(a, b)    _mm512_mul_ps(a, b)
#define V_DIV(a, b)    _mm512_div_ps(a, b)
#define V_MAX(a, b)    _mm512_max_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_MINUS_ABS(a) _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)))
#define V_NEGATIVE(a, b, c)                                                                                            \
	_mm512_mask_blend_ps(_mm512_cmp_epi32_mask(_mm512_castps_si512(a), _mm512_setzero_si512(), _MM_CMPINT_LT), c, b)
#define V_POWER(a)           _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23))
#define V_NOT_BELOW(a, x, b) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, x, _CMP_NLT_UQ), b)
#define V_POSITIVE(a)                                                                                                  \
	((unsigned)_mm512_cmplt_epu32_mask(_mm512_sub_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(1)),             \
					   _mm512_set1_epi32(0x7f800000)))
#elif VECTORS == VECTORS_AVX2
#define V_NAME               avx2
#define V_TARGET             __attribute__((target("avx2,fma")))
#define V                    __m256
#define V_LANES              8
#define V_ZERO()             _mm256_setzero_ps()
#define V_SET(x)             _mm256_set1_ps(x)
#define V_LOAD(p)            _mm256_loadu_ps(p)
#define V_STORE(p, a)        _mm256_storeu_ps(p, a)
#define V_ADD(a, b)          _mm256_add_ps(a, b)
#define V_SUB(a, b)          _mm256_sub_ps(a, b)
#define V_MUL(a, b)          _mm256_mul_ps(a, b)
#define V_DIV(a, b)          _mm256_div_ps(a, b)
#define V_MAX(a, b)          _mm256_max_ps(a, b)
#define V_FMA(a, b, c)       _mm256_fmadd_ps(a, b, c)
#define V_MINUS_ABS(a)       _mm256_or_ps(a, _mm256_set1_ps(-0.0f))
#define V_NEGATIVE(a, b, c)  _mm256_blendv_ps(c, b, a)
#define V_POWER(a)           _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23))
#define V_NOT_BELOW(a, x, b) _mm256_andnot_ps(_mm256_cmp_ps(a, x, _CMP_LT_OQ), b)
/* AVX2 compares signed numbers only: positive, and not above infinity. */
#define V_POSITIVE(a)                                                                                                  \
	((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(                                                             \
	    _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(0x7f800000)),             \
				_mm256_cmpgt_epi32(_mm256_castps_si256(a), _mm256_setzero_si256())))))
#else
#define V_NAME plain
#define V_TARGET
#define V                    four
#define V_LANES              4
#define V_ZERO()             four_set(0)
#define V_SET(x)             four_set(x)
#define V_LOAD(p)            four_load(p)
#define V_STORE(p, a)        four_store(p, a)
#define V_ADD(a, b)          four_add(a, b)
#define V_SUB(a, b)          four_sub(a, b)
#define V_MUL(a, b)          four_mul(a, b)
#define V_DIV(a, b)          four_div(a, b)
#define V_MAX(a, b)          four_max(a, b)
#define V_FMA(a, b, c)       four_add(four_mul(a, b), c)
#define V_MINUS_ABS(a)       four_minus_abs(a)
#define V_NEGATIVE(a, b, c)  four_negative(a, b, c)
#define V_POWER(a)           four_power(a)
#define V_NOT_BELOW(a, x, b) four_not_below(a, x, b)
#define V_POSITIVE(a)        four_positive(a)
#endif

V_INLINE V V_FUNC(v_exp_)(const V a)
{
	/* The lowest bits of the sum are n + 127, n being a / ln 2 rounded: the exponent of 2^n. */
	const V magic = V_SET(12582912.0f + 127), limit = V_SET(-87.0f), bounded = V_MAX(limit, a),
		sum = V_FMA(bounded, V_SET(1.44269504f), magic), n = V_SUB(sum, magic),
		rest = V_FMA(n, V_SET(2.12194440e-4f), V_FMA(n, V_SET(-0.693359375f), bounded));
	V power = V_SET(1.9841270e-4f);

	power = V_FMA(power, rest, V_SET(1.3888889e-3f));
	power = V_FMA(power, rest, V_SET(8.3333333e-3f));
	power = V_FMA(power, rest, V_SET(4.1666667e-2f));
	power = V_FMA(power, rest, V_SET(1.6666667e-1f));
	power = V_FMA(power, rest, V_SET(0.5f));
	power = V_FMA(power, rest, V_SET(1.0f));
	power = V_FMA(power, rest, V_SET(1.0f));
	return V_NOT_BELOW(a, limit, V_MUL(power, V_POWER(sum)));
}

V_INLINE V V_FUNC(v_sigmoid_)(const V a)
{
	const V one = V_SET(1.0f), e = V_FUNC(v_exp_)(V_MINUS_ABS(a));

	return V_DIV(V_NEGATIVE(a, e, one), V_ADD(one, e));
}

#undef VECTORS
