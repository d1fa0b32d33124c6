/*
 * Products in whole numbers (backend/fixed.h): every instruction set, one step and many, against the definition, to the
 * bit. The definition is written out here once more, from the blocks as format.h describes them, with sums of 64 bits.
 */
#include "backend/fixed.h"
#include "backend/multiply.h"

#include "base/draw.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

static const enum format formats[] = {FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K};

/* -------------------------------------------------------------------------------------------------- the definition --
 */

struct definition {
	float d, m[8]; /* -m */
	int v[256];
};

static struct definition define(enum format format, const uint8_t *block)
{
	struct definition def = {format_half(block + (format == FORMAT_Q6_K ? 208 : 0)), {0}, {0}};

	for (unsigned k = 0; k < 256; k++) {
		const unsigned j = k / 32, i = k % 32;

		if (format == FORMAT_Q6_K) {
			const unsigned low = block[j / 4 * 64 + j % 2 * 32 + i] >> (j % 4 >= 2 ? 4 : 0) & 15;
			const unsigned high = block[128 + j / 4 * 32 + i] >> 2 * (j % 4) & 3;

			def.v[k] = (int8_t)block[192 + k / 16] * ((int)(low | high << 4) - 32);
		} else {
			const unsigned fours = format == FORMAT_Q4_K ? 16 : 48;
			unsigned q = block[fours + j / 2 * 32 + i] >> (j % 2 ? 4 : 0) & 15;

			if (format == FORMAT_Q5_K)
				q |= (unsigned)(block[16 + i] >> j & 1) << 4;
			def.v[k] = (int)(q4_k_bits(block, j).s * q);
			def.m[j] = -(format_half(block + 2) * (float)q4_k_bits(block, j).m);
		}
	}
	return def;
}

static float scale_of(const float *x, int *n)
{
	float most = 0;
	bool number = true;

	for (int k = 0; k < 256; k++) {
		number = number && isfinite(x[k]);
		most = fmaxf(most, fabsf(x[k]));
	}
	for (int k = 0; k < 256; k++)
		n[k] = number && most >= 0x1p-100f ? (int)nearbyintf(x[k] * (32767 / most)) : 0;
	return !number ? NAN : most < 0x1p-100f ? 0 : most / 32767;
}

static float define_product(enum format format, const uint8_t *row, const float *x, size_t columns)
{
	float y[16] = {0}, z[8] = {0};

	for (size_t b = 0; b < columns / 256; b++) {
		const struct definition def = define(format, row + b * format_info[format].bytes);
		int n[256];
		const float scale = scale_of(x + b * 256, n);

		for (int l = 0; l < 16; l++) {
			int64_t sum = 0;

			for (int k = 2 * l; k < 256; k += 32)
				sum += (int64_t)def.v[k] * n[k] + (int64_t)def.v[k + 1] * n[k + 1];
			assert_true(sum >= INT32_MIN && sum <= INT32_MAX);
			y[l] += (float)sum * (def.d * scale);
		}
		for (int g = 0; g < 8 && format != FORMAT_Q6_K; g++) {
			int sum = 0;

			for (int i = 0; i < 32; i++)
				sum += n[g * 32 + i];
			z[g] += def.m[g] * (scale * (float)sum);
		}
	}
	for (int g = 0; g < 8 && format != FORMAT_Q6_K; g++)
		y[g] += z[g];
	for (int half = 8; half; half /= 2)
		for (int l = 0; l < half; l++)
			y[l] += y[l + half];
	return y[0];
}

/* ---------------------------------------------------------------------------------------------------------- trials --
 */

static void put_half(uint8_t *at, unsigned half)
{
	at[0] = (uint8_t)half;
	at[1] = (uint8_t)(half >> 8);
}

/* Random bits, or with `extreme` those of the greatest whole numbers; scales of either sign near 0.06. */
static uint8_t *new_weight(enum format format, size_t blocks, uint64_t seed, bool extreme)
{
	const size_t bytes = format_info[format].bytes;
	uint8_t *data = test_alloc(blocks * bytes);

	for (size_t b = 0; b < blocks; b++) {
		uint8_t *block = data + b * bytes;

		for (size_t i = 0; i < bytes; i++)
			block[i] = extreme ? 0xff : (uint8_t)draw(seed, b, i);
		if (extreme && format == FORMAT_Q6_K) { /* -32 times -128 */
			memset(block, 0, 192);
			memset(block + 192, 0x80, 16);
		}
		put_half(block + (format == FORMAT_Q6_K ? 208 : 0), 0x2a00 | (draw(seed, b, 1000) & 0x83ff));
		if (format != FORMAT_Q6_K)
			put_half(block + 2, 0x2a00 | (draw(seed, b, 1001) & 0x83ff));
	}
	return data;
}

static float *new_x(size_t count, uint64_t seed)
{
	float *x = test_alloc(count * sizeof(*x));

	for (size_t i = 0; i < count; i++)
		x[i] = ((float)draw(seed, 1, i) * 0x1p-31f - 1) * (i % 97 ? 1 : 40); /* a few that stand out */
	return x;
}

/* All rows and steps, on every instruction set, `at_once` steps a call. */
static void expect_defined(const char *what, enum format format, const uint8_t *data, size_t rows, size_t columns,
			   size_t steps, const float *x)
{
	static const size_t sizes[] = {1, 2, 3, 7, 64};
	const size_t bytes = format_row_bytes(format, columns);
	const struct matrix weight = {format, rows, columns, data};
	float *want = test_alloc(steps * rows * sizeof(*want)), *y = test_alloc(steps * rows * sizeof(*y));
	struct multiply_scratch *scratch;

	must(multiply_scratch_new(1, &scratch, &err));
	for (size_t t = 0; t < steps; t++)
		for (size_t r = 0; r < rows; r++)
			want[t * rows + r] = define_product(format, data + r * bytes, x + t * columns, columns);
	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!multiply_isa_available(isa))
			continue;
		for (size_t i = 0; i < COUNT(sizes); i++) {
			memset(y, 0xff, steps * rows * sizeof(*y));
			for (size_t t = 0; t < steps; t += sizes[i])
				multiply_on(isa, NULL, scratch, steps - t < sizes[i] ? steps - t : sizes[i],
					    x + t * columns, 1, &(struct product){&weight, y + t * rows, false});
			for (size_t k = 0; k < steps * rows; k++)
				if (isnan(want[k]) ? !isnan(y[k]) : memcmp(&y[k], &want[k], sizeof(*y)) != 0)
					fail_msg("%s, %s, %s, %zu columns, %zu steps at once: step %zu, row %zu is %a "
						 "instead of %a",
						 what, rosa_isa_name(isa), format_info[format].name, columns, sizes[i],
						 k / rows, k % rows, (double)y[k], (double)want[k]);
		}
	}
	multiply_scratch_free(scratch);
}

TEST(test_definition)
{
	static const size_t blocks[] = {1, 2, 3, 8};

	for (size_t i = 0; i < COUNT(formats) * COUNT(blocks); i++) {
		const enum format format = formats[i % COUNT(formats)];
		const size_t columns = blocks[i / COUNT(formats)] * 256, rows = 1 + i % 9, steps = 15;

		expect_defined("random", format, new_weight(format, rows * columns / 256, i, false), rows, columns,
			       steps, new_x(steps * columns, i));
	}
}

/* The greatest whole sums there can be, of either sign, do not overflow. */
TEST(test_extremes)
{
	enum { ROWS = 5, COLUMNS = 512, STEPS = 8 };

	for (size_t i = 0; i < COUNT(formats); i++) {
		const uint8_t *data = new_weight(formats[i], ROWS * COLUMNS / 256, i, true);
		float *x = test_alloc((size_t)STEPS * COLUMNS * sizeof(*x));

		for (size_t k = 0; k < (size_t)STEPS * COLUMNS; k++)
			x[k] = k / COLUMNS % 2 ? -3.0f : 0.7f;
		expect_defined("extremes", formats[i], data, ROWS, COLUMNS, STEPS, x);
	}
}

/* A block of zeros, of the smallest numbers there are, and of some that are not numbers. */
TEST(test_unusual_x)
{
	enum { ROWS = 4, COLUMNS = 768, STEPS = 8 };
	static const float odd[STEPS] = {0, -0.0f, 0x1p-149f, 0x1p-101f, 0x1p99f, -0x1p99f, INFINITY, NAN};

	for (size_t i = 0; i < COUNT(formats); i++) {
		float *x = new_x((size_t)STEPS * COLUMNS, i), *y = test_alloc(STEPS * ROWS * sizeof(*y));
		uint8_t *data = new_weight(formats[i], ROWS * COLUMNS / 256, i, false);
		const struct matrix weight = {formats[i], ROWS, COLUMNS, data};
		struct multiply_scratch *scratch;

		for (size_t t = 0; t < STEPS; t++)
			for (size_t k = 0; k < 256; k++)
				x[t * COLUMNS + 256 + k] = isfinite(odd[t]) || k == 77 ? odd[t] : 1;
		expect_defined("unusual", formats[i], data, ROWS, COLUMNS, STEPS, x);
		must(multiply_scratch_new(1, &scratch, &err));
		multiply(NULL, scratch, STEPS, x, 1, &(struct product){&weight, y, false});
		for (size_t t = 0; t < STEPS; t++)
			for (size_t r = 0; r < ROWS; r++)
				assert_int_equal(isnan(y[t * ROWS + r]) != 0, t >= 6);
		multiply_scratch_free(scratch);
	}
}
