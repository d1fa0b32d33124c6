/*
 * The checksum of every file format here: XXH64, as published in xxhash_spec.md of https://github.com/Cyan4973/xxHash.
 *
 * A format that carries a well-known checksum can be checked by any program, and its quality is known. XXH64 reads
 * several bytes per cycle in plain C, so checking a shard costs less than reading it. It protects against accidents,
 * not against someone who alters a file on purpose.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A checksum in progress. Bytes may be added in pieces of any size. */
struct checksum {
	uint64_t seed;
	uint64_t lanes[4];
	uint64_t bytes;   /* added so far */
	uint8_t held[32]; /* the last bytes % 32 of them, which do not fill a stripe yet */
};

void checksum_begin(struct checksum *sum, uint64_t seed);
void checksum_add(struct checksum *sum, const void *data, size_t size);
/* The checksum of what was added so far; more may be added afterwards. */
uint64_t checksum_value(const struct checksum *sum);

/* All at once, with seed 0. */
uint64_t checksum_of(const void *data, size_t size);
