/*
 * The checksum is XXH64: the published test vectors, and the same value however the bytes are cut into pieces.
 *
 * The vectors are those of the reference implementation's self-test (xxHash, tests/sanity_test_vectors.h), which takes
 * them over pseudo-random bytes that a multiplicative generator gives.
 */
#include "base/checksum.h"
#include "support_test.h"

#define SEED UINT64_C(0x9e3779b1) /* the reference's second seed, and the start of its generator */

static void fill(uint8_t *bytes, size_t size)
{
	uint64_t state = SEED;

	for (size_t i = 0; i < size; i++) {
		bytes[i] = (uint8_t)(state >> 56);
		state *= UINT64_C(0x9e3779b185ebca8d);
	}
}

static uint64_t value_of(const void *data, size_t size, uint64_t seed)
{
	struct checksum sum;

	checksum_begin(&sum, seed);
	checksum_add(&sum, data, size);
	return checksum_value(&sum);
}

TEST(gives_the_published_values)
{
	static const struct {
		size_t size;
		uint64_t seed, value;
	} vectors[] = {
	    {0, 0, UINT64_C(0xef46db3751d8e999)},      {0, SEED, UINT64_C(0xac75fda2929b17ef)},
	    {1, 0, UINT64_C(0xe934a84adb052768)},      {1, SEED, UINT64_C(0x5014607643a9b4c3)},
	    {4, 0, UINT64_C(0x9136a0dca57457ee)},      {14, 0, UINT64_C(0x8282dcc4994e35c8)},
	    {14, SEED, UINT64_C(0xc3bd6bf63deb6df0)},  {222, 0, UINT64_C(0xb641ae8cb691c174)},
	    {222, SEED, UINT64_C(0x20cb8ab7ae10c14a)},
	};
	uint8_t bytes[222];

	fill(bytes, sizeof(bytes));
	for (size_t i = 0; i < COUNT(vectors); i++)
		assert_int_equal(value_of(bytes, vectors[i].size, vectors[i].seed), vectors[i].value);
	/* of the README of the Python package xxhash, and of many other implementations */
	assert_int_equal(checksum_of("xxhash", 6), UINT64_C(0x32dd38952c4bc720));
	assert_int_equal(value_of("xxhash", 6, 20141025), UINT64_C(0xb559b98d844e0635));
}

TEST(pieces_do_not_matter)
{
	uint8_t bytes[222];

	fill(bytes, sizeof(bytes));
	for (size_t size = 0; size <= sizeof(bytes); size++) {
		const uint64_t whole = checksum_of(bytes, size);

		for (size_t piece = 1; piece <= size; piece++) {
			struct checksum sum;

			checksum_begin(&sum, 0);
			for (size_t at = 0; at < size; at += piece) {
				checksum_add(&sum, bytes + at, size - at < piece ? size - at : piece);
				checksum_value(&sum); /* asking in between changes nothing */
			}
			assert_int_equal(sum.bytes, size);
			assert_int_equal(checksum_value(&sum), whole);
		}
	}
}

/* A byte that is altered, moved, added or missing changes the checksum. */
TEST(changes_show)
{
	uint8_t bytes[100];
	uint64_t whole;

	fill(bytes, sizeof(bytes));
	whole = checksum_of(bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++) {
		for (int bit = 0; bit < 8; bit++) {
			bytes[i] ^= (uint8_t)(1 << bit);
			assert_int_not_equal(checksum_of(bytes, sizeof(bytes)), whole);
			bytes[i] ^= (uint8_t)(1 << bit);
		}
		assert_int_not_equal(checksum_of(bytes, i), whole);
	}
	memset(bytes, 0, sizeof(bytes));
	for (size_t i = 1; i < sizeof(bytes); i++)
		assert_int_not_equal(checksum_of(bytes, i), checksum_of(bytes, i - 1));
}
