/*
 * The checksum of saved states, written a second time.
 *
 * A checksum keeps accidents out, and with them every test of the checks behind it. Tests that mean to reach those must
 * be able to seal what they have altered. It is not borrowed from the library: a format that others may read has to be
 * what its description says, and two programs that agree show that it is. So this is XXH64 straight from its
 * specification, for images of whole 8-byte words.
 */
#include "support_image.h"

#include "base/checksum.h"

#define PRIME_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME_3 UINT64_C(0x165667b19e3779f9)
#define PRIME_4 UINT64_C(0x85ebca77c2b2ae63)
#define PRIME_5 UINT64_C(0x27d4eb2f165667c5)

static uint64_t word_at(const uint8_t *image, size_t i)
{
	uint64_t word = 0;

	for (int j = 7; j >= 0; j--)
		word = word << 8 | image[8 * i + (size_t)j];
	return word;
}

static uint64_t rotate(uint64_t x, int by)
{
	return x << by | x >> (64 - by);
}

static uint64_t mix(uint64_t lane, uint64_t word)
{
	return rotate(lane + word * PRIME_2, 31) * PRIME_1;
}

static uint64_t sum_of_words(const uint8_t *image, size_t words)
{
	static const int turns[] = {1, 7, 12, 18};
	uint64_t lanes[] = {PRIME_1 + PRIME_2, PRIME_2, 0, 0 - PRIME_1}, sum = 0;
	const size_t whole = words / 4 * 4;

	for (size_t i = 0; i < whole; i++)
		lanes[i % 4] = mix(lanes[i % 4], word_at(image, i));
	for (int i = 0; i < 4; i++)
		sum += rotate(lanes[i], turns[i]);
	for (int i = 0; i < 4; i++)
		sum = (sum ^ mix(0, lanes[i])) * PRIME_1 + PRIME_4;
	sum = (whole ? sum : PRIME_5) + 8 * words;
	for (size_t i = whole; i < words; i++)
		sum = rotate(sum ^ mix(0, word_at(image, i)), 27) * PRIME_1 + PRIME_4;
	sum = (sum ^ sum >> 33) * PRIME_2;
	sum = (sum ^ sum >> 29) * PRIME_3;
	return sum ^ sum >> 32;
}

void image_seal(uint8_t *image, size_t size)
{
	const size_t body = size - IMAGE_SEAL;
	/* an image that was cut elsewhere than between words is refused whatever it ends with */
	const uint64_t sum = body % 8 ? checksum_of(image, body) : sum_of_words(image, body / 8);

	for (size_t i = 0; i < IMAGE_SEAL; i++)
		image[body + i] = (uint8_t)(sum >> (8 * i));
}
