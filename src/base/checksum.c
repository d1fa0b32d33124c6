/*
 * XXH64.
 *
 * The input is read in stripes of 32 bytes, one 64-bit word for each of four lanes, which are independent so that their
 * multiplications overlap. What is left after the last whole stripe is mixed into the sum of the lanes at the end.
 * Words are little-endian on every machine.
 */
#include "base/checksum.h"

#include <string.h>

#define STRIPE 32

/* The primes of the specification. */
#define PRIME_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME_3 UINT64_C(0x165667b19e3779f9)
#define PRIME_4 UINT64_C(0x85ebca77c2b2ae63)
#define PRIME_5 UINT64_C(0x27d4eb2f165667c5)

static inline uint64_t rotate(uint64_t x, int by)
{
	return x << by | x >> (64 - by);
}

static inline uint64_t word_64(const uint8_t *from)
{
	uint64_t word;

	memcpy(&word, from, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	word = __builtin_bswap64(word);
#endif
	return word;
}

static inline uint64_t word_32(const uint8_t *from)
{
	uint32_t word;

	memcpy(&word, from, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	word = __builtin_bswap32(word);
#endif
	return word;
}

static inline uint64_t mix(uint64_t lane, uint64_t word)
{
	return rotate(lane + word * PRIME_2, 31) * PRIME_1;
}

/* Takes whole stripes and returns how many bytes they were. */
static size_t add_stripes(uint64_t lanes[4], const uint8_t *from, size_t size)
{
	uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
	size_t at = 0;

	for (; size - at >= STRIPE; at += STRIPE) {
		a = mix(a, word_64(from + at));
		b = mix(b, word_64(from + at + 8));
		c = mix(c, word_64(from + at + 16));
		d = mix(d, word_64(from + at + 24));
	}
	lanes[0] = a;
	lanes[1] = b;
	lanes[2] = c;
	lanes[3] = d;
	return at;
}

void checksum_begin(struct checksum *sum, uint64_t seed)
{
	*sum =
	    (struct checksum){.seed = seed, .lanes = {seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1}};
}

void checksum_add(struct checksum *sum, const void *data, size_t size)
{
	const uint8_t *from = data;
	const size_t held = (size_t)(sum->bytes % STRIPE), missing = STRIPE - held;

	if (!size)
		return;
	sum->bytes += size;
	if (held) {
		const size_t taken = size < missing ? size : missing;

		memcpy(sum->held + held, from, taken);
		if (taken < missing)
			return;
		add_stripes(sum->lanes, sum->held, STRIPE);
		from += taken;
		size -= taken;
	}
	const size_t done = add_stripes(sum->lanes, from, size);

	memcpy(sum->held, from + done, size - done);
}

static uint64_t join_lanes(const uint64_t lanes[4])
{
	uint64_t value = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);

	for (int i = 0; i < 4; i++)
		value = (value ^ mix(0, lanes[i])) * PRIME_1 + PRIME_4;
	return value;
}

/* Spreads every bit of the input over the whole result. */
static uint64_t finish(uint64_t value)
{
	value = (value ^ value >> 33) * PRIME_2;
	value = (value ^ value >> 29) * PRIME_3;
	return value ^ value >> 32;
}

uint64_t checksum_value(const struct checksum *sum)
{
	const uint8_t *at = sum->held, *end = at + sum->bytes % STRIPE;
	uint64_t value = sum->bytes < STRIPE ? sum->seed + PRIME_5 : join_lanes(sum->lanes);

	value += sum->bytes;
	for (; end - at >= 8; at += 8)
		value = rotate(value ^ mix(0, word_64(at)), 27) * PRIME_1 + PRIME_4;
	if (end - at >= 4) {
		value = rotate(value ^ word_32(at) * PRIME_1, 23) * PRIME_2 + PRIME_3;
		at += 4;
	}
	for (; at < end; at++)
		value = rotate(value ^ *at * PRIME_5, 11) * PRIME_1;
	return finish(value);
}

uint64_t checksum_of(const void *data, size_t size)
{
	struct checksum sum;

	checksum_begin(&sum, 0);
	checksum_add(&sum, data, size);
	return checksum_value(&sum);
}
