/*
 * How the numbers of a weight lie in memory.
 *
 * The plain formats are a number each. The others are GGUF's: a row is cut into blocks, and a block holds small
 * integers and the one or two float16 numbers that scale them. Blocks never cross rows.
 *
 *     name   numbers  bytes   a number is
 *     Q8_0      32      34    d q, q signed
 *     Q4_0      32      18    d (q - 8), q of 4 bits
 *     Q4_1      32      20    d q + m
 *     Q5_0      32      22    d (q - 16), q of 5 bits
 *     Q5_1      32      24    d q + m
 *     Q4_K     256     144    eight blocks of 32: d s q - dmin m, s and m of 6 bits
 *     Q5_K     256     176    the same with q of 5 bits
 *     Q6_K     256     210    sixteen blocks of 16: d s (q - 32), s signed, q of 6 bits
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum format {
	FORMAT_F32,
	FORMAT_F16,
	FORMAT_BF16,
	FORMAT_Q8_0,
	FORMAT_Q4_0,
	FORMAT_Q4_1,
	FORMAT_Q4_K,
	FORMAT_Q6_K,
	FORMAT_Q5_0,
	FORMAT_Q5_1,
	FORMAT_Q5_K
};
#define FORMAT_COUNT 11

struct format_info {
	const char *name; /* "Q4_1" */
	size_t numbers;   /* of a block; 1 for the plain formats */
	size_t bytes;     /* of a block */
	size_t alignment; /* of a block's address; 1: any */
};

extern const struct format_info format_info[FORMAT_COUNT];

/* Bytes of a row of so many numbers, a multiple of the block; 0 if it is none. */
size_t format_row_bytes(enum format format, size_t numbers);

/* The numbers of a row, or of rows that follow each other, as float32: `count` of them, a multiple of the block. This
 * is the definition of each format. Products use numbers equal to these, bit for bit, but where format_is_fixed. */
void format_widen(enum format format, const void *row, size_t count, float *to);

/* Whether a decoder multiplies it in whole numbers, by activations that are rounded to 16 bits (fixed.h). */
static inline bool format_is_fixed(enum format format)
{
	return format == FORMAT_Q4_K || format == FORMAT_Q5_K || format == FORMAT_Q6_K;
}

/* float16 to float32, exact, without tables. */
static inline float half_to_float(uint16_t half)
{
	union {
		uint32_t bits;
		float number;
	} wide = {(uint32_t)(half & 0x7fff) << 13}, scale = {(uint32_t)(254 - 15) << 23};

	wide.number *= scale.number; /* moves the exponent, subnormal numbers with it */
	if ((half & 0x7c00) == 0x7c00)
		wide.bits |= 0xffu << 23;
	wide.bits |= (uint32_t)(half & 0x8000) << 16;
	return wide.number;
}

/* The float16 number whose two bytes lie at any address. */
static inline float format_half(const uint8_t *bytes)
{
	return half_to_float((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* The factors of group `j`, 0 to 7, of a Q4_K or Q5_K block: numbers are d s q - dmin m. These 6-bit factors lie in 12
 * bytes behind d and dmin. Those of the first four groups are the low 6 bits of a byte each; of the others the low 4
 * bits share a byte, and the high 2 are left over from the bytes of the first four. */
struct q4_k_bits {
	unsigned s, m;
};

static inline struct q4_k_bits q4_k_bits(const uint8_t *block, unsigned j)
{
	const uint8_t *bytes = block + 4;

	return (struct q4_k_bits){j < 4 ? bytes[j] & 63 : (bytes[j + 4] & 15) | bytes[j - 4] >> 6 << 4,
				  j < 4 ? bytes[j + 4] & 63 : bytes[j + 4] >> 4 | bytes[j] >> 6 << 4};
}
