/*
 * Packing rows of numbers into symbols.
 *
 * The input is read once and is much larger than the output (64 bytes of float32 for 2 bytes of symbol at 16 bits), so
 * the aim is to keep up with memory. Three things stand in the way, and each has its answer:
 *
 *   - A test per channel. A row becomes a string of bits first, 64 channels per word, by vector compares; symbols of
 *     any width are then cut out of the string, four at a time, and no width needs code of its own.
 *   - Floating point. x > 0 is asked of the bit pattern: true for 1 .. infinity as an unsigned number, that is, where
 *     pattern - 1 < infinity. This serves all three formats, needs no half-precision hardware, and does not change its
 *     answer for denormals when the program has switched the processor to flush them.
 *   - The transposition. Symbols come a row at a time and are wanted a route at a time. Rows are read in long pieces,
 *     as the hardware's prefetcher likes it, but only PACK_STEPS of them: their strings of bits, a 32nd of float32
 *     input, stay in the cache, the symbols cut from them for PACK_ROUTES routes stay in the first-level cache, and
 *     from there each route gets a whole cache line. Reading a tile's share of each row at a time instead took twice
 *     as long.
 *
 * The scheme is written once, in symbols_template.h; a variant supplies the instructions for single steps of it.
 * Unpacking is for looking at symbols and for tests, and is plain code.
 */
#include <string.h>

#include "base/status.h"
#include "retrieval/symbols.h"

#define PACK_STEPS    32                       /* symbols in a cache line */
#define PACK_ROUTES   64                       /* any number of bits then fills whole words */
#define PACK_CHANNELS 4096                     /* of a row that are read in one go */
#define PACK_WORDS    (PACK_CHANNELS / 64 + 2) /* with the word of zeros behind them */

struct pack_job {
	const unsigned char *rows;
	size_t row_bytes, width; /* from row to row; of a number */
	uint32_t infinity;       /* bit pattern */
	size_t steps, routes;
	unsigned bits;
	uint16_t *symbols;
	size_t route_stride;
};

/* -------------------------------------------------------------------------------------------------------- plain -- */

static inline uint64_t word_4_plain(const unsigned char *p, uint32_t infinity)
{
	uint32_t x[64];
	uint64_t word = 0;

	memcpy(x, p, sizeof(x));
	for (int i = 0; i < 64; i++)
		word |= (uint64_t)(x[i] - 1 < infinity) << i;
	return word;
}

static inline uint64_t word_2_plain(const unsigned char *p, uint32_t infinity)
{
	uint16_t x[64];
	uint64_t word = 0;

	memcpy(x, p, sizeof(x));
	for (int i = 0; i < 64; i++)
		word |= (uint64_t)((uint16_t)(x[i] - 1) < infinity) << i;
	return word;
}

static inline void cut_plain(uint64_t x, unsigned bits, uint16_t *out)
{
	const uint64_t mask = ((uint64_t)1 << bits) - 1;

	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint16_t)(x >> i * bits & mask);
}

#define PACK_NAME plain
#include "retrieval/symbols_template.h"

/* ----------------------------------------------------------------------------------------------- AVX2, AVX-512 -- */

#if ROSA_X86_VARIANTS
#include <immintrin.h>

#define TARGET_AVX2   __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,bmi2")))

/* AVX2 compares signed numbers only: positive, and not above infinity. */
TARGET_AVX2 static inline uint64_t word_4_avx2(const unsigned char *p, uint32_t infinity)
{
	const __m256i zero = _mm256_setzero_si256(), top = _mm256_set1_epi32((int)infinity);
	uint64_t word = 0;

	for (int i = 0; i < 8; i++) {
		const __m256i x = _mm256_loadu_si256((const __m256i *)(p + i * 32));
		const __m256i is = _mm256_andnot_si256(_mm256_cmpgt_epi32(x, top), _mm256_cmpgt_epi32(x, zero));

		word |= (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is)) << i * 8;
	}
	return word;
}

TARGET_AVX2 static inline __m256i positive_2_avx2(const unsigned char *p, uint32_t infinity)
{
	const __m256i x = _mm256_loadu_si256((const __m256i *)p);
	const __m256i top = _mm256_set1_epi16((short)infinity);

	return _mm256_andnot_si256(_mm256_cmpgt_epi16(x, top), _mm256_cmpgt_epi16(x, _mm256_setzero_si256()));
}

TARGET_AVX2 static inline uint64_t word_2_avx2(const unsigned char *p, uint32_t infinity)
{
	uint64_t word = 0;

	for (int i = 0; i < 2; i++) {
		/* Packing works within halves of a register; the permutation puts the quarters back in order. */
		const __m256i both = _mm256_packs_epi16(positive_2_avx2(p + i * 64, infinity),
							positive_2_avx2(p + i * 64 + 32, infinity));

		word |= (uint64_t)(unsigned)_mm256_movemask_epi8(_mm256_permute4x64_epi64(both, 0xd8)) << i * 32;
	}
	return word;
}

/* Eight routes by sixteen steps at a time: steps t and t + 8 share a register, one in each half, so that three rounds
 * of interleaving leave every route's sixteen steps in order. */
TARGET_AVX2 static inline size_t turn_avx2(uint16_t (*rows)[PACK_ROUTES], size_t routes, uint16_t *out, size_t stride)
{
	const size_t whole = routes & ~(size_t)7;

	for (size_t r = 0; r < whole; r += 8) {
		for (size_t t = 0; t < PACK_STEPS; t += 16) {
			__m256i a[8], b[8];

			for (size_t i = 0; i < 8; i++) {
				const __m128i low = _mm_loadu_si128((const __m128i *)(rows[t + i] + r));
				const __m128i high = _mm_loadu_si128((const __m128i *)(rows[t + i + 8] + r));

				a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
			}
			for (int i = 0; i < 4; i++) {
				b[i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
				b[i + 4] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
			}
			for (int i = 0; i < 8; i += 2) {
				a[i] = _mm256_unpacklo_epi32(b[i], b[i + 1]);
				a[i + 1] = _mm256_unpackhi_epi32(b[i], b[i + 1]);
			}
			/* a[0], a[2]: routes 0 and 1 of steps 0-3 and 4-7; a[1], a[3]: routes 2 and 3; then 4 to 7. */
			for (size_t i = 0; i < 8; i += 4) {
				for (size_t k = 0; k < 2; k++) {
					uint16_t *to = out + (r + i + 2 * k) * stride + t;

					_mm256_storeu_si256((__m256i *)to,
							    _mm256_unpacklo_epi64(a[i + k], a[i + k + 2]));
					_mm256_storeu_si256((__m256i *)(to + stride),
							    _mm256_unpackhi_epi64(a[i + k], a[i + k + 2]));
				}
			}
		}
	}
	return whole;
}

TARGET_AVX512 static inline uint64_t word_4_avx512(const unsigned char *p, uint32_t infinity)
{
	const __m512i one = _mm512_set1_epi32(1), top = _mm512_set1_epi32((int)infinity);
	uint64_t word = 0;

	for (int i = 0; i < 4; i++) {
		const __m512i x = _mm512_sub_epi32(_mm512_loadu_si512(p + i * 64), one);

		word |= (uint64_t)_mm512_cmplt_epu32_mask(x, top) << i * 16;
	}
	return word;
}

TARGET_AVX512 static inline uint64_t word_2_avx512(const unsigned char *p, uint32_t infinity)
{
	const __m512i one = _mm512_set1_epi16(1), top = _mm512_set1_epi16((short)infinity);
	const __m512i low = _mm512_sub_epi16(_mm512_loadu_si512(p), one);
	const __m512i high = _mm512_sub_epi16(_mm512_loadu_si512(p + 64), one);

	return (uint64_t)_mm512_cmplt_epu16_mask(low, top) | (uint64_t)_mm512_cmplt_epu16_mask(high, top) << 32;
}

/* PDEP deals out four symbols in one instruction. It belongs to this variant alone because every processor with AVX-512
 * does it in hardware, while some with AVX2 take hundreds of cycles. */
TARGET_AVX512 static inline void cut_avx512(uint64_t x, unsigned bits, uint16_t *out)
{
	const uint64_t four = _pdep_u64(x, 0x0001000100010001u * (((uint64_t)1 << bits) - 1));

	memcpy(out, &four, sizeof(four));
}

#define PACK_NAME                            avx2
#define PACK_TARGET                          TARGET_AVX2
#define PACK_WORD_4(p, inf)                  word_4_avx2(p, inf)
#define PACK_WORD_2(p, inf)                  word_2_avx2(p, inf)
#define PACK_TURN(rows, routes, out, stride) turn_avx2(rows, routes, out, stride)
#include "retrieval/symbols_template.h"

#define PACK_NAME                            avx512
#define PACK_TARGET                          TARGET_AVX512
#define PACK_WORD_4(p, inf)                  word_4_avx512(p, inf)
#define PACK_WORD_2(p, inf)                  word_2_avx512(p, inf)
#define PACK_CUT(x, bits, out)               cut_avx512(x, bits, out)
#define PACK_TURN(rows, routes, out, stride) turn_avx2(rows, routes, out, stride)
#include "retrieval/symbols_template.h"
#endif

/* ---------------------------------------------------------------------------------------------------- interface -- */

/* What packing and unpacking ask of their arguments alike; sets *route_stride from its default. */
static rosa_status check(const void *numbers, const void *symbols, size_t steps, size_t channels, int bits,
			 size_t *route_stride, rosa_error *err)
{
	if (!numbers || !symbols)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL: give an array", numbers ? "symbols" : "rows or values");
	if (bits < ROSA_MIN_BITS || bits > ROSA_MAX_BITS)
		return rosa_fail(err, ROSA_EINVAL, "bits is %d: give %d to %d", bits, ROSA_MIN_BITS, ROSA_MAX_BITS);
	if (channels == 0 || channels % (size_t)bits)
		return rosa_fail(err, ROSA_EINVAL, "channels is %zu: give a positive multiple of bits, %d", channels,
				 bits);
	if (steps == 0)
		return rosa_fail(err, ROSA_EINVAL, "steps is 0: give at least one row");
	if (*route_stride == 0)
		*route_stride = steps;
	if (*route_stride < steps)
		return rosa_fail(err, ROSA_EINVAL, "route_stride is %zu, below steps, %zu: routes would overlap",
				 *route_stride, steps);
	if (*route_stride > SIZE_MAX / sizeof(uint16_t) / (channels / (size_t)bits))
		return rosa_fail(err, ROSA_EINVAL, "%zu routes of %zu symbols are more than memory can hold",
				 channels / (size_t)bits, *route_stride);
	return ROSA_OK;
}

rosa_status rosa_pack_with(rosa_isa isa, rosa_dtype dtype, const void *rows, size_t row_stride, size_t steps,
			   size_t channels, int bits, uint16_t *symbols, size_t route_stride, rosa_error *err)
{
	static const struct {
		size_t width;
		uint32_t infinity;
	} formats[] = {[ROSA_FLOAT32] = {4, 0x7f800000}, [ROSA_FLOAT16] = {2, 0x7c00}, [ROSA_BFLOAT16] = {2, 0x7f80}};
	struct pack_job job;
	const rosa_status status = check(rows, symbols, steps, channels, bits, &route_stride, err);

	if (status != ROSA_OK)
		return status;
	if ((unsigned)dtype >= sizeof(formats) / sizeof(formats[0]))
		return rosa_fail(err, ROSA_EINVAL, "dtype is %d: give ROSA_FLOAT32, ROSA_FLOAT16 or ROSA_BFLOAT16",
				 (int)dtype);
	if (row_stride == 0)
		row_stride = channels;
	if (row_stride < channels)
		return rosa_fail(err, ROSA_EINVAL, "row_stride is %zu, below channels, %zu: rows would overlap",
				 row_stride, channels);
	if (row_stride > SIZE_MAX / formats[dtype].width / steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu rows of %zu numbers are more than memory can hold", steps,
				 row_stride);

	job = (struct pack_job){.rows = rows,
				.row_bytes = row_stride * formats[dtype].width,
				.width = formats[dtype].width,
				.infinity = formats[dtype].infinity,
				.steps = steps,
				.routes = channels / (size_t)bits,
				.bits = (unsigned)bits,
				.symbols = symbols,
				.route_stride = route_stride};
	if (!rosa_isa_available(isa))
		return rosa_fail(err, ROSA_EINVAL, "instruction set %s is not available", rosa_isa_name(isa));
#if ROSA_X86_VARIANTS
	if (isa == ROSA_ISA_AVX512)
		pack_avx512(&job);
	else if (isa == ROSA_ISA_AVX2)
		pack_avx2(&job);
	else
#endif
		pack_plain(&job);
	return ROSA_OK;
}

rosa_status rosa_pack(rosa_dtype dtype, const void *rows, size_t row_stride, size_t steps, size_t channels, int bits,
		      uint16_t *symbols, size_t route_stride, rosa_error *err)
{
	return rosa_pack_with(rosa_isa_best(), dtype, rows, row_stride, steps, channels, bits, symbols, route_stride,
			      err);
}

const char *rosa_pack_isa(void)
{
	return rosa_isa_name(rosa_isa_best());
}

rosa_status rosa_unpack(const uint16_t *symbols, size_t route_stride, size_t steps, size_t channels, int bits,
			uint8_t *values, rosa_error *err)
{
	const rosa_status status = check(values, symbols, steps, channels, bits, &route_stride, err);
	size_t routes;

	if (status != ROSA_OK)
		return status;
	if (channels > SIZE_MAX / steps)
		return rosa_fail(err, ROSA_EINVAL, "%zu rows of %zu values are more than memory can hold", steps,
				 channels);
	routes = channels / (size_t)bits;
	/* In tiles of steps, so that a row's cache lines are filled before they are dropped. */
	for (size_t first = 0; first < steps; first += PACK_STEPS) {
		const size_t end = steps - first < PACK_STEPS ? steps : first + PACK_STEPS;

		for (size_t r = 0; r < routes; r++) {
			for (size_t t = first; t < end; t++) {
				const unsigned symbol = symbols[r * route_stride + t];
				uint8_t *to = values + t * channels + r * (size_t)bits;

				if (symbol >> bits)
					return rosa_fail(err, ROSA_ESYMBOL,
							 "symbol %u of route %zu at step %zu does not fit %d bits",
							 symbol, r, t, bits);
				for (int j = 0; j < bits; j++)
					to[j] = (uint8_t)(symbol >> j & 1);
			}
		}
	}
	return ROSA_OK;
}
