/*
 * A string of symbols, bits packed end to end, read backwards a machine word at a time.
 *
 * Retrieval compares contexts: the last symbol first, then the one before it, and so on. Symbol i lies at bits
 * [i*M, (i+1)*M), so a 64-bit word whose top bit is the last bit of symbol i holds symbol i in its highest M bits,
 * symbol i-1 below it, and so on. The order of two such words as integers is the order of the two contexts, and the
 * leading zeros of their difference, divided by M, count the symbols they share: one instruction compares up to 57 bits
 * of context, 15 symbols at M = 4.
 *
 * The word is fetched with one unaligned load and a shift of up to 7 bits, which is why only PACKED_WORD(M) symbols of
 * it are good. Before the first symbol lie 8 bytes of zeros: a context shorter than a word reads as if preceded by
 * zeros, and who compares must cut the result at the context's true length.
 */
#pragma once

#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rosatune reads and saves words of symbols as little-endian bytes; this machine is big-endian"
#endif

#define PACKED_PAD 8 /* bytes before the first symbol, and room for whole-word access behind the last */

/* Whole symbols in a word after the worst shift that symbols of `bits` bits can need. */
static inline unsigned packed_word_symbols(unsigned bits)
{
	unsigned shift = bits % 8 == 0 ? 0 : bits % 4 == 0 ? 4 : bits % 2 == 0 ? 6 : 7;

	return (64 - shift) / bits;
}

/* The top `symbols` symbols of a word. */
static inline uint64_t packed_mask(unsigned bits, unsigned symbols)
{
	return ~UINT64_C(0) << (64 - bits * symbols);
}

struct packed {
	uint8_t *bytes;
	size_t capacity; /* symbols */
};

static inline size_t packed_bytes(size_t capacity, unsigned bits)
{
	return 2 * PACKED_PAD + (capacity * bits + 7) / 8;
}

/* Make room for `count` symbols in all. */
static inline bool packed_reserve(struct packed *packed, const rosa_allocator *allocator, unsigned bits, size_t count)
{
	size_t capacity;
	uint8_t *bytes;

	if (packed->bytes && count <= packed->capacity)
		return true;
	capacity = memory_grown(packed->capacity, count);
	bytes = memory_resize(allocator, packed->bytes, packed_bytes(capacity, bits));
	if (!bytes)
		return false;
	if (!packed->bytes)
		memset(bytes, 0, PACKED_PAD);
	packed->bytes = bytes;
	packed->capacity = capacity;
	return true;
}

/* Write symbol i, given the word that it ends: the word knows the bits before it, so nothing is read back. */
static inline void packed_put(struct packed *packed, unsigned bits, size_t i, uint64_t word)
{
	size_t bit = i * bits;
	unsigned shift = bit & 7;
	uint32_t tail = (uint32_t)(word >> (64 - shift - bits));

	memcpy(packed->bytes + PACKED_PAD + (bit >> 3), &tail, sizeof(tail));
}

/* The word after one more symbol. */
static inline uint64_t packed_push(uint64_t word, unsigned bits, unsigned symbol)
{
	return word >> bits | (uint64_t)symbol << (64 - bits);
}

static inline unsigned packed_get(const struct packed *packed, unsigned bits, size_t i)
{
	size_t bit = i * bits;
	uint32_t word;

	memcpy(&word, packed->bytes + PACKED_PAD + (bit >> 3), sizeof(word));
	return word >> (bit & 7) & ((1u << bits) - 1);
}

/* The word of the context of `length` symbols: symbol length-1 in the highest bits. Length 0 gives zero. */
static inline uint64_t packed_word(const struct packed *packed, unsigned bits, size_t length)
{
	size_t end = length * bits;
	uint64_t word;

	memcpy(&word, packed->bytes + PACKED_PAD - 8 + ((end + 7) >> 3), sizeof(word));
	return word << (-end & 7);
}
