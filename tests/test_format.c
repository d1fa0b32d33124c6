/*
 * The formats of weights, against blocks put together by hand.
 *
 * Numbers are written into a block by the layout as its authors describe it, bit by bit, and read back by the library.
 * The two share no code: here a number is placed, there it is picked up.
 */
#include "backend/format.h"

#include "base/draw.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

/* What a float16 stands for, from its fields. */
static double half_value(unsigned half)
{
	const int exponent = half >> 10 & 31, fraction = half & 1023;
	const double sign = half & 0x8000 ? -1 : 1;

	if (exponent == 31)
		return fraction ? NAN : sign * INFINITY;
	return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

TEST(test_all_halves)
{
	for (unsigned i = 0; i <= UINT16_MAX; i++) {
		const double want = half_value(i);
		const float got = half_to_float((uint16_t)i);

		if (isnan(want) ? !isnan(got) : (double)got != want || !signbit(got) != !signbit(want))
			fail_msg("half %04x became %a instead of %a", i, (double)got, want);
	}
}

static void put_half(uint8_t *at, unsigned half)
{
	at[0] = (uint8_t)half;
	at[1] = (uint8_t)(half >> 8);
}

/* Set `count` bits at bit `from` of a byte that has zeros there. */
static void put_bits(uint8_t *byte, unsigned from, unsigned count, unsigned value)
{
	assert_true(value < 1u << count && !(*byte >> from & ((1u << count) - 1)));
	*byte |= (uint8_t)(value << from);
}

static unsigned draw_below(uint64_t *place, unsigned limit)
{
	return (unsigned)(draw(7, 0, (*place)++) % limit);
}

/* A finite float16 of either sign, not so small that products with it leave the range of float32. */
static unsigned draw_half(uint64_t *place)
{
	return draw_below(place, 0x7c00) | draw_below(place, 2) << 15;
}

static float half(unsigned bits)
{
	return (float)half_value(bits);
}

static void expect_numbers(enum format format, const uint8_t *row, size_t count, const float *want)
{
	float got[512];

	memset(got, 0x55, sizeof(got));
	format_widen(format, row, count, got);
	for (size_t i = 0; i < count; i++)
		if (memcmp(&got[i], &want[i], sizeof(float)))
			fail_msg("%s: number %zu is %a instead of %a", format_info[format].name, i, (double)got[i],
				 (double)want[i]);
}

TEST(test_plain)
{
	const uint32_t bits[] = {0x3f800000, 0xc0490fdb, 0x00000001, 0x80000000, 0x7f7fffff};
	uint8_t f32[4 * COUNT(bits)], bf16[2 * COUNT(bits)], f16[2 * COUNT(bits)];
	float want[COUNT(bits)];

	for (size_t i = 0; i < COUNT(bits); i++) {
		for (size_t j = 0; j < 4; j++)
			f32[i * 4 + j] = (uint8_t)(bits[i] >> j * 8);
		put_half(bf16 + i * 2, bits[i] >> 16);
		put_half(f16 + i * 2, bits[i] >> 18);
	}
	memcpy(want, bits, sizeof(want));
	expect_numbers(FORMAT_F32, f32, COUNT(bits), want);
	for (size_t i = 0; i < COUNT(bits); i++)
		memcpy(&want[i], &(uint32_t){bits[i] & 0xffff0000}, sizeof(float));
	expect_numbers(FORMAT_BF16, bf16, COUNT(bits), want);
	for (size_t i = 0; i < COUNT(bits); i++)
		want[i] = half(bits[i] >> 18);
	expect_numbers(FORMAT_F16, f16, COUNT(bits), want);
}

/* Two blocks of 32 in a row. */
TEST(test_blocks_of_32)
{
	for (uint64_t place = 0; place < 20000;) {
		uint8_t q8_0[2][34] = {{0}}, q4_0[2][18] = {{0}}, q4_1[2][20] = {{0}};
		float wide8_0[64], wide4_0[64], wide4_1[64];

		for (unsigned b = 0; b < 2; b++) {
			const unsigned d = draw_half(&place), m = draw_half(&place);

			put_half(q8_0[b], d);
			put_half(q4_0[b], d);
			put_half(q4_1[b], d);
			put_half(q4_1[b] + 2, m);
			for (unsigned i = 0; i < 32; i++) {
				const unsigned byte = draw_below(&place, 256), four = draw_below(&place, 16);
				const int value = byte < 128 ? (int)byte : (int)byte - 256;

				q8_0[b][2 + i] = (uint8_t)byte;
				wide8_0[b * 32 + i] = half(d) * (float)value;
				put_bits(&q4_0[b][2 + i % 16], i / 16 * 4, 4, four);
				wide4_0[b * 32 + i] = half(d) * ((float)four - 8);
				put_bits(&q4_1[b][4 + i % 16], i / 16 * 4, 4, four);
				wide4_1[b * 32 + i] = (float)((double)half(d) * four + (double)half(m));
			}
		}
		expect_numbers(FORMAT_Q8_0, q8_0[0], 64, wide8_0);
		expect_numbers(FORMAT_Q4_0, q4_0[0], 64, wide4_0);
		expect_numbers(FORMAT_Q4_1, q4_1[0], 64, wide4_1);
	}
}

/* Four bytes with the fifth bits, then 16 with the others. */
TEST(test_fives_of_32)
{
	for (uint64_t place = 0; place < 100000;) {
		const unsigned d = draw_half(&place), m = draw_half(&place);
		uint8_t q5_0[22] = {0}, q5_1[24] = {0};
		float wide5_0[32], wide5_1[32];

		put_half(q5_0, d);
		put_half(q5_1, d);
		put_half(q5_1 + 2, m);
		for (unsigned i = 0; i < 32; i++) {
			const unsigned q = draw_below(&place, 32);

			put_bits(&q5_0[2 + i / 8], i % 8, 1, q / 16);
			put_bits(&q5_0[6 + i % 16], i / 16 * 4, 4, q % 16);
			put_bits(&q5_1[4 + i / 8], i % 8, 1, q / 16);
			put_bits(&q5_1[8 + i % 16], i / 16 * 4, 4, q % 16);
			wide5_0[i] = half(d) * ((float)q - 16);
			wide5_1[i] = (float)((double)half(d) * q + (double)half(m));
		}
		expect_numbers(FORMAT_Q5_0, q5_0, 32, wide5_0);
		expect_numbers(FORMAT_Q5_1, q5_1, 32, wide5_1);
	}
}

/* Q4_K and Q5_K: the second has 32 bytes of fifth bits before the others. */
static void check_large(enum format format)
{
	const bool five = format == FORMAT_Q5_K;

	for (uint64_t place = 0; place < 100000;) {
		const unsigned d = draw_half(&place), dmin = draw_half(&place);
		uint8_t block[176] = {0}, *scales = block + 4, *fifths = block + 16, *fours = fifths + (five ? 32 : 0);
		float want[256];

		put_half(block, d);
		put_half(block + 2, dmin);
		for (unsigned j = 0; j < 8; j++) {
			const unsigned s = draw_below(&place, 64), m = draw_below(&place, 64);

			if (j < 4) {
				put_bits(&scales[j], 0, 6, s);
				put_bits(&scales[4 + j], 0, 6, m);
			} else {
				put_bits(&scales[4 + j], 0, 4, s % 16);
				put_bits(&scales[j - 4], 6, 2, s / 16);
				put_bits(&scales[4 + j], 4, 4, m % 16);
				put_bits(&scales[j], 6, 2, m / 16);
			}
			for (unsigned i = 0; i < 32; i++) {
				const unsigned q = draw_below(&place, five ? 32 : 16);

				put_bits(&fours[j / 2 * 32 + i], j % 2 * 4, 4, q % 16);
				if (five)
					put_bits(&fifths[i], j, 1, q / 16);
				want[j * 32 + i] = (float)((double)half(d) * s * q - (double)half(dmin) * m);
			}
		}
		expect_numbers(format, block, 256, want);
	}
}

TEST(test_q4_k)
{
	check_large(FORMAT_Q4_K);
}

TEST(test_q5_k)
{
	check_large(FORMAT_Q5_K);
}

TEST(test_q6_k)
{
	for (uint64_t place = 0; place < 100000;) {
		const unsigned d = draw_half(&place);
		uint8_t block[210] = {0}, *fours = block, *twos = block + 128, *scales = block + 192;
		float want[256];

		put_half(block + 208, d);
		for (unsigned i = 0; i < 16; i++)
			scales[i] = (uint8_t)draw_below(&place, 256);
		for (unsigned i = 0; i < 256; i++) {
			/* 128 numbers to a half of the block, in four groups of 32 */
			const unsigned half_block = i / 128, group = i % 128 / 32, at = i % 32;
			const unsigned q = draw_below(&place, 64), byte = scales[i / 16];
			const int scale = byte < 128 ? (int)byte : (int)byte - 256;

			put_bits(&fours[half_block * 64 + group % 2 * 32 + at], group / 2 * 4, 4, q % 16);
			put_bits(&twos[half_block * 32 + at], group * 2, 2, q / 16);
			want[i] = (float)((double)half(d) * scale * ((double)q - 32));
		}
		expect_numbers(FORMAT_Q6_K, block, 256, want);
	}
}

TEST(test_sizes)
{
	static const struct {
		const char *name;
		size_t numbers, bytes;
	} want[FORMAT_COUNT] = {
	    [FORMAT_F32] = {"F32", 1, 4},       [FORMAT_F16] = {"F16", 1, 2},       [FORMAT_BF16] = {"BF16", 1, 2},
	    [FORMAT_Q8_0] = {"Q8_0", 32, 34},   [FORMAT_Q4_0] = {"Q4_0", 32, 18},   [FORMAT_Q4_1] = {"Q4_1", 32, 20},
	    [FORMAT_Q4_K] = {"Q4_K", 256, 144}, [FORMAT_Q6_K] = {"Q6_K", 256, 210}, [FORMAT_Q5_0] = {"Q5_0", 32, 22},
	    [FORMAT_Q5_1] = {"Q5_1", 32, 24},   [FORMAT_Q5_K] = {"Q5_K", 256, 176},
	};

	for (enum format format = 0; format < FORMAT_COUNT; format++) {
		const size_t numbers = want[format].numbers, bytes = want[format].bytes;

		assert_string_equal(format_info[format].name, want[format].name);
		assert_int_equal(format_info[format].numbers, numbers);
		assert_int_equal(format_info[format].bytes, bytes);
		assert_int_equal(format_row_bytes(format, 0), 0);
		assert_int_equal(format_row_bytes(format, 3 * numbers), 3 * bytes);
		if (numbers > 1) {
			assert_int_equal(format_row_bytes(format, 3 * numbers + 1), 0);
			assert_int_equal(format_row_bytes(format, numbers - 1), 0);
		}
		/* a row that no memory could hold */
		if (bytes > numbers)
			assert_int_equal(format_row_bytes(format, SIZE_MAX / numbers * numbers), 0);
	}
}
