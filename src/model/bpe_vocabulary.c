/*
 * The tokens of a byte-level vocabulary.
 *
 * Tokenizer files are text, so they write the bytes of a token in an alphabet of 256 printable characters: printable
 * Latin-1 stands for itself, and the 68 other bytes are U+0100 and following, in order. Tokens are converted to bytes
 * when they are read, and all other code works on bytes, of texts and of tokens alike. One byte of a token takes one or
 * two bytes to spell, so a spelling never takes less memory than its token.
 *
 * All bytes lie in one block and the hash table holds ids only, so a vocabulary of 150,000 tokens is a few large
 * allocations instead of half a million small ones.
 */
#include "model/bpe_vocabulary.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- the alphabet -- */

static bool stands_for_itself(uint32_t point)
{
	return (point >= 0x21 && point <= 0x7e) || (point >= 0xa1 && point <= 0xff && point != 0xad);
}

/* The byte that a character of the alphabet stands for; -1: none. */
static int byte_of(uint32_t point)
{
	if (point < 0x100)
		return stands_for_itself(point) ? (int)point : -1;
	/* U+0100..: 00 to 20, 7F to A0, AD */
	if (point < 0x100 + 0x21)
		return (int)(point - 0x100);
	if (point < 0x121 + 0x22)
		return (int)(point - 0x121 + 0x7f);
	return point == 0x143 ? 0xad : -1;
}

bool spelling_bytes(const char *spelling, size_t size, char *to, size_t *length)
{
	size_t at = 0, step;

	*length = 0;
	while (at < size) {
		int byte = byte_of(utf8_next(spelling + at, size - at, &step));
		if (byte < 0)
			return false;
		to[(*length)++] = (char)byte;
		at += step;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------------ storing -- */

uint64_t hash_bytes(const char *bytes, size_t size)
{
	const uint64_t factor = 0x9e3779b97f4a7c15u;
	uint64_t hash = size * factor, part;

	for (; size >= 8; size -= 8, bytes += 8) {
		memcpy(&part, bytes, 8);
		hash = (hash ^ part) * factor;
		hash ^= hash >> 29;
	}
	part = 0;
	memcpy(&part, bytes, size);
	hash = (hash ^ part) * factor;
	return hash ^ hash >> 32;
}

static rosa_status no_memory(rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "no memory for the vocabulary");
}

static rosa_status reserve_id(struct vocabulary *vocabulary, uint32_t id, rosa_error *err)
{
	if (id >= TOKEN_ID_LIMIT)
		return rosa_fail(err, ROSA_EFORMAT, "token id %u: ids must be below %u", (unsigned)id,
				 (unsigned)TOKEN_ID_LIMIT);
	if (id < vocabulary->size)
		return ROSA_OK;
	if (!ARRAY_RESERVE(vocabulary->tokens, vocabulary->tokens_room, id + 1))
		return no_memory(err);
	memset(vocabulary->tokens + vocabulary->size, 0, (id + 1 - vocabulary->size) * sizeof(*vocabulary->tokens));
	vocabulary->size = id + 1;
	return ROSA_OK;
}

/* Gives an id its bytes, which the caller has put at the end of the block. */
static void take_bytes(struct vocabulary *vocabulary, uint32_t id, size_t length)
{
	struct token *token = &vocabulary->tokens[id];

	token->start = (uint32_t)vocabulary->used;
	token->length = (uint32_t)length;
	token->flags |= TOKEN_THERE;
	vocabulary->used += length;
	if (length > vocabulary->longest)
		vocabulary->longest = length;
}

/* One byte more than asked for: there is a block then even if all tokens are empty. */
static rosa_status reserve_bytes(struct vocabulary *vocabulary, size_t size, rosa_error *err)
{
	if (size > UINT32_MAX - vocabulary->used)
		return rosa_fail(err, ROSA_EFORMAT, "the tokens of the vocabulary take more than 4 GB");
	return ARRAY_RESERVE(vocabulary->bytes, vocabulary->room, vocabulary->used + size + 1) ? ROSA_OK
											       : no_memory(err);
}

/* ---------------------------------------------------------------------------------------------------- the table -- */

#define NO_SLOT SIZE_MAX

/* The slot where the bytes are, or the free one where they belong; NO_SLOT: neither is near enough. */
static size_t slot_of(const struct vocabulary *vocabulary, const char *bytes, size_t size)
{
	size_t mask = vocabulary->slots_room - 1, slot = hash_bytes(bytes, size) & mask;

	for (int probes = 0; probes < MOST_PROBES; probes++, slot = (slot + 1) & mask) {
		uint32_t taken = vocabulary->slots[slot];
		const struct token *token = taken ? &vocabulary->tokens[taken - 1] : NULL;
		if (!token || (token->key_length == size && memcmp(vocabulary->bytes + token->key, bytes, size) == 0))
			return slot;
	}
	return NO_SLOT;
}

static rosa_status too_many_alike(rosa_error *err)
{
	return rosa_fail(err, ROSA_EFORMAT,
			 "more than %d tokens have nearly the same hash; the file was made to be slow", MOST_PROBES);
}

/* A table of `room` slots, a power of two, with what the old one held. */
static rosa_status set_room(struct vocabulary *vocabulary, size_t room, rosa_error *err)
{
	struct vocabulary wider = *vocabulary;

	wider.slots_room = room;
	wider.slots = calloc(wider.slots_room, sizeof(*wider.slots));
	if (!wider.slots)
		return no_memory(err);
	for (size_t i = 0; i < vocabulary->slots_room; i++) {
		uint32_t taken = vocabulary->slots[i];
		if (!taken)
			continue;
		const struct token *token = &wider.tokens[taken - 1];
		size_t slot = slot_of(&wider, wider.bytes + token->key, token->key_length);
		if (slot == NO_SLOT) {
			free(wider.slots);
			return too_many_alike(err);
		}
		wider.slots[slot] = taken;
	}
	free(vocabulary->slots);
	*vocabulary = wider;
	return ROSA_OK;
}

static rosa_status widen(struct vocabulary *vocabulary, rosa_error *err)
{
	if (vocabulary->taken * 2 < vocabulary->slots_room)
		return ROSA_OK;
	return set_room(vocabulary, vocabulary->slots_room ? vocabulary->slots_room * 2 : 4096, err);
}

/* ------------------------------------------------------------------------------------------------------ outside -- */

rosa_status vocabulary_expect(struct vocabulary *vocabulary, size_t tokens, rosa_error *err)
{
	size_t room = 4096;

	while (room < 2 * tokens && room < TOKEN_ID_LIMIT)
		room *= 2;
	return vocabulary->slots_room >= room ? ROSA_OK : set_room(vocabulary, room, err);
}

rosa_status vocabulary_add_spelled(struct vocabulary *vocabulary, uint32_t id, const char *spelling, size_t size,
				   rosa_error *err)
{
	rosa_status status = reserve_id(vocabulary, id, err);
	size_t length;

	if (!status && vocabulary->tokens[id].flags & TOKEN_THERE)
		status = rosa_fail(err, ROSA_EFORMAT, "token id %u is there twice", (unsigned)id);
	if (!status)
		status = reserve_bytes(vocabulary, size, err);
	if (status)
		return status;
	if (!spelling_bytes(spelling, size, vocabulary->bytes + vocabulary->used, &length))
		return vocabulary_add_raw(vocabulary, id, spelling, size, 0, err);
	status = widen(vocabulary, err);
	if (status)
		return status;
	size_t slot = slot_of(vocabulary, vocabulary->bytes + vocabulary->used, length);
	if (slot == NO_SLOT)
		return too_many_alike(err);
	if (vocabulary->slots[slot])
		return rosa_fail(err, ROSA_EFORMAT, "tokens %u and %u are the same: '%.*s'",
				 (unsigned)vocabulary->slots[slot] - 1, (unsigned)id, size < 64 ? (int)size : 64,
				 spelling);
	take_bytes(vocabulary, id, length);
	vocabulary->tokens[id].key = vocabulary->tokens[id].start;
	vocabulary->tokens[id].key_length = (uint32_t)length;
	vocabulary->slots[slot] = id + 1;
	vocabulary->taken++;
	return ROSA_OK;
}

rosa_status vocabulary_add_raw(struct vocabulary *vocabulary, uint32_t id, const char *bytes, size_t size, int flags,
			       rosa_error *err)
{
	rosa_status status = reserve_id(vocabulary, id, err);

	if (!status)
		status = reserve_bytes(vocabulary, size, err);
	if (status)
		return status;
	const struct token *token = &vocabulary->tokens[id];
	if (!(token->flags & TOKEN_THERE && token->length == size &&
	      memcmp(vocabulary_bytes(vocabulary, id), bytes, size) == 0)) {
		if (size)
			memcpy(vocabulary->bytes + vocabulary->used, bytes, size);
		take_bytes(vocabulary, id, size);
	}
	vocabulary->tokens[id].flags |= (uint8_t)flags;
	return ROSA_OK;
}

uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t size)
{
	size_t slot = vocabulary->slots_room ? slot_of(vocabulary, bytes, size) : NO_SLOT;

	return slot == NO_SLOT || !vocabulary->slots[slot] ? NO_TOKEN : vocabulary->slots[slot] - 1;
}

uint32_t vocabulary_find_spelled(const struct vocabulary *vocabulary, const char *spelling, size_t size)
{
	char some[256], *bytes = size <= sizeof(some) ? some : malloc(size);
	uint32_t id = NO_TOKEN;
	size_t length;

	if (bytes && spelling_bytes(spelling, size, bytes, &length))
		id = vocabulary_find(vocabulary, bytes, length);
	if (bytes != some)
		free(bytes);
	return id;
}

void vocabulary_free(struct vocabulary *vocabulary)
{
	free(vocabulary->bytes);
	free(vocabulary->tokens);
	free(vocabulary->slots);
	*vocabulary = (struct vocabulary){0};
}
