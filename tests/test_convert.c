/* Between float32 and bfloat16: every bfloat16 there and back, and rounding against the two neighbours of a number. */
#include "backend/convert.h"

#include "support_test.h"
#include "support_trial.h"

#include <math.h>

static float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

TEST(test_all_bfloat16)
{
	for (uint32_t i = 0; i <= UINT16_MAX; i++) {
		const float wide = bfloat16_to_float((uint16_t)i);
		const uint16_t back = float_to_bfloat16(wide);

		assert_memory_equal(&wide, &(float){float_of(i << 16)}, isnan(wide) ? 0 : sizeof(wide));
		if (isnan(wide))
			assert_int_equal(back, i | 0x40);
		else
			assert_int_equal(back, i);
	}
}

static void expect_rounded(uint32_t bits)
{
	const float x = float_of(bits);
	const uint16_t got = float_to_bfloat16(x), down = (uint16_t)(bits >> 16);
	double below, above;

	if (isnan(x)) {
		if (!isnan(bfloat16_to_float(got)))
			fail_msg("NaN %08x became %04x", bits, got);
		return;
	}
	if (isinf(x)) {
		assert_int_equal(got, down);
		return;
	}
	/* towards zero, and away from it; beyond the greatest number stands what would be the next */
	below = fabs((double)bfloat16_to_float(down));
	above = (down & 0x7fff) == 0x7f7f ? 0x1p128 : fabs((double)bfloat16_to_float((uint16_t)(down + 1)));
	if (fabs((double)x) - below < above - fabs((double)x))
		assert_int_equal(got, down);
	else if (fabs((double)x) - below > above - fabs((double)x))
		assert_int_equal(got, down + 1);
	else
		assert_int_equal(got, down + (down & 1));
}

TEST(test_rounding)
{
	static const uint32_t ends[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
	uint64_t random = 1;

	for (uint32_t i = 0; i <= UINT16_MAX; i++)
		for (size_t e = 0; e < COUNT(ends); e++)
			expect_rounded(i << 16 | ends[e]);
	for (size_t i = 0; i < 200000; i++)
		expect_rounded((uint32_t)test_random(&random, (uint64_t)1 << 32));
}

TEST(test_rows)
{
	float rows[37], back[37];
	uint16_t narrow[40];
	float wide[40];

	for (size_t i = 0; i < COUNT(rows); i++)
		rows[i] = (float)i / 7 - 2;
	memset(narrow, 0xa5, sizeof(narrow));
	memset(wide, 0xa5, sizeof(wide));
	activations_store(narrow, ROSA_BFLOAT16, rows, 2, COUNT(rows));
	activations_store(wide, ROSA_FLOAT32, rows, 2, COUNT(rows));
	assert_memory_equal(wide + 2, rows, sizeof(rows));
	for (size_t i = 0; i < COUNT(rows); i++)
		assert_int_equal(narrow[2 + i], float_to_bfloat16(rows[i]));
	assert_int_equal(narrow[1], 0xa5a5);
	assert_int_equal(narrow[2 + COUNT(rows)], 0xa5a5);
	activations_load(back, ROSA_FLOAT32, wide, 2, COUNT(rows));
	assert_memory_equal(back, rows, sizeof(rows));
	activations_load(back, ROSA_BFLOAT16, narrow, 2, COUNT(rows));
	for (size_t i = 0; i < COUNT(rows); i++)
		assert_true(back[i] == bfloat16_to_float(narrow[2 + i]));
	assert_int_equal(activation_size(ROSA_FLOAT32), 4);
	assert_int_equal(activation_size(ROSA_BFLOAT16), 2);
}
