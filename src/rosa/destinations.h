/*
 * Destinations as they are kept for the backward pass.
 *
 * Most sequences are shorter than 65,535 steps, and then two bytes hold a destination. Destinations are most of what is
 * kept (one per step and route, and with counterfactuals bits + 1 per query run), so this halves the memory. All ones
 * mean "nothing found" in both widths.
 */
#pragma once

#include "rosatune.h"

#include <string.h>

static inline int32_t destination_at(const void *from, size_t i, int width)
{
	const uint16_t *narrow = from;

	return width == 4 ? ((const int32_t *)from)[i] : narrow[i] == UINT16_MAX ? -1 : narrow[i];
}

/* Widen `count` destinations. */
static inline void destinations_load(int32_t *to, const void *from, size_t first, size_t count, int width)
{
	if (width == 4) {
		memcpy(to, (const int32_t *)from + first, count * sizeof(*to));
	} else {
		const uint16_t *narrow = (const uint16_t *)from + first;

		for (size_t i = 0; i < count; i++)
			to[i] = narrow[i] == UINT16_MAX ? -1 : narrow[i];
	}
}

static inline void destinations_store(void *to, const int32_t *from, size_t first, size_t count, int width)
{
	if (width == 4) {
		memcpy((int32_t *)to + first, from, count * sizeof(*from));
	} else {
		uint16_t *narrow = (uint16_t *)to + first;

		for (size_t i = 0; i < count; i++)
			narrow[i] = (uint16_t)from[i]; /* -1 becomes all ones */
	}
}
