/*
 * The formats of weights, defined by plain code.
 *
 * This code defines what each number is; it is not meant to be fast. Products have code of their own
 * (multiply_loops.c), which must agree with it. The float16 scales have 11 bits and the integers few, so products of
 * the two are exact in float32; where a result is rounded, a comment says so.
 */
#include "backend/format.h"

#include <string.h>

const struct format_info format_info[FORMAT_COUNT] = {
    [FORMAT_F32] = {"F32", 1, 4, 4},       [FORMAT_F16] = {"F16", 1, 2, 2},       [FORMAT_BF16] = {"BF16", 1, 2, 2},
    [FORMAT_Q8_0] = {"Q8_0", 32, 34, 1},   [FORMAT_Q4_0] = {"Q4_0", 32, 18, 1},   [FORMAT_Q4_1] = {"Q4_1", 32, 20, 1},
    [FORMAT_Q4_K] = {"Q4_K", 256, 144, 1}, [FORMAT_Q6_K] = {"Q6_K", 256, 210, 1}, [FORMAT_Q5_0] = {"Q5_0", 32, 22, 1},
    [FORMAT_Q5_1] = {"Q5_1", 32, 24, 1},   [FORMAT_Q5_K] = {"Q5_K", 256, 176, 1},
};

size_t format_row_bytes(enum format format, size_t numbers)
{
	const struct format_info *info = &format_info[format];

	if (numbers % info->numbers || numbers / info->numbers > SIZE_MAX / info->bytes)
		return 0;
	return numbers / info->numbers * info->bytes;
}

/* ------------------------------------------------------------------------------------------------------- blocks -- */

static void widen_f32(const uint8_t *block, float *to)
{
	memcpy(to, block, sizeof(*to));
}

static void widen_f16(const uint8_t *block, float *to)
{
	*to = format_half(block);
}

static void widen_bf16(const uint8_t *block, float *to)
{
	const uint32_t bits = (uint32_t)(block[0] | block[1] << 8) << 16;

	memcpy(to, &bits, sizeof(*to));
}

static void widen_q8_0(const uint8_t *block, float *to)
{
	const float d = format_half(block);

	for (int i = 0; i < 32; i++)
		to[i] = d * (float)(int8_t)block[2 + i];
}

/* The low halves of 16 bytes are the first 16 numbers, the high halves the others. */
static void widen_q4_0(const uint8_t *block, float *to)
{
	const float d = format_half(block);

	for (int i = 0; i < 16; i++) {
		to[i] = d * (float)((block[2 + i] & 15) - 8);
		to[16 + i] = d * (float)((block[2 + i] >> 4) - 8);
	}
}

/* The sum is rounded. */
static void widen_q4_1(const uint8_t *block, float *to)
{
	const float d = format_half(block), m = format_half(block + 2);

	for (int i = 0; i < 16; i++) {
		to[i] = d * (float)(block[4 + i] & 15) + m;
		to[16 + i] = d * (float)(block[4 + i] >> 4) + m;
	}
}

/* Number i of 32: 4 bits as in Q4_0, and bit i of the 4 bytes before them as the fifth. */
static unsigned five_bits(const uint8_t *fifths, unsigned i)
{
	const uint8_t *fours = fifths + 4;

	return (fours[i % 16] >> i / 16 * 4 & 15) | (fifths[i / 8] >> i % 8 & 1) << 4;
}

static void widen_q5_0(const uint8_t *block, float *to)
{
	const float d = format_half(block);

	for (unsigned i = 0; i < 32; i++)
		to[i] = d * (float)((int)five_bits(block + 2, i) - 16);
}

/* The sum is rounded. */
static void widen_q5_1(const uint8_t *block, float *to)
{
	const float d = format_half(block), m = format_half(block + 2);

	for (unsigned i = 0; i < 32; i++)
		to[i] = d * (float)five_bits(block + 4, i) + m;
}

struct q4_k_scales {
	float d, m; /* both exact: numbers are d q - m */
};

static struct q4_k_scales q4_k_scales(const uint8_t *block, unsigned j)
{
	const struct q4_k_bits bits = q4_k_bits(block, j);

	return (struct q4_k_scales){format_half(block) * (float)bits.s, format_half(block + 2) * (float)bits.m};
}

/* d, dmin, 12 bytes of scales, and four times 32 bytes that hold two blocks of 32 as low and high halves. The
 * difference is rounded. */
static void widen_q4_k(const uint8_t *block, float *to)
{
	for (unsigned j = 0; j < 8; j++) {
		const struct q4_k_scales scales = q4_k_scales(block, j);
		const uint8_t *bytes = block + 16 + j / 2 * 32;

		for (unsigned i = 0; i < 32; i++)
			to[j * 32 + i] = scales.d * (float)(bytes[i] >> j % 2 * 4 & 15) - scales.m;
	}
}

/* As Q4_K, with 32 bytes before the halves: bit j of byte i is the fifth of number i of block j. */
static void widen_q5_k(const uint8_t *block, float *to)
{
	for (unsigned j = 0; j < 8; j++) {
		const struct q4_k_scales scales = q4_k_scales(block, j);
		const uint8_t *fifths = block + 16, *bytes = block + 48 + j / 2 * 32;

		for (unsigned i = 0; i < 32; i++) {
			const unsigned q = (bytes[i] >> j % 2 * 4 & 15) | (fifths[i] >> j & 1) << 4;

			to[j * 32 + i] = scales.d * (float)q - scales.m;
		}
	}
}

/* 128 bytes with the low 4 bits, 64 bytes with the high 2, 16 signed scales, d. Each half of the block has half of the
 * bytes: of its four times 32 numbers, the low 4 bits are the low halves of 64 bytes, then the high halves, and the
 * high 2 bits those at bit 0, 2, 4 and 6 of 32 bytes. The last product is rounded. */
static void widen_q6_k(const uint8_t *block, float *to)
{
	const float d = format_half(block + 208);

	for (unsigned j = 0; j < 8; j++) {
		const uint8_t *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;

		for (unsigned i = 0; i < 32; i++) {
			const int q = (low[i] >> j % 4 / 2 * 4 & 15) | (high[i] >> j % 4 * 2 & 3) << 4;
			const float scale = d * (float)(int8_t)block[192 + j * 2 + i / 16];

			to[j * 32 + i] = scale * (float)(q - 32);
		}
	}
}

void format_widen(enum format format, const void *row, size_t count, float *to)
{
	static void (*const widen[FORMAT_COUNT])(const uint8_t *block, float *to) = {
	    [FORMAT_F32] = widen_f32,   [FORMAT_F16] = widen_f16,   [FORMAT_BF16] = widen_bf16,
	    [FORMAT_Q8_0] = widen_q8_0, [FORMAT_Q4_0] = widen_q4_0, [FORMAT_Q4_1] = widen_q4_1,
	    [FORMAT_Q4_K] = widen_q4_k, [FORMAT_Q6_K] = widen_q6_k, [FORMAT_Q5_0] = widen_q5_0,
	    [FORMAT_Q5_1] = widen_q5_1, [FORMAT_Q5_K] = widen_q5_k,
	};
	const struct format_info *info = &format_info[format];
	const uint8_t *block = row;

	for (size_t i = 0; i < count; i += info->numbers, block += info->bytes)
		widen[format](block, to + i);
}
