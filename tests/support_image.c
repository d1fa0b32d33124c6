/*
 * The checksum of saved states, written a second time.
 *
 * A checksum keeps accidents out, and with them every test of the checks behind it. Tests that mean to reach those must
 * be able to seal what they have altered. It is not borrowed from the library: a format that others may read has to be
 * what its description says, and two programs that agree show that it is.
 */
#include "support_image.h"

static uint64_t little_endian(const uint8_t *bytes, size_t count)
{
	uint64_t word = 0;

	for (size_t i = 0; i < count; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

void image_seal(uint8_t *image, size_t size)
{
	size_t body = size - IMAGE_SEAL;
	uint64_t sum = UINT64_C(0x9e3779b97f4a7c15) ^ body;

	for (size_t i = 0; i < body; i += 8) {
		sum = (sum ^ little_endian(image + i, body - i < 8 ? body - i : 8)) * UINT64_C(0xd6e8feb86659fd93);
		sum ^= sum >> 32;
	}
	for (size_t i = 0; i < IMAGE_SEAL; i++)
		image[body + i] = (uint8_t)(sum >> (8 * i));
}
