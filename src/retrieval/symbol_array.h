/*
 * Arrays of symbols, or of codes, whose elements are as wide as the number of bits asks for: uint16_t up to 16 bits,
 * uint32_t above. Where `bits` is a constant, so is the choice.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

static inline size_t symbol_size(unsigned bits)
{
	return bits > 16 ? sizeof(uint32_t) : sizeof(uint16_t);
}

static inline uint32_t symbol_get(const void *symbols, unsigned bits, size_t i)
{
	return bits > 16 ? ((const uint32_t *)symbols)[i] : ((const uint16_t *)symbols)[i];
}

static inline void symbol_set(void *symbols, unsigned bits, size_t i, uint32_t symbol)
{
	if (bits > 16)
		((uint32_t *)symbols)[i] = symbol;
	else
		((uint16_t *)symbols)[i] = (uint16_t)symbol;
}

/* The array from element i on. */
static inline const void *symbols_from(const void *symbols, unsigned bits, size_t i)
{
	return (const char *)symbols + i * symbol_size(bits);
}
