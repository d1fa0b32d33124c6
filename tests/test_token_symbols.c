/* The symbols of embeddings, against their definition written out, and that near embeddings share bits. */
#include "base/draw.h"
#include "model/token_symbols.h"
#include "support_test.h"

#include <math.h>

#define VOCABULARY ((size_t)40)

/* The bit of one channel by the definition. */
static int bit_of(const float *x, size_t width, uint64_t seed, size_t channel)
{
	float most = 0;
	long long sum = 0;

	for (size_t i = 0; i < width; i++)
		most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
	for (size_t i = 0; i < width; i++) {
		const float share = most > 0 ? x[i] / most : 0, scaled = share * 32767.0f;
		const long long k = lrintf(scaled);

		sum += draw_long(seed, channel, i / 64) >> i % 64 & 1 ? k : -k;
	}
	return sum > 0;
}

static void fill(float *x, size_t count, uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		x[i] = (float)((double)(draw_long(seed, 1, i) >> 40) / (1 << 23) - 1) * 0.3f;
}

TEST(equals_the_definition)
{
	static const struct {
		size_t width;
		int bits;
	} shapes[] = {{64, 16}, {72, 8}, {48, 1}, {130, 13}, {576, 16}, {4, 4}};

	for (size_t s = 0; s < COUNT(shapes); s++) {
		const size_t width = shapes[s].width, routes = width / (size_t)shapes[s].bits, steps = 2 * VOCABULARY;
		float *x = test_alloc(VOCABULARY * width * sizeof(*x));
		uint16_t *symbols = test_alloc(routes * steps * sizeof(*symbols));
		uint32_t tokens[2 * VOCABULARY];
		struct tensor tensor = {.format = FORMAT_F32, .dims = 2, .shape = {VOCABULARY, width}};
		struct token_symbols made;

		fill(x, VOCABULARY * width, s);
		memset(x + 3 * width, 0, width * sizeof(*x)); /* a token without an embedding */
		x[4 * width] = -0.0f;
		x[5 * width] = 1e-42f; /* subnormal */
		tensor.data = (const void *)x;
		tensor.bytes = VOCABULARY * width * sizeof(*x);
		assert_int_equal(token_symbols_new(&made, &tensor, shapes[s].bits, 77 + s, NULL), ROSA_OK);
		for (size_t t = 0; t < steps; t++) /* some several times, in one call and in several */
			tokens[t] = (uint32_t)(draw_long(s, 2, t) % VOCABULARY);
		for (int time = 0; time < 2; time++) {
			token_symbols_get(&made, steps, tokens, symbols);
			for (size_t t = 0; t < steps; t++)
				for (size_t c = 0; c < width; c++)
					assert_int_equal(symbols[c / (size_t)shapes[s].bits * steps + t] >>
								 c % (size_t)shapes[s].bits &
							     1,
							 bit_of(x + tokens[t] * width, width, 77 + s, c));
		}
		token_symbols_free(&made);
		token_symbols_free(&made);
	}
}

/* Numbers that are not finite give symbols too, of zeros, instead of undefined conversions. */
TEST(survives_what_is_no_number)
{
	float x[2][8] = {{1, NAN, -2, 0, 0, 0, 0, 0}, {INFINITY, 1, 1, 1, 1, 1, 1, 1}};
	const struct tensor tensor = {
	    .format = FORMAT_F32, .dims = 2, .shape = {2, 8}, .data = (const void *)x, .bytes = sizeof(x)};
	const uint32_t tokens[] = {0, 1};
	uint16_t symbols[2];
	float zeroed[8] = {1, 0, -2};
	struct token_symbols made;

	assert_int_equal(token_symbols_new(&made, &tensor, 8, 1, NULL), ROSA_OK);
	token_symbols_get(&made, 2, tokens, symbols);
	for (size_t c = 0; c < 8; c++)
		assert_int_equal(symbols[0] >> c & 1, bit_of(zeroed, 8, 1, c));
	assert_int_equal(symbols[1], 0);
	token_symbols_free(&made);
}
