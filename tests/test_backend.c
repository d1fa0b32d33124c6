/*
 * Every operation of a backend's table but attention (test_attend.c), on every backend, against plain formulas in
 * double precision.
 */
#include "backend/backend.h"
#include "backend/cpu_backend.h"
#include "backend/multiply.h"

#include "support_backend.h"
#include "support_subjects.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

/* ------------------------------------------------------------------------------------------------------- numbers -- */

/* What the tests of simple operations have in common: `call` runs one on rows `row` .. `row` + rows-1 of inputs in the
 * backend's memory, `inputs` of them, and leaves the result in y. It is run on all rows at once, which must be near
 * what is wanted and equal within the family, and row by row, which must be equal. */
#define MOST_INPUTS 4
struct rows_trial {
	const char *what;
	size_t rows, width;
	size_t inputs;
	struct {
		const float *host;
		size_t numbers; /* of a row; 0: every row uses the same */
		size_t all;     /* where numbers is 0 */
	} input[MOST_INPUTS];
	void (*call)(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y);
	const void *extra;
	double *want;
	double tolerance;
};

static float *run_rows(struct subject *s, const struct rows_trial *trial, size_t at_once)
{
	float *inputs[MOST_INPUTS], *y = put_floats(s, NULL, trial->rows * trial->width);

	for (size_t i = 0; i < trial->inputs; i++)
		inputs[i] =
		    put_floats(s, trial->input[i].host,
			       trial->input[i].numbers ? trial->input[i].numbers * trial->rows : trial->input[i].all);
	for (size_t row = 0; row < trial->rows; row += at_once) {
		float *now[MOST_INPUTS];

		for (size_t i = 0; i < trial->inputs; i++)
			now[i] = inputs[i] + row * trial->input[i].numbers;
		trial->call(s, trial, row, trial->rows - row < at_once ? trial->rows - row : at_once, now,
			    y + row * trial->width);
	}
	give_floats(s, trial->inputs, inputs);
	return get_floats(s, y, trial->rows * trial->width);
}

static void check_rows(const struct rows_trial *trial)
{
	const size_t pieces[] = {trial->rows, 1, 7}, count = trial->rows * trial->width;
	struct firsts firsts = {{NULL}};

	EACH_SUBJECT(s)
	{
		for (size_t i = 0; i < COUNT(pieces); i++) {
			float *y = run_rows(s, trial, pieces[i]);

			expect_close(s, trial->what, count, y, trial->want, trial->tolerance);
			expect_family(&firsts, s, trial->what, i ? "some rows" : "all rows", count, y);
		}
	}
}

/* Numbers of a row, and rows: around vectors, and enough to be shared out. */
static const struct {
	size_t rows, width;
} shapes[] = {{1, 1}, {3, 2}, {5, 16}, {4, 17}, {9, 96}, {2, 576}, {100, 576}, {20, 2049}};

static void call_norm(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		      float *y)
{
	s->ops->rms_norm(s->backend, rows, trial->width, inputs[0], inputs[1], 1e-5f, y);
}

TEST(test_rms_norm)
{
	uint64_t turn = 3;

	for (size_t i = 0; i < COUNT(shapes); i++) {
		const size_t rows = shapes[i].rows, width = shapes[i].width;
		float *x = random_floats(rows * width, i % 3 ? 2 : 1e-3f, &turn),
		      *weight = random_floats(width, 3, &turn);
		struct rows_trial trial = {.what = "rms_norm",
					   .rows = rows,
					   .width = width,
					   .inputs = 2,
					   .input = {{x, width, 0}, {weight, 0, width}},
					   .call = call_norm,
					   .tolerance = 5e-7};

		trial.want = test_alloc(rows * width * sizeof(*trial.want));
		oracle_rms_norm(rows, width, x, weight, 1e-5f, trial.want);
		check_rows(&trial);
	}
	report("rms_norm");
}

static void call_swiglu(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			float *const *inputs, float *y)
{
	s->ops->swiglu(s->backend, rows * trial->width, inputs[0], inputs[1], y);
}

static void copy_floats(struct subject *s, size_t count, const float *x, float *y)
{
	float *copy = test_alloc(count * sizeof(*copy));

	s->ops->get(s->backend, copy, x, count * sizeof(*copy));
	s->ops->put(s->backend, y, copy, count * sizeof(*copy));
}

static void call_add(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y)
{
	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->add(s->backend, rows * trial->width, inputs[1], y);
}

static void call_add_bias(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			  float *const *inputs, float *y)
{
	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->add_bias(s->backend, rows, trial->width, inputs[2], y);
}

static void call_mix(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows, float *const *inputs,
		     float *y)
{
	s->ops->mix(s->backend, rows, trial->width, inputs[2], inputs[0], inputs[1], y);
}

/* y may be an input: that result must be the same. */
static void expect_in_place(const struct rows_trial *trial)
{
	EACH_SUBJECT(s)
	{
		float *want = run_rows(s, trial, trial->rows);

		for (size_t which = 0; which < 2; which++) {
			float *inputs[MOST_INPUTS], *got;

			for (size_t i = 0; i < trial->inputs; i++)
				inputs[i] = put_floats(s, trial->input[i].host,
						       trial->input[i].numbers ? trial->input[i].numbers * trial->rows
									       : trial->input[i].all);
			trial->call(s, trial, 0, trial->rows, inputs, inputs[which]);
			for (size_t i = 0; i < trial->inputs; i++)
				if (i != which)
					s->ops->give(s->backend, inputs[i]);
			got = get_floats(s, inputs[which], trial->rows * trial->width);
			expect_bits(s, trial->what, "in place", trial->rows * trial->width, got, want);
		}
	}
}

TEST(test_pairs)
{
	uint64_t turn = 4;

	for (size_t i = 0; i < COUNT(shapes); i++) {
		const size_t rows = shapes[i].rows, width = shapes[i].width, count = rows * width;
		float *a = random_floats(count, 12, &turn), *b = random_floats(count, 2, &turn),
		      *gate = random_floats(width, 9, &turn);
		struct rows_trial trial = {.what = "swiglu",
					   .rows = rows,
					   .width = width,
					   .inputs = 2,
					   .input = {{a, width, 0}, {b, width, 0}, {gate, 0, width}},
					   .call = call_swiglu,
					   .tolerance = 2e-6};

		a[0] = -100; /* where the power ends */
		trial.want = test_alloc(count * sizeof(*trial.want));
		oracle_swiglu(count, a, b, trial.want);
		check_rows(&trial);
		expect_in_place(&trial);
		trial.what = "add";
		trial.call = call_add;
		for (size_t j = 0; j < count; j++)
			trial.want[j] = (double)a[j] + (double)b[j];
		check_rows(&trial);
		trial.what = "add_bias";
		trial.inputs = 3;
		trial.call = call_add_bias;
		for (size_t j = 0; j < count; j++)
			trial.want[j] = (double)a[j] + (double)gate[j % width];
		check_rows(&trial);
		trial.what = "mix";
		trial.call = call_mix;
		oracle_mix(rows, width, gate, a, b, trial.want);
		check_rows(&trial);
		expect_in_place(&trial);
	}
	report("swiglu, add, add_bias, mix");
}

struct rotate_extra {
	struct rotary rotary;
	size_t heads, first;
};

static void call_rotate(struct subject *s, const struct rows_trial *trial, size_t row, size_t rows,
			float *const *inputs, float *y)
{
	const struct rotate_extra *extra = trial->extra;

	copy_floats(s, rows * trial->width, inputs[0], y);
	s->ops->rotate(s->backend, &extra->rotary, rows, extra->heads, extra->first + row, y);
}

TEST(test_rotate)
{
	static const size_t sizes[] = {2, 4, 18, 64, 128}, firsts[] = {0, 1000, 123456};
	uint64_t turn = 5;

	for (size_t i = 0; i < COUNT(sizes) * COUNT(firsts) * 2; i++) {
		const size_t size = sizes[i / 6], heads = 1 + i % 5, rows = size == 128 ? 300 : 20,
			     width = heads * size;
		float *x = random_floats(rows * width, 1, &turn),
		      *frequencies = test_alloc(size / 2 * sizeof(*frequencies));
		struct rotate_extra extra = {
		    {size, i % 2 ? ROTARY_HALVES : ROTARY_NEIGHBOURS, frequencies}, heads, firsts[i / 2 % 3]};
		struct rows_trial trial = {.what = "rotate",
					   .rows = rows,
					   .width = width,
					   .inputs = 1,
					   .input = {{x, width, 0}},
					   .call = call_rotate,
					   .extra = &extra,
					   .tolerance = 4e-7};

		for (size_t j = 0; j < size / 2; j++)
			frequencies[j] = powf(10000, -(float)(2 * j) / (float)size);
		trial.want = test_alloc(rows * width * sizeof(*trial.want));
		for (size_t j = 0; j < rows * width; j++)
			trial.want[j] = (double)x[j];
		oracle_rotate(&extra.rotary, rows, heads, extra.first, trial.want);
		check_rows(&trial);
	}
	report("rotate");
}

/* More positions at once than any table of angles holds. */
TEST(test_rotate_many)
{
	enum { ROWS = 9000, SIZE = 2 };
	const float frequency = 0.37f;
	const struct rotary rotary = {SIZE, ROTARY_HALVES, &frequency};
	double *want = test_alloc(ROWS * SIZE * sizeof(*want));
	uint64_t turn = 6;
	float *x = random_floats((size_t)ROWS * SIZE, 1, &turn);

	for (size_t i = 0; i < ROWS * SIZE; i++)
		want[i] = (double)x[i];
	oracle_rotate(&rotary, ROWS, 1, 77, want);
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, (size_t)ROWS * SIZE), *got;

		s->ops->rotate(s->backend, &rotary, ROWS, 1, 77, there);
		got = get_floats(s, there, (size_t)ROWS * SIZE);
		expect_close(s, "rotate", (size_t)ROWS * SIZE, got, want, 4e-7);
	}
}

/* ------------------------------------------------------------------------------------------------------ products -- */

static void narrow(enum format format, size_t count, const float *from, void *to)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &from[i], sizeof(bits));
		bits >>= format == FORMAT_BF16 ? 16 : 0;
		memcpy((char *)to + i * format_info[format].bytes, &bits, format_info[format].bytes);
	}
}

static void check_multiply(enum format format, size_t rows, size_t columns, size_t steps)
{
	uint64_t turn = rows * 1000 + columns;
	float *x = random_floats(steps * columns, 1, &turn), *numbers = random_floats(rows * columns, 1, &turn),
	      *base = random_floats(steps * rows, 1, &turn);
	void *data = test_alloc(rows * columns * sizeof(float));
	double *want[2];
	struct firsts firsts[2] = {{{NULL}}, {{NULL}}};

	narrow(format, rows * columns, numbers, data);
	for (int add = 0; add < 2; add++) {
		want[add] = test_alloc(steps * rows * sizeof(**want));
		for (size_t i = 0; i < steps * rows; i++)
			want[add][i] = add ? (double)base[i] : 0;
		oracle_multiply(format, data, rows, columns, steps, x, want[add]);
	}
	EACH_SUBJECT(s)
	{
		struct matrix weight;
		float *there = put_floats(s, x, steps * columns), *y[2];

		must(s->ops->matrix_new(s->backend, format, rows, columns, data, &weight, &err));
		for (int add = 0; add < 2; add++)
			y[add] = put_floats(s, base, steps * rows);
		s->ops->multiply(s->backend, steps, there, 2,
				 (const struct product[]){{&weight, y[0], false}, {&weight, y[1], true}});
		for (int add = 0; add < 2; add++) {
			float *got = get_floats(s, y[add], steps * rows);

			expect_close(s, "multiply", steps * rows, got, want[add], 1e-5);
			expect_family(&firsts[add], s, "multiply", "again", steps * rows, got);
		}
		s->ops->matrix_free(s->backend, &weight);
		s->ops->matrix_free(s->backend, &weight);
		s->ops->give(s->backend, there);
	}
}

TEST(test_multiply)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		const enum format format = bf16 ? FORMAT_BF16 : FORMAT_F32;

		check_multiply(format, 1, 1, 1);
		check_multiply(format, 37, 50, 3);
		check_multiply(format, 300, 192, 1);
		check_multiply(format, 200, 576, 40);
	}
	report("multiply");
}

TEST(test_embed)
{
	enum { ROWS = 50, WIDTH = 96, STEPS = 400 };
	uint64_t turn = 8;
	float *table = random_floats((size_t)ROWS * WIDTH, 1, &turn), *want = test_alloc(sizeof(float) * STEPS * WIDTH);
	uint32_t tokens[STEPS];

	for (size_t t = 0; t < STEPS; t++) {
		tokens[t] = t < 2 ? (uint32_t)t * (ROWS - 1) : (uint32_t)test_random(&turn, ROWS);
		memcpy(want + t * WIDTH, table + tokens[t] * WIDTH, WIDTH * sizeof(*want));
	}
	EACH_SUBJECT(s)
	{
		float *y = put_floats(s, NULL, (size_t)STEPS * WIDTH), *got;
		struct matrix weight;

		must(s->ops->matrix_new(s->backend, FORMAT_F32, ROWS, WIDTH, table, &weight, &err));
		s->ops->embed(s->backend, &weight, STEPS, tokens, y);
		got = get_floats(s, y, (size_t)STEPS * WIDTH);
		expect_bits(s, "embed", "a row", (size_t)STEPS * WIDTH, got, want);
		s->ops->matrix_free(s->backend, &weight);
		must_refuse(s->ops->matrix_new(s->backend, FORMAT_Q8_0, 2, 33, table, &weight, &err), ROSA_EINVAL);
		must_refuse(
		    s->ops->matrix_new(s->backend, FORMAT_Q6_K, 1, MULTIPLY_MOST_FIXED + 256, table, &weight, &err),
		    ROSA_EINVAL);
	}
}

/* ---------------------------------------------------------------------------------------------------------- ROSA -- */

static void check_symbols(size_t steps, size_t channels, int bits)
{
	const size_t routes = channels / (size_t)bits, stride = steps + 3, count = steps * channels;
	uint64_t turn = count + (uint64_t)bits;
	float *x = random_floats(count, 1, &turn);
	uint16_t *symbols = test_alloc(routes * stride * sizeof(*symbols));

	x[0] = 0;
	x[count - 1] = NAN;
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, count);

		memset(symbols, 0xee, routes * stride * sizeof(*symbols));
		s->ops->symbols(s->backend, steps, channels, bits, there, symbols, stride);
		for (size_t t = 0; t < stride; t++) {
			for (size_t r = 0; r < routes; r++) {
				unsigned symbol = t < steps ? 0 : 0xeeee;

				for (int j = 0; t < steps && j < bits; j++)
					symbol |= (unsigned)(x[t * channels + r * (size_t)bits + (size_t)j] > 0) << j;
				if (symbols[r * stride + t] != symbol)
					fail_msg("%s: symbol of route %zu, step %zu, is %u, want %u", s->maker->name, r,
						 t, symbols[r * stride + t], symbol);
			}
		}
		give_floats(s, 1, &there);
	}
}

TEST(test_symbols)
{
	check_symbols(1, 4, 4);
	check_symbols(5, 48, 16);
	check_symbols(33, 30, 3);
	check_symbols(130, 576, 16);
}

/* What a layer reads, by the equation. */
static void oracle_reads(size_t steps, size_t channels, const struct reads *reads, const float *e0, const float *e1,
			 double *y)
{
	const size_t words = (channels + 63) / 64;
	size_t row = 0;

	memset(y, 0, steps * channels * sizeof(*y));
	for (size_t i = 0; i < reads->links; row += reads->routes[i++]) {
		for (size_t t = 0; t < steps; t++) {
			for (size_t c = 0; c < channels; c++) {
				const size_t route = c / (channels / reads->routes[i]);
				const uint64_t word = reads->bits[(i * steps + t) * words + c / 64];
				const float end = (word >> c % 64 & 1 ? e1 : e0)[i * channels + c];

				y[t * channels + c] += (double)(reads->weight[(row + route) * steps + t] * end);
			}
		}
	}
}

/* Random reads; `whole`: their weights are 1, so that the sum of one link is exact. */
static void check_reads(size_t steps, size_t channels, size_t links, const size_t *routes, bool whole)
{
	const size_t count = steps * channels, words = bit_words(channels);
	uint64_t turn = count + links, *bits = test_alloc(links * steps * words * sizeof(*bits));
	double *want = test_alloc(count * sizeof(*want));
	float *e[2], *weight;
	size_t rows = 0;

	for (size_t i = 0; i < links; i++)
		rows += routes[i];
	for (int i = 0; i < 2; i++)
		e[i] = random_floats(links * channels, 1, &turn);
	weight = random_floats(rows * steps, 1, &turn);
	for (size_t i = 0; i < rows * steps; i++)
		weight[i] = test_random(&turn, 3) ? whole ? 1 : weight[i] : 0;
	for (size_t i = 0; i < links * steps * words; i++)
		bits[i] = test_random(&turn, UINT64_MAX);
	EACH_SUBJECT(s)
	{
		const struct reads reads = {links, routes, bits, weight};
		float *y = put_floats(s, NULL, count), *got;
		float *ends[2] = {put_floats(s, e[0], links * channels), put_floats(s, e[1], links * channels)};

		oracle_reads(steps, channels, &reads, e[0], e[1], want);
		s->ops->read(s->backend, steps, channels, &reads, ends[0], ends[1], y);
		got = get_floats(s, y, count);
		expect_close(s, "read", count, got, want, links == 1 ? 0 : 1e-6);
		give_floats(s, 2, ends);
	}
}

static void check_pack(size_t steps, size_t channels)
{
	const size_t count = steps * channels, words = bit_words(channels);
	uint64_t turn = count, *bits = test_alloc((steps * words + 1) * sizeof(*bits));
	float *x = random_floats(count, 1, &turn);

	x[0] = -0.0f;
	x[count / 2] = NAN;
	x[count - 1] = 1e-42f;
	EACH_SUBJECT(s)
	{
		float *there = put_floats(s, x, count);

		bits[steps * words] = 77;
		s->ops->pack(s->backend, steps, channels, there, bits);
		for (size_t t = 0; t < steps; t++)
			for (size_t c = 0; c < words * 64; c++)
				if ((bits[t * words + c / 64] >> c % 64 & 1) !=
				    (c < channels && x[t * channels + c] > 0))
					fail_msg("%s: pack: step %zu, channel %zu", s->maker->name, t, c);
		assert_true(bits[steps * words] == 77);
		give_floats(s, 1, &there);
	}
}

/* `zero`: where a gate begins, it is 1 exactly. */
static void check_gate(size_t steps, size_t channels, bool zero)
{
	const size_t count = steps * channels;
	uint64_t turn = count;
	float *u = random_floats(count, 1, &turn), *w = random_floats(channels, 1, &turn), b = zero ? 0 : 0.3f;
	float *x = random_floats(count, 1, &turn);
	double *want = test_alloc(count * sizeof(*want)), *factor = test_alloc(steps * sizeof(*factor));

	if (zero)
		memset(w, 0, channels * sizeof(*w));
	for (size_t t = 0; t < steps; t++) {
		double sum = (double)b;

		for (size_t c = 0; c < channels; c++)
			sum += (double)u[t * channels + c] * (double)w[c];
		factor[t] = 2 / (1 + exp(-sum));
		for (size_t c = 0; c < channels; c++)
			want[t * channels + c] = (double)x[t * channels + c] * factor[t];
	}
	EACH_SUBJECT(s)
	{
		float *there[3] = {put_floats(s, u, count), put_floats(s, w, channels), put_floats(s, &b, 1)};
		float *y = put_floats(s, x, count), *z = put_floats(s, NULL, steps), *got;

		s->ops->gate(s->backend, steps, channels, there[0], there[1], there[2], z, y);
		got = get_floats(s, y, count);
		expect_close(s, "gate", count, got, want, zero ? 0 : 1e-5);
		got = get_floats(s, z, steps);
		expect_close(s, "gate's factor", steps, got, factor, zero ? 0 : 1e-5);
		give_floats(s, 3, there);
	}
}

TEST(test_reads)
{
	check_reads(1, 4, 1, (const size_t[]){1}, true);
	check_reads(5, 48, 1, (const size_t[]){3}, true);
	check_reads(33, 30, 1, (const size_t[]){10}, true);
	check_reads(37, 130, 2, (const size_t[]){1, 26}, false);
	check_reads(140, 576, 4, (const size_t[]){1, 1, 1, 1}, false);
	check_reads(140, 576, 3, (const size_t[]){1, 36, 144}, false);
	check_pack(1, 4);
	check_pack(7, 130);
	check_pack(140, 576);
	check_gate(3, 20, false);
	check_gate(140, 576, false);
	check_gate(140, 576, true);
}

TEST(test_making)
{
	struct backend *backend = (struct backend *)8;

	must_refuse(cpu_backend_new(NULL, &backend, &err), ROSA_EINVAL);
	assert_null(backend);
	cpu_backend_free(NULL);
	must(cpu_backend_new(subjects[0].workers, &backend, &err));
	assert_string_equal(backend->ops->name, "cpu");
	cpu_backend_free(backend);
}

TEST_GROUP(subjects_set_up, subjects_tear_down)
