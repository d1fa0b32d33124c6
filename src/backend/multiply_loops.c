/*
 * The numbers of each format and the vectors of each instruction set, from which multiply_template.h makes the loops.
 *
 * A variant is some thirty small functions: sums of sixteen numbers, and how blocks of each format become sixteen
 * numbers. Tests compare all of them with the definitions in format.c.
 */
#include "backend/multiply_loops.h"

#include "backend/multiply.h"
#include "base/compiler.h"
#include "base/sizes.h"

#include <string.h>

#define PASS_COLUMNS   ((size_t)1024) /* numbers of a tile's rows, which are read from the L1 cache several times */
#define SOME_STRETCHES ((size_t)8)    /* of a row, of which the scales are converted together; more wait for memory */
#define PREFETCH_BYTES 4096           /* bytes ahead to prefetch: far enough for memory, near enough for the L1 cache */

/* A stretch is 32 numbers. */
ALWAYS_INLINE size_t stretch_bytes(enum format format)
{
	static const uint8_t bytes[FORMAT_COUNT] = {128, 64, 64, 34, 18, 20, 0, 0, 22, 24, 0};

	return bytes[format];
}

/* A strip of rows is widened and then used for a while, which hardware prefetchers take for the end of a stream. With
 * software prefetch the next strip arrives a tenth to a fifth sooner. An address beyond the weight does no harm. */
ALWAYS_INLINE void prefetch_ahead(enum format format, const uint8_t *row, size_t i)
{
	const size_t bytes = stretch_bytes(format);
	const uintptr_t ahead = (uintptr_t)row + i * bytes + PREFETCH_BYTES;

	if (bytes < 64 && i % 2) /* two of them are about a cache line */
		return;
	PREFETCH((const void *)ahead);
	if (bytes > 64)
		PREFETCH((const void *)(ahead + 64));
}

ALWAYS_INLINE unsigned two_bytes(const uint8_t *p)
{
	return (unsigned)(p[0] | p[1] << 8);
}

/* -------------------------------------------------------------------------------------------------------- plain -- */

typedef struct {
	float at[16];
} vec_plain;

#if defined(__GNUC__)
typedef float part_plain __attribute__((vector_size(16))); /* whatever the processor has: left to the compiler */
#define PASSES_PLAIN 4
#else
typedef float part_plain;
#define PASSES_PLAIN 16
#endif

typedef struct {
	float d, m;
	int zero;
} scale_plain;

ALWAYS_INLINE vec_plain zero_plain(void)
{
	return (vec_plain){{0}};
}

ALWAYS_INLINE vec_plain load_plain(const float *p)
{
	vec_plain v;

	memcpy(&v, p, sizeof(v));
	return v;
}

ALWAYS_INLINE void store_plain(float *p, vec_plain v)
{
	memcpy(p, &v, sizeof(v));
}

ALWAYS_INLINE vec_plain madd_plain(vec_plain sum, vec_plain a, vec_plain b)
{
	for (int i = 0; i < 16; i++)
		sum.at[i] += a.at[i] * b.at[i];
	return sum;
}

ALWAYS_INLINE part_plain part_zero_plain(void)
{
	return (part_plain){0};
}

ALWAYS_INLINE part_plain part_load_plain(const float *p)
{
	part_plain v;

	memcpy(&v, p, sizeof(v));
	return v;
}

ALWAYS_INLINE part_plain part_madd_plain(part_plain sum, part_plain a, part_plain b)
{
	return sum + a * b;
}

ALWAYS_INLINE vec_plain join_plain(const part_plain *parts)
{
	vec_plain v;

	memcpy(&v, parts, sizeof(v));
	return v;
}

ALWAYS_INLINE void total_plain(const vec_plain *v, float *sums)
{
	for (int r = 0; r < MULTIPLY_ROWS; r++) {
		vec_plain sum = v[r];

		for (int half = 8; half; half /= 2)
			for (int i = 0; i < half; i++)
				sum.at[i] += sum.at[i + half];
		sums[r] = sum.at[0];
	}
}

ALWAYS_INLINE float half_plain(const uint8_t *p)
{
	return format_half(p);
}

ALWAYS_INLINE vec_plain f16_plain(const uint8_t *p)
{
	vec_plain v;

	for (int i = 0; i < 16; i++)
		v.at[i] = format_half(p + i * 2);
	return v;
}

ALWAYS_INLINE vec_plain bf16_plain(const uint8_t *p)
{
	uint32_t bits[16];
	vec_plain v;

	for (int i = 0; i < 16; i++)
		bits[i] = (uint32_t)(p[i * 2] | p[i * 2 + 1] << 8) << 16;
	memcpy(&v, bits, sizeof(v));
	return v;
}

ALWAYS_INLINE vec_plain bytes_plain(const uint8_t *p, float d)
{
	vec_plain v;

	for (int i = 0; i < 16; i++)
		v.at[i] = d * (float)(int8_t)p[i];
	return v;
}

ALWAYS_INLINE scale_plain scale_of_plain(int zero, float d, float m)
{
	return (scale_plain){d, m, zero};
}

ALWAYS_INLINE vec_plain low_plain(const uint8_t *p, scale_plain s)
{
	vec_plain v;

	for (int i = 0; i < 16; i++)
		v.at[i] = s.d * (float)((p[i] & 15) - s.zero) + s.m;
	return v;
}

ALWAYS_INLINE vec_plain high_plain(const uint8_t *p, scale_plain s)
{
	vec_plain v;

	for (int i = 0; i < 16; i++)
		v.at[i] = s.d * (float)((p[i] >> 4) - s.zero) + s.m;
	return v;
}

ALWAYS_INLINE vec_plain fives_plain(const uint8_t *p, unsigned a, unsigned fifth, int zero, float d, float m)
{
	vec_plain v;

	for (int i = 0; i < 16; i++)
		v.at[i] = d * (float)((int)((p[i] >> a & 15) | (fifth >> i & 1) << 4) - zero) + m;
	return v;
}

ALWAYS_INLINE void halves_plain(const uint8_t *p, float *to)
{
	to[0] = format_half(p);
	to[1] = format_half(p + 2);
}

#define MULTIPLY_NAME plain
#define MULTIPLY_TARGET
#define MULTIPLY_PASSES PASSES_PLAIN
#define MULTIPLY_STEPS  2
#include "backend/multiply_template.h"

#if ROSA_X86_VARIANTS
#include <immintrin.h>

/* --------------------------------------------------------------------------------------------------------- AVX2 -- */

#define TARGET_AVX2   __attribute__((target("avx2,fma,f16c")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))
#define AVX2          TARGET_AVX2 ALWAYS_INLINE
#define AVX512        TARGET_AVX512 ALWAYS_INLINE

typedef __m256 part_avx2;

typedef struct {
	__m256 at[2];
} vec_avx2;

typedef struct {
	__m256 d, m;
	int zero;
} scale_avx2;

AVX2 part_avx2 part_zero_avx2(void)
{
	return _mm256_setzero_ps();
}

AVX2 part_avx2 part_load_avx2(const float *p)
{
	return _mm256_loadu_ps(p);
}

AVX2 part_avx2 part_madd_avx2(part_avx2 sum, part_avx2 a, part_avx2 b)
{
	return _mm256_fmadd_ps(a, b, sum);
}

AVX2 vec_avx2 join_avx2(const part_avx2 *parts)
{
	return (vec_avx2){{parts[0], parts[1]}};
}

AVX2 vec_avx2 zero_avx2(void)
{
	return (vec_avx2){{_mm256_setzero_ps(), _mm256_setzero_ps()}};
}

AVX2 vec_avx2 load_avx2(const float *p)
{
	return (vec_avx2){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}

AVX2 void store_avx2(float *p, vec_avx2 v)
{
	_mm256_storeu_ps(p, v.at[0]);
	_mm256_storeu_ps(p + 8, v.at[1]);
}

AVX2 vec_avx2 madd_avx2(vec_avx2 sum, vec_avx2 a, vec_avx2 b)
{
	return (vec_avx2){{_mm256_fmadd_ps(a.at[0], b.at[0], sum.at[0]), _mm256_fmadd_ps(a.at[1], b.at[1], sum.at[1])}};
}

/* The last two levels of the tree, of four sums in four numbers each. */
AVX2 void total_of_fours(__m128 a, __m128 b, __m128 c, __m128 d, float *sums)
{
	const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
	const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));

	_mm_storeu_ps(sums, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

AVX2 __m128 four_avx2(vec_avx2 v)
{
	const __m256 eight = _mm256_add_ps(v.at[0], v.at[1]);

	return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

AVX2 void total_avx2(const vec_avx2 *v, float *sums)
{
	total_of_fours(four_avx2(v[0]), four_avx2(v[1]), four_avx2(v[2]), four_avx2(v[3]), sums);
}

AVX2 float half_avx2(const uint8_t *p)
{
	uint16_t half;

	memcpy(&half, p, sizeof(half));
	return _cvtsh_ss(half);
}

AVX2 void halves_avx2(const uint8_t *p, float *to)
{
	int32_t both;

	memcpy(&both, p, sizeof(both));
	_mm_storel_pi((__m64 *)(void *)to, _mm_cvtph_ps(_mm_cvtsi32_si128(both)));
}

AVX2 __m128i sixteen_bytes(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

AVX2 vec_avx2 f16_avx2(const uint8_t *p)
{
	return (vec_avx2){{_mm256_cvtph_ps(sixteen_bytes(p)), _mm256_cvtph_ps(sixteen_bytes(p + 16))}};
}

AVX2 __m256 bf16_eight_avx2(const uint8_t *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(sixteen_bytes(p)), 16));
}

AVX2 vec_avx2 bf16_avx2(const uint8_t *p)
{
	return (vec_avx2){{bf16_eight_avx2(p), bf16_eight_avx2(p + 16)}};
}

AVX2 __m128i eight_bytes(const uint8_t *p)
{
	return _mm_loadl_epi64((const __m128i *)p);
}

/* Signed bytes as floats. */
AVX2 vec_avx2 floats_avx2(__m128i bytes)
{
	return (vec_avx2){{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
			   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))}};
}

AVX2 vec_avx2 bytes_avx2(const uint8_t *p, float d)
{
	const __m256 scale = _mm256_set1_ps(d);
	const __m256i low = _mm256_cvtepi8_epi32(eight_bytes(p)), high = _mm256_cvtepi8_epi32(eight_bytes(p + 8));

	return (vec_avx2){
	    {_mm256_mul_ps(_mm256_cvtepi32_ps(low), scale), _mm256_mul_ps(_mm256_cvtepi32_ps(high), scale)}};
}

AVX2 scale_avx2 scale_of_avx2(int zero, float d, float m)
{
	return (scale_avx2){_mm256_set1_ps(d), _mm256_set1_ps(m), zero};
}

AVX2 vec_avx2 shifted_avx2(__m128i q, scale_avx2 s)
{
	if (s.zero)
		q = _mm_sub_epi8(q, _mm_set1_epi8((char)s.zero));
	const vec_avx2 v = floats_avx2(q);

	return (vec_avx2){{_mm256_fmadd_ps(v.at[0], s.d, s.m), _mm256_fmadd_ps(v.at[1], s.d, s.m)}};
}

/* Eight numbers of 4 bits, each in 32. */
AVX2 __m256 fours_avx2(__m256i q, scale_avx2 s)
{
	if (s.zero)
		q = _mm256_sub_epi32(q, _mm256_set1_epi32(s.zero));
	return _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), s.d, s.m);
}

/* A load that widens eight bytes costs less than moving bytes within a register. Halves are taken apart after it: where
 * both are needed together, as in Q4_0 and Q4_1, the compiler loads once. */
AVX2 vec_avx2 low_avx2(const uint8_t *p, scale_avx2 s)
{
	const __m256i low = _mm256_set1_epi32(15);

	return (vec_avx2){{fours_avx2(_mm256_and_si256(_mm256_cvtepu8_epi32(eight_bytes(p)), low), s),
			   fours_avx2(_mm256_and_si256(_mm256_cvtepu8_epi32(eight_bytes(p + 8)), low), s)}};
}

AVX2 vec_avx2 high_avx2(const uint8_t *p, scale_avx2 s)
{
	return (vec_avx2){{fours_avx2(_mm256_srli_epi32(_mm256_cvtepu8_epi32(eight_bytes(p)), 4), s),
			   fours_avx2(_mm256_srli_epi32(_mm256_cvtepu8_epi32(eight_bytes(p + 8)), 4), s)}};
}

AVX2 __m128i four_bits(const uint8_t *p, unsigned a)
{
	return _mm_and_si128(_mm_srl_epi16(sixteen_bytes(p), _mm_cvtsi32_si128((int)a)), _mm_set1_epi8(15));
}

/* Each of the 16 bytes is 16 where its bit of `fifth` is set. */
AVX2 vec_avx2 fives_avx2(const uint8_t *p, unsigned a, unsigned fifth, int zero, float d, float m)
{
	const __m128i own = _mm_set1_epi64x((long long)0x8040201008040201);
	const __m128i spread = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)fifth), _mm_set_epi64x(0x0101010101010101, 0));
	const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, own), own);

	return shifted_avx2(_mm_or_si128(four_bits(p, a), _mm_and_si128(set, _mm_set1_epi8(16))),
			    scale_of_avx2(zero, d, m));
}

#define MULTIPLY_NAME   avx2
#define MULTIPLY_TARGET TARGET_AVX2
#define MULTIPLY_PASSES 2
#define MULTIPLY_STEPS  3
#include "backend/multiply_template.h"

/* ------------------------------------------------------------------------------------------------------ AVX-512 -- */

typedef __m512 part_avx512;
typedef __m512 vec_avx512;
typedef __m512 scale_avx512; /* the value of each of the sixteen numbers of 4 bits */

/* A register holds all sixteen sums, so a part is the whole. */
#define part_zero_avx512 zero_avx512
#define part_load_avx512 load_avx512
#define part_madd_avx512 madd_avx512

AVX512 vec_avx512 join_avx512(const part_avx512 *parts)
{
	return parts[0];
}

AVX512 vec_avx512 zero_avx512(void)
{
	return _mm512_setzero_ps();
}

AVX512 vec_avx512 load_avx512(const float *p)
{
	return _mm512_loadu_ps(p);
}

AVX512 void store_avx512(float *p, vec_avx512 v)
{
	_mm512_storeu_ps(p, v);
}

AVX512 vec_avx512 madd_avx512(vec_avx512 sum, vec_avx512 a, vec_avx512 b)
{
	return _mm512_fmadd_ps(a, b, sum);
}

AVX512 void total_avx512(const vec_avx512 *v, float *sums)
{
	/* l + (l + 8) of two vectors, then l + (l + 4) of four */
	const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
	const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
	const __m512 fours = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));

	total_of_fours(_mm512_castps512_ps128(fours), _mm512_extractf32x4_ps(fours, 1),
		       _mm512_extractf32x4_ps(fours, 2), _mm512_extractf32x4_ps(fours, 3), sums);
}

AVX512 float half_avx512(const uint8_t *p)
{
	return half_avx2(p);
}

#define halves_avx512 halves_avx2

AVX512 vec_avx512 f16_avx512(const uint8_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

AVX512 vec_avx512 bf16_avx512(const uint8_t *p)
{
	return _mm512_castsi512_ps(
	    _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

AVX512 vec_avx512 bytes_avx512(const uint8_t *p, float d)
{
	return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(p))), _mm512_set1_ps(d));
}

AVX512 scale_avx512 scale_of_avx512(int zero, float d, float m)
{
	const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

	return _mm512_fmadd_ps(zero ? _mm512_sub_ps(q, _mm512_set1_ps((float)zero)) : q, _mm512_set1_ps(d),
			       _mm512_set1_ps(m));
}

/* The permutation uses the low 4 bits of an index only. */
AVX512 vec_avx512 low_avx512(const uint8_t *p, scale_avx512 s)
{
	return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(sixteen_bytes(p)), s);
}

AVX512 vec_avx512 high_avx512(const uint8_t *p, scale_avx512 s)
{
	return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(sixteen_bytes(p)), 4), s);
}

AVX512 vec_avx512 fives_avx512(const uint8_t *p, unsigned a, unsigned fifth, int zero, float d, float m)
{
	const __m512i four = _mm512_cvtepu8_epi32(four_bits(p, a));
	const __m512i q = _mm512_mask_add_epi32(four, (__mmask16)fifth, four, _mm512_set1_epi32(16));

	return _mm512_fmadd_ps(_mm512_cvtepi32_ps(zero ? _mm512_sub_epi32(q, _mm512_set1_epi32(zero)) : q),
			       _mm512_set1_ps(d), _mm512_set1_ps(m));
}

#define MULTIPLY_NAME   avx512
#define MULTIPLY_TARGET TARGET_AVX512
#define MULTIPLY_PASSES 1
#define MULTIPLY_STEPS  6
#include "backend/multiply_template.h"
#endif

/* -------------------------------------------------------------------------------------------------------- choice -- */

const struct multiply_loops *multiply_loops_of(rosa_isa isa)
{
	static const struct multiply_loops *const all[ROSA_ISA_COUNT] = {
		[ROSA_ISA_PLAIN] = &loops_plain,
#if ROSA_X86_VARIANTS
		[ROSA_ISA_AVX2] = &loops_avx2,
		[ROSA_ISA_AVX512] = &loops_avx512,
#endif
	};

	return all[isa];
}

bool multiply_isa_available(rosa_isa isa)
{
#if ROSA_X86_VARIANTS
	/* Every processor with FMA also converts float16, but not every compiler can test for that by name. */
	if (isa > ROSA_ISA_PLAIN && !(rosa_isa_available(isa) && __builtin_cpu_supports("fma")))
		return false;
#endif
	return rosa_isa_available(isa);
}

rosa_isa multiply_isa_best(void)
{
	rosa_isa best = ROSA_ISA_PLAIN;

	for (int isa = ROSA_ISA_PLAIN; isa < ROSA_ISA_COUNT; isa++)
		if (multiply_isa_available((rosa_isa)isa))
			best = (rosa_isa)isa;
	return best;
}
