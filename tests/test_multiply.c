/*
 * Products of every format on every instruction set that is here.
 *
 * Two things are asked. The numbers: against dot products in double precision of the weights as format_widen gives
 * them. And the bits: y[t][r] must be the same whatever else is in the call, so every result is compared with the one
 * that a call with this step alone gave.
 */
#include "backend/multiply.h"

#include "base/draw.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define MAX_STEPS 40

/* A float between -1 and 1 for a place. */
static float draw_number(uint64_t seed, uint64_t place)
{
	return (float)draw(seed, 1, place) * 0x1p-31f - 1;
}

static void put_half(uint8_t *at, unsigned half)
{
	at[0] = (uint8_t)half;
	at[1] = (uint8_t)(half >> 8);
}

/* Random bits, with scales of either sign near 0.06. */
static void fill_block(enum format format, uint8_t *block, uint64_t seed, uint64_t place)
{
	static const size_t scales[FORMAT_COUNT][2] = {[FORMAT_Q6_K] = {208, 208},
						       [FORMAT_Q4_1] = {0, 2},
						       [FORMAT_Q4_K] = {0, 2},
						       [FORMAT_Q5_1] = {0, 2},
						       [FORMAT_Q5_K] = {0, 2}};
	const float number = draw_number(seed, place);
	uint32_t bits;

	memcpy(&bits, &number, sizeof(bits));
	if (format == FORMAT_F32) {
		memcpy(block, &number, sizeof(number));
	} else if (format == FORMAT_BF16) {
		put_half(block, bits >> 16);
	} else {
		for (size_t i = 0; i < format_info[format].bytes; i++)
			block[i] = (uint8_t)draw(seed, place, i);
		for (int i = 0; i < 2; i++)
			put_half(block + scales[format][i], 0x2a00 | (draw(seed, place, 1000 + (uint64_t)i) & 0x83ff));
	}
}

struct trial_weight {
	struct matrix matrix;
	uint8_t *data;
	float *wide; /* [rows][columns] */
};

/* One byte off every alignment: a file may put a weight anywhere. */
static void make_weight(struct trial_weight *weight, enum format format, size_t rows, size_t columns, uint64_t seed)
{
	const size_t bytes = format_row_bytes(format, columns), blocks = bytes / format_info[format].bytes * rows;

	assert_true(bytes > 0);
	weight->data = test_alloc(rows * bytes + 1);
	weight->wide = test_alloc(rows * columns * sizeof(float));
	for (size_t i = 0; i < blocks; i++)
		fill_block(format, weight->data + 1 + i * format_info[format].bytes, seed, i);
	for (size_t r = 0; r < rows; r++)
		format_widen(format, weight->data + 1 + r * bytes, columns, weight->wide + r * columns);
	weight->matrix = (struct matrix){format, rows, columns, weight->data + 1};
}

static float *new_numbers(size_t count, uint64_t seed)
{
	float *x = test_alloc(count * sizeof(*x));

	for (size_t i = 0; i < count; i++)
		x[i] = draw_number(seed, i);
	return x;
}

static struct multiply_scratch *new_scratch(unsigned workers)
{
	struct multiply_scratch *scratch;

	must(multiply_scratch_new(workers, &scratch, &err));
	return scratch;
}

static void expect_near(rosa_isa isa, const struct trial_weight *weight, size_t steps, const float *x, const float *y)
{
	const size_t rows = weight->matrix.rows, columns = weight->matrix.columns;

	for (size_t t = 0; t < steps; t++) {
		for (size_t r = 0; r < rows; r++) {
			double sum = 0, size = 0;

			for (size_t k = 0; k < columns; k++) {
				const double one = (double)weight->wide[r * columns + k] * (double)x[t * columns + k];

				sum += one;
				size += fabs(one);
			}
			/* a lane sums columns / 16 products, each rounding by half a unit in the last place; where x is
			 * rounded to 16 bits, |x| <= 1 is off by half of 1 / 32767 */
			size *= ((double)columns / 16 + 8) * 0x1p-24;
			for (size_t k = 0; k < columns && format_is_fixed(weight->matrix.format); k++)
				size += fabs((double)weight->wide[r * columns + k]) / 65533;
			if (!(fabs((double)y[t * rows + r] - sum) <= size + 0x1p-126))
				fail_msg("%s, %s, %zu columns, step %zu of %zu, row %zu: %.9g instead of %.9g",
					 rosa_isa_name(isa), format_info[weight->matrix.format].name, columns, t, steps,
					 r, (double)y[t * rows + r], sum);
		}
	}
}

static void expect_bits(rosa_isa isa, const struct matrix *weight, const char *how, size_t steps, const float *got,
			const float *want)
{
	for (size_t i = 0; i < steps * weight->rows; i++)
		if (memcmp(&got[i], &want[i], sizeof(float)))
			fail_msg("%s, %s, %zu columns, %zu steps, %s: step %zu, row %zu is %a instead of %a",
				 rosa_isa_name(isa), format_info[weight->format].name, weight->columns, steps, how,
				 i / weight->rows, i % weight->rows, (double)got[i], (double)want[i]);
}

/* One step a call, each time. */
static void multiply_singly(rosa_isa isa, struct multiply_scratch *scratch, const struct matrix *weight, size_t steps,
			    const float *x, float *y)
{
	for (size_t t = 0; t < steps; t++)
		multiply_on(isa, NULL, scratch, 1, x + t * weight->columns, 1,
			    &(struct product){weight, y + t * weight->rows, false});
}

static void try_shape(rosa_isa isa, enum format format, size_t rows, size_t columns)
{
	struct multiply_scratch *scratch = new_scratch(1);
	float *x = new_numbers(MAX_STEPS * columns, 5), *single = new_numbers(MAX_STEPS * rows, 6),
	      *y = new_numbers(MAX_STEPS * rows, 7);
	struct trial_weight weight;

	make_weight(&weight, format, rows, columns, rows + columns);
	multiply_singly(isa, scratch, &weight.matrix, MAX_STEPS, x, single);
	expect_near(isa, &weight, MAX_STEPS, x, single);
	for (size_t steps = 1; steps <= MAX_STEPS; steps++) {
		const struct product product = {&weight.matrix, y, false};

		memset(y, 0xff, MAX_STEPS * rows * sizeof(*y));
		multiply_on(isa, NULL, scratch, steps, x, 1, &product);
		expect_bits(isa, &weight.matrix, "one call", steps, y, single);
	}
	multiply_scratch_free(scratch);
}

TEST(test_shapes)
{
	static const size_t plain[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 100, 257}, counts[] = {1, 2, 5, 8};

	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!multiply_isa_available(isa))
			continue;
		for (enum format format = 0; format < FORMAT_COUNT; format++) {
			const size_t block = format_info[format].numbers;

			if (block == 1)
				for (size_t i = 0; i < COUNT(plain); i++)
					try_shape(isa, format, 1 + i % 7, plain[i]);
			else
				for (size_t i = 0; i < COUNT(counts); i++)
					try_shape(isa, format, 3 + i, counts[i] * block);
		}
	}
}

/* Rows that are cut into blocks, and rows of which not even a few fit into the scratch. */
TEST(test_long_rows)
{
	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!multiply_isa_available(isa))
			continue;
		try_shape(isa, FORMAT_F32, 5, 2999);
		try_shape(isa, FORMAT_Q4_1, 6, 5120);
		try_shape(isa, FORMAT_BF16, 2, 30001);
		try_shape(isa, FORMAT_Q6_K, 3, 25600);
	}
}

/* Several weights of the same x, on several threads. */
TEST(test_threads)
{
	static const enum format formats[] = {FORMAT_Q4_1, FORMAT_F32, FORMAT_Q8_0, FORMAT_Q6_K};
	static const size_t rows[] = {131, 64, 7, 300}, columns = 512, steps = 29;
	const rosa_allocator plain = {NULL, NULL};

	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		float *x = new_numbers(steps * columns, 5), *y[COUNT(rows)], *single[COUNT(rows)];
		struct multiply_scratch *scratch = new_scratch(3);
		struct trial_weight weights[COUNT(rows)];
		struct product products[COUNT(rows)];

		if (!multiply_isa_available(isa)) {
			multiply_scratch_free(scratch);
			continue;
		}
		for (size_t i = 0; i < COUNT(rows); i++) {
			make_weight(&weights[i], formats[i], rows[i], columns, i);
			single[i] = new_numbers(steps * rows[i], 6);
			y[i] = new_numbers(steps * rows[i], 6);
			multiply_singly(isa, scratch, &weights[i].matrix, steps, x, single[i]);
			products[i] = (struct product){&weights[i].matrix, y[i], false};
		}
		for (unsigned threads = 1; threads <= 3; threads++) {
			struct pool *pool = pool_new(&plain, threads);

			assert_non_null(pool);
			for (size_t some = 1; some <= steps; some += 7) {
				for (size_t i = 0; i < COUNT(rows); i++)
					memset(y[i], 0xff, steps * rows[i] * sizeof(float));
				multiply_on(isa, pool, scratch, some, x, COUNT(rows), products);
				for (size_t i = 0; i < COUNT(rows); i++)
					expect_bits(isa, &weights[i].matrix, "threads", some, y[i], single[i]);
			}
			pool_free(pool, &plain);
		}
		multiply_scratch_free(scratch);
	}
}

/* The sum is added to what is there, after it is whole. */
TEST(test_add)
{
	static const size_t rows = 13, columns = 288, steps = 11;
	struct multiply_scratch *scratch = new_scratch(1);
	float *x = new_numbers(steps * columns, 5), *y = new_numbers(steps * rows, 6),
	      *sum = new_numbers(steps * rows, 6), *product = new_numbers(steps * rows, 7);
	struct trial_weight weight;

	make_weight(&weight, FORMAT_Q4_0, rows, columns, 3);
	for (size_t some = 1; some <= steps; some += 10) {
		const struct product put = {&weight.matrix, product, false}, add = {&weight.matrix, y, true};

		multiply(NULL, scratch, some, x, 1, &put);
		multiply(NULL, scratch, some, x, 1, &add);
		for (size_t i = 0; i < some * rows; i++)
			sum[i] += product[i];
		expect_bits(multiply_isa_best(), &weight.matrix, "add", steps, y, sum);
	}
	/* nothing to do */
	multiply(NULL, scratch, 0, x, 1, &(struct product){&weight.matrix, y, true});
	multiply(NULL, scratch, steps, x, 0, NULL);
	expect_bits(multiply_isa_best(), &weight.matrix, "nothing", steps, y, sum);
	multiply_scratch_free(scratch);
}

/* Both sets of vector instructions give the same bits, and in whole numbers plain code too (test_fixed.c). */
TEST(test_instruction_sets)
{
	struct multiply_scratch *scratch;

	if (!multiply_isa_available(ROSA_ISA_AVX2) || !multiply_isa_available(ROSA_ISA_AVX512)) {
		print_message("skipped: this processor has not both AVX2 and AVX-512\n");
		skip();
	}
	scratch = new_scratch(1);
	for (enum format format = 0; format < FORMAT_COUNT; format++) {
		const size_t rows = 9, columns = format_info[format].numbers > 1 ? 1536 : 1531, steps = 8;
		float *x = new_numbers(steps * columns, 5),
		      *y[2] = {new_numbers(steps * rows, 6), new_numbers(steps * rows, 7)};
		struct trial_weight weight;

		make_weight(&weight, format, rows, columns, 3);
		for (size_t some = 1; some <= steps; some += 7) {
			for (int i = 0; i < 2; i++)
				multiply_on(i ? ROSA_ISA_AVX512 : ROSA_ISA_AVX2, NULL, scratch, some, x, 1,
					    &(struct product){&weight.matrix, y[i], false});
			expect_bits(ROSA_ISA_AVX512, &weight.matrix, "against AVX2", some, y[1], y[0]);
		}
	}
	multiply_scratch_free(scratch);
}

/* Each number of a weight by itself, picked out by an x that is 1 there and 0 elsewhere: products use what format_widen
 * says, to the bit; those in whole numbers what test_fixed.c says. */
TEST(test_numbers)
{
	static const size_t rows = 4, columns = 256;
	struct multiply_scratch *scratch = new_scratch(1);

	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++) {
		if (!multiply_isa_available(isa))
			continue;
		for (enum format format = 0; format < FORMAT_COUNT; format++) {
			float *x = test_zeros(columns * columns, sizeof(*x)), *y = new_numbers(columns * rows, 1),
			      *want = new_numbers(columns * rows, 1);
			struct trial_weight weight;

			if (format_is_fixed(format))
				continue;
			make_weight(&weight, format, rows, columns, 11);
			for (size_t k = 0; k < columns; k++) {
				x[k * columns + k] = 1;
				/* a sum begins with 0, and -0 is lost in it */
				for (size_t r = 0; r < rows; r++)
					want[k * rows + r] = weight.wide[r * columns + k] + 0.0f;
			}
			multiply_on(isa, NULL, scratch, columns, x, 1, &(struct product){&weight.matrix, y, false});
			expect_bits(isa, &weight.matrix, "numbers, many steps", columns, y, want);
			multiply_singly(isa, scratch, &weight.matrix, columns, x, y);
			expect_bits(isa, &weight.matrix, "numbers, single steps", columns, y, want);
		}
	}
	multiply_scratch_free(scratch);
}
