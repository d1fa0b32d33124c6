/* Weights of any format to compute with, where it does not matter which numbers they are. */
#pragma once

#include "base/draw.h"

#include <stddef.h>

/* Random bytes are numbers in every format, but those of float16 and float32 may be huge. Any two of these bytes are a
 * modest float16, and any four a float32 that is neither huge nor tiny. */
static inline void made_weights(uint64_t seed, uint8_t *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)(0x20 | (draw(seed, 0, i) & 15));
}
