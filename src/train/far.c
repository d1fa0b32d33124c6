/*
 * Far tokens.
 *
 * A hash table with open addressing keeps, for each string of three tokens, the position where it was last seen. A slot
 * holds that position alone: the tokens to compare with are in the text.
 */
#include "train/far.h"

#include "base/draw.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define NOWHERE UINT32_MAX

static uint64_t hash_of(const uint32_t *three)
{
	return draw_mix(draw_mix((uint64_t)three[0] << 32 | three[1]) + three[2]);
}

rosa_status far_distances(const uint32_t *tokens, size_t count, uint32_t *distance, rosa_error *err)
{
	size_t slots = 16;
	uint32_t *last;

	if (count >= NOWHERE)
		return rosa_fail(err, ROSA_EINVAL, "%zu tokens are too many for one text; split it", count);
	while (slots < 2 * count)
		slots *= 2;
	last = malloc(slots * sizeof(*last));
	if (!last)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to look for far tokens among %zu", count);
	memset(last, 0xff, slots * sizeof(*last));
	for (size_t t = 0; t < count; t++) {
		const uint32_t *three = tokens + t - 2;
		size_t slot;

		distance[t] = 0;
		if (t < 2)
			continue;
		slot = hash_of(three) & (slots - 1);
		while (last[slot] != NOWHERE && memcmp(tokens + last[slot] - 2, three, 3 * sizeof(*three)) != 0)
			slot = (slot + 1) & (slots - 1);
		if (last[slot] != NOWHERE)
			distance[t] = (uint32_t)t - last[slot];
		last[slot] = (uint32_t)t;
	}
	free(last);
	return ROSA_OK;
}
