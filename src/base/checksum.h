/* A sum over bytes that a changed, missing, added or moved byte changes: every word is mixed into all bits of it. */
#ifndef ROSATUNE_CHECKSUM_H
#define ROSATUNE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CHECKSUM_START UINT64_C(0x9e3779b97f4a7c15)

/* Go on with a sum. Pieces but the last have to be whole words of 8 bytes for the sum to be that of the whole. */
static inline uint64_t checksum_add(uint64_t sum, const void *data, size_t size)
{
	for (size_t i = 0; i < size; i += 8) {
		uint64_t word = 0;

		memcpy(&word, (const uint8_t *)data + i, size - i < 8 ? size - i : 8);
		sum = (sum ^ word) * UINT64_C(0xd6e8feb86659fd93);
		sum ^= sum >> 32;
	}
	return sum;
}

#endif
