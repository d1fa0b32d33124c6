/*
 * Packing and unpacking of symbols.
 *
 * Every variant that this processor can run is held against the sentence in rosatune.h, written out below as a loop
 * over channels. Input lives in exactly sized heap blocks, so that a sanitizer sees any read past a row's end, and the
 * output sits in a frame of marks, so that a write outside it is seen without one.
 */
#include "retrieval/symbols.h"
#include "support_test.h"

#define MARK 0xa5a5

static const rosa_dtype dtypes[] = {ROSA_FLOAT32, ROSA_FLOAT16, ROSA_BFLOAT16};

/* The variants that this processor can run. */
#define EACH_ISA(isa_)                                                                                                 \
	for (rosa_isa isa_ = 0; isa_ < ROSA_ISA_COUNT; isa_++)                                                         \
		if (rosa_isa_available(isa_))

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static size_t dtype_size(rosa_dtype dtype)
{
	return dtype == ROSA_FLOAT32 ? 4 : 2;
}

static float float_of(uint32_t pattern)
{
	float x;

	memcpy(&x, &pattern, sizeof(x));
	return x;
}

/* The value of a half, by its definition; only its sign and whether it is zero or NaN matter here. */
static float half_value(uint16_t pattern)
{
	const int exponent = pattern >> 10 & 31, fraction = pattern & 1023;
	float x = (float)fraction / 1024 + (exponent ? 1 : 0);

	if (exponent == 31 && fraction)
		return float_of(0x7fc00000);
	for (int i = exponent ? exponent : 1; i < 15; i++)
		x /= 2;
	for (int i = 15; i < exponent; i++)
		x *= 2;
	return pattern >> 15 ? -x : x;
}

/* Number `i` at `numbers` is greater than 0, asked of the processor's floating point. */
static int is_positive(rosa_dtype dtype, const void *numbers, size_t i)
{
	uint32_t pattern = 0;
	uint16_t small;

	if (dtype == ROSA_FLOAT32) {
		memcpy(&pattern, (const char *)numbers + i * 4, 4);
		return float_of(pattern) > 0;
	}
	memcpy(&small, (const char *)numbers + i * 2, 2);
	if (dtype == ROSA_FLOAT16)
		return half_value(small) > 0;
	return float_of((uint32_t)small << 16) > 0;
}

static unsigned expected_symbol(rosa_dtype dtype, const void *row, size_t route, int bits)
{
	unsigned symbol = 0;

	for (int j = 0; j < bits; j++)
		symbol |= (unsigned)is_positive(dtype, row, route * (size_t)bits + (size_t)j) << j;
	return symbol;
}

/* Random numbers with the awkward ones mixed in: zeros, infinities, NaNs, denormals, of both signs. */
static void fill_numbers(rosa_dtype dtype, void *numbers, size_t count, uint64_t seed)
{
	static const uint32_t awkward32[] = {0,          1,          0x007fffff, 0x00800000, 0x7f7fffff,
					     0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
	static const uint16_t awkward16[] = {0,      1,      0x007f, 0x0080, 0x03ff, 0x0400, 0x7bff,
					     0x7c00, 0x7c01, 0x7e00, 0x7f7f, 0x7f80, 0x7f81, 0x7fff};

	for (size_t i = 0; i < count; i++) {
		const uint64_t x = next_random(&seed);
		const int awkward = x >> 60 == 0;

		if (dtype == ROSA_FLOAT32) {
			uint32_t pattern = (uint32_t)x;

			if (awkward)
				pattern = awkward32[(x >> 32) % 9] | (uint32_t)(x & 0x80000000u);
			memcpy((char *)numbers + i * 4, &pattern, 4);
		} else {
			uint16_t pattern = (uint16_t)x;

			if (awkward)
				pattern = (uint16_t)(awkward16[(x >> 32) % 14] | (x & 0x8000));
			memcpy((char *)numbers + i * 2, &pattern, 2);
		}
	}
}

/* Pack one shape with one variant and compare all of the output, its frame and its gaps included. */
static void check_shape(rosa_isa isa, rosa_dtype dtype, size_t steps, size_t routes, int bits, size_t row_gap,
			size_t route_gap, uint64_t seed)
{
	const size_t channels = routes * (size_t)bits, row_stride = channels + row_gap, width = dtype_size(dtype);
	const size_t route_stride = steps + route_gap, margin = 40;
	const size_t numbers = row_stride * (steps - 1) + channels;
	const size_t cells = route_stride * (routes - 1) + steps, framed = cells + 2 * margin;
	unsigned char *rows = test_alloc(numbers * width);
	uint16_t *frame = test_alloc(framed * sizeof(*frame));
	rosa_error err = {ROSA_OK, ""};

	fill_numbers(dtype, rows, numbers, seed);
	for (size_t i = 0; i < framed; i++)
		frame[i] = MARK;
	must(rosa_pack_with(isa, dtype, rows, row_gap ? row_stride : 0, steps, channels, bits, frame + margin,
			    route_gap ? route_stride : 0, &err));
	for (size_t i = 0; i < framed; i++) {
		const size_t cell = i - margin, route = cell / route_stride, t = cell % route_stride;
		unsigned expected = MARK;

		if (i >= margin && cell < cells && t < steps)
			expected = expected_symbol(dtype, rows + t * row_stride * width, route, bits);
		if (frame[i] != expected)
			fail_msg("%s, dtype %d, %zu steps, %zu routes of %d bits: cell %zu is %u, not %u",
				 rosa_isa_name(isa), (int)dtype, steps, routes, bits, i, frame[i], expected);
	}
}

/* ----------------------------------------------------------------------------------------------------- packing -- */

TEST(every_width_dtype_and_variant)
{
	/* Around the sizes of tiles (64 routes, 32 steps), of registers and of words, and far from them. */
	static const size_t steps[] = {1, 7, 31, 32, 33, 64, 101};
	static const size_t routes[] = {1, 3, 4, 8, 13, 63, 64, 65, 130};
	int variants = 0;

	EACH_ISA(isa)
	{
		variants++;
		for (size_t d = 0; d < 3; d++)
			for (int bits = 1; bits <= 16; bits++)
				for (size_t s = 0; s < COUNT(steps); s++)
					for (size_t r = 0; r < COUNT(routes); r++)
						check_shape(isa, dtypes[d], steps[s], routes[r], bits, 0, 0,
							    s * 1000 + r * 50 + (size_t)bits);
	}
	assert_true(variants >= 1);
}

/* Rows longer than the piece that is read in one go. */
TEST(wide_rows)
{
	EACH_ISA(isa)
	{
		for (size_t d = 0; d < 3; d++)
			for (int bits = 1; bits <= 16; bits++)
				check_shape(isa, dtypes[d], 35, 4096 / (size_t)bits + 67, bits, d, 0, d);
	}
}

TEST(strides_leave_gaps_alone)
{
	EACH_ISA(isa)
	{
		for (size_t d = 0; d < 3; d++)
			for (int bits = 1; bits <= 16; bits += 3)
				for (size_t gap = 1; gap < 70; gap += 17) {
					check_shape(isa, dtypes[d], 67, 71, bits, gap, 0, gap);
					check_shape(isa, dtypes[d], 67, 71, bits, 0, gap, gap);
					check_shape(isa, dtypes[d], 67, 71, bits, gap, gap, gap);
				}
	}
}

/* Rows need not be aligned to their numbers: they may come out of the middle of a mapped file. */
TEST(any_alignment)
{
	enum { STEPS = 33, CHANNELS = 96, BITS = 6 };
	static unsigned char block[STEPS * CHANNELS * 4 + 64];
	static uint16_t symbols[CHANNELS / BITS * STEPS];

	EACH_ISA(isa)
	{
		for (size_t d = 0; d < 3; d++)
			for (size_t shift = 1; shift < 64; shift += 6) {
				const size_t width = dtype_size(dtypes[d]);
				const unsigned char *rows = block + shift;

				fill_numbers(dtypes[d], block + shift, STEPS * CHANNELS, shift);
				must(rosa_pack_with(isa, dtypes[d], rows, 0, STEPS, CHANNELS, BITS, symbols, 0, &err));
				for (size_t r = 0; r < CHANNELS / BITS; r++)
					for (size_t t = 0; t < STEPS; t++)
						assert_int_equal(
						    symbols[r * STEPS + t],
						    expected_symbol(dtypes[d], rows + t * CHANNELS * width, r, BITS));
			}
	}
}

/* All bit patterns of the small formats, each at its place in one long row, and each seen by every lane. */
TEST(every_pattern_of_16_bits)
{
	enum { COUNT = 65536, ROWS = 3 };
	uint16_t *patterns = test_alloc(ROWS * COUNT * sizeof(*patterns));
	uint16_t *symbols = test_alloc(ROWS * COUNT / 16 * sizeof(*symbols));
	size_t positive[3] = {0, 0, 0};

	for (size_t t = 0; t < ROWS; t++)
		for (size_t c = 0; c < COUNT; c++)
			patterns[t * COUNT + c] = (uint16_t)(c + t * 21845);
	EACH_ISA(isa)
	{
		for (size_t d = 1; d < 3; d++) {
			must(rosa_pack_with(isa, dtypes[d], patterns, 0, ROWS, COUNT, 16, symbols, 0, &err));
			positive[d] = 0;
			for (size_t t = 0; t < ROWS; t++)
				for (size_t c = 0; c < COUNT; c++) {
					const int bit = symbols[c / 16 * ROWS + t] >> c % 16 & 1;

					assert_int_equal(bit, is_positive(dtypes[d], patterns, t * COUNT + c));
					positive[d] += t == 0 && bit;
				}
		}
		/* 1 up to infinity. */
		assert_int_equal(positive[1], 0x7c00);
		assert_int_equal(positive[2], 0x7f80);
	}
}

TEST(special_float32)
{
	static const struct {
		uint32_t pattern;
		int bit;
	} cases[] = {
	    {0x00000000, 0},                  /* 0 */
	    {0x80000000, 0},                  /* -0 */
	    {0x00000001, 1},                  /* least denormal */
	    {0x80000001, 0},                  /* and its negative */
	    {0x007fffff, 1},                  /* greatest denormal */
	    {0x807fffff, 0}, {0x00800000, 1}, /* least normal */
	    {0x3f800000, 1},                  /* 1 */
	    {0xbf800000, 0}, {0x7f7fffff, 1}, /* greatest finite */
	    {0xff7fffff, 0}, {0x7f800000, 1}, /* infinity */
	    {0xff800000, 0}, {0x7f800001, 0}, /* signalling NaN */
	    {0x7fc00000, 0},                  /* quiet NaN */
	    {0x7fffffff, 0}, {0xff800001, 0}, {0xffffffff, 0},
	};
	enum { CASES = COUNT(cases), CHANNELS = 80 };
	uint32_t row[CHANNELS];
	uint16_t symbols[CHANNELS];

	EACH_ISA(isa)
	{
		for (size_t shift = 0; shift < CASES; shift++) {
			for (size_t c = 0; c < CHANNELS; c++)
				row[c] = cases[(c + shift) % CASES].pattern;
			must(rosa_pack_with(isa, ROSA_FLOAT32, row, 0, 1, CHANNELS, 1, symbols, 0, &err));
			for (size_t c = 0; c < CHANNELS; c++)
				assert_int_equal(symbols[c], cases[(c + shift) % CASES].bit);
		}
	}
}

TEST(chosen_variant_is_named_and_used)
{
	const float row[4] = {1, -1, 0.5f, 0};
	uint16_t symbol = MARK;

	assert_true(rosa_isa_available(rosa_isa_best()));
	assert_string_equal(rosa_pack_isa(), rosa_isa_name(rosa_isa_best()));
	assert_true(rosa_isa_available(ROSA_ISA_PLAIN));
	must(rosa_pack(ROSA_FLOAT32, row, 0, 1, 4, 4, &symbol, 0, &err));
	assert_int_equal(symbol, 5);
}

/* --------------------------------------------------------------------------------------------------- unpacking -- */

TEST(unpack_inverts_pack)
{
	enum { STEPS = 45, ROUTES = 37, GAP = 5 };

	for (int bits = 1; bits <= 16; bits++) {
		const size_t channels = ROUTES * (size_t)bits, numbers = STEPS * channels;
		uint16_t *symbols = test_alloc(ROUTES * (STEPS + GAP) * sizeof(*symbols));
		uint16_t *again = test_alloc(ROUTES * STEPS * sizeof(*again));
		float *rows = test_alloc(numbers * sizeof(*rows));
		uint8_t *values = test_alloc(numbers);

		fill_numbers(ROSA_FLOAT32, rows, numbers, (uint64_t)bits);
		must(rosa_pack(ROSA_FLOAT32, rows, 0, STEPS, channels, bits, symbols, STEPS + GAP, &err));
		must(rosa_unpack(symbols, STEPS + GAP, STEPS, channels, bits, values, &err));
		for (size_t i = 0; i < numbers; i++) {
			assert_int_equal(values[i], rows[i] > 0);
			rows[i] = (float)values[i];
		}
		must(rosa_pack(ROSA_FLOAT32, rows, 0, STEPS, channels, bits, again, 0, &err));
		for (size_t r = 0; r < ROUTES; r++)
			assert_memory_equal(again + r * STEPS, symbols + r * (STEPS + GAP), STEPS * sizeof(*again));
	}
}

TEST(unpack_refuses_wide_symbols)
{
	uint16_t symbols[6] = {1, 2, 3, 0, 4, 1}; /* two routes, three steps */
	uint8_t values[3 * 30];
	rosa_error err = {ROSA_OK, ""};

	must(rosa_unpack(symbols, 0, 3, 6, 3, values, &err));
	assert_int_equal(rosa_unpack(symbols, 0, 3, 4, 2, values, &err), ROSA_ESYMBOL);
	must_fail(err.status, ROSA_ESYMBOL, "symbol 4 of route 1 at step 1");
	assert_int_equal(rosa_unpack(symbols, 0, 3, 4, 2, values, NULL), ROSA_ESYMBOL);
	symbols[4] = 0xffff;
	assert_int_equal(rosa_unpack(symbols, 0, 3, 30, 15, values, &err), ROSA_ESYMBOL);
}

/* ------------------------------------------------------------------------------------------------------ misuse -- */

TEST(bad_arguments_of_pack)
{
	static const struct {
		int dtype;
		size_t row_stride, steps, channels;
		int bits;
		size_t route_stride;
		const char *says;
	} cases[] = {
	    {ROSA_FLOAT32, 0, 4, 10, 4, 0, "channels is 10"},
	    {ROSA_FLOAT32, 0, 4, 0, 4, 0, "channels is 0"},
	    {ROSA_FLOAT32, 0, 4, 3, 4, 0, "channels is 3"},
	    {ROSA_FLOAT32, 0, 0, 8, 4, 0, "steps is 0"},
	    {ROSA_FLOAT32, 0, 4, 8, 0, 0, "bits is 0"},
	    {ROSA_FLOAT32, 0, 4, 8, -1, 0, "bits is -1"},
	    {ROSA_FLOAT32, 0, 4, 34, 17, 0, "bits is 17"},
	    {ROSA_FLOAT32, 7, 4, 8, 4, 0, "row_stride is 7"},
	    {ROSA_FLOAT32, 0, 4, 8, 4, 3, "route_stride is 3"},
	    {ROSA_FLOAT32, SIZE_MAX / 8, 4, 8, 4, 0, "memory"},
	    {ROSA_FLOAT32, 0, 4, 8, 4, SIZE_MAX / 2, "memory"},
	    {3, 0, 4, 8, 4, 0, "dtype is 3"},
	    {-1, 0, 4, 8, 4, 0, "dtype is -1"},
	};
	float rows[64] = {1};
	uint16_t symbols[64];

	for (size_t i = 0; i < 64; i++)
		symbols[i] = MARK;
	for (size_t i = 0; i < COUNT(cases); i++) {
		err = (rosa_error){ROSA_OK, ""};
		assert_int_equal(rosa_pack((rosa_dtype)cases[i].dtype, rows, cases[i].row_stride, cases[i].steps,
					   cases[i].channels, cases[i].bits, symbols, cases[i].route_stride, &err),
				 ROSA_EINVAL);
		assert_int_equal(err.status, ROSA_EINVAL);
		must_say(cases[i].says);
		assert_int_equal(rosa_pack((rosa_dtype)cases[i].dtype, rows, cases[i].row_stride, cases[i].steps,
					   cases[i].channels, cases[i].bits, symbols, cases[i].route_stride, NULL),
				 ROSA_EINVAL);
	}
	assert_int_equal(rosa_pack(ROSA_FLOAT32, NULL, 0, 4, 8, 4, symbols, 0, &err), ROSA_EINVAL);
	assert_int_equal(rosa_pack(ROSA_FLOAT32, rows, 0, 4, 8, 4, NULL, 0, &err), ROSA_EINVAL);
	assert_int_equal(rosa_pack_with(ROSA_ISA_COUNT, ROSA_FLOAT32, rows, 0, 4, 8, 4, symbols, 0, &err), ROSA_EINVAL);
	for (rosa_isa isa = 0; isa < ROSA_ISA_COUNT; isa++)
		if (!rosa_isa_available(isa))
			assert_int_equal(rosa_pack_with(isa, ROSA_FLOAT32, rows, 0, 4, 8, 4, symbols, 0, &err),
					 ROSA_EINVAL);
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(symbols[i], MARK);
}

TEST(bad_arguments_of_unpack)
{
	uint16_t symbols[8] = {0};
	uint8_t values[64];

	assert_int_equal(rosa_unpack(NULL, 0, 4, 8, 4, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 4, 8, 4, NULL, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 0, 8, 4, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 4, 0, 4, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 4, 7, 4, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 4, 8, 0, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, 4, 34, 17, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 3, 4, 8, 4, values, &err), ROSA_EINVAL);
	assert_int_equal(rosa_unpack(symbols, 0, SIZE_MAX / 4, 8, 8, values, &err), ROSA_EINVAL);
	must(rosa_unpack(symbols, 0, 4, 8, 4, values, &err));
}
