/*
 * The symbols that a route really uses.
 *
 * Symbols have M bits, but a trained route often uses few of the 2^M values. Packed as they are, each would tell little
 * apart and take much room: a word would hold 4 symbols of 16 bits where it could hold 32 of 2 bits, and a table of
 * short strings would be mostly empty. So a route numbers its symbols in the order of their first appearance, in the
 * query or in the key, and keeps these codes, of as few bits as there are different symbols. Equal symbols have equal
 * codes and different ones different codes, and nothing else about symbols matters to retrieval.
 *
 * When the codes run out they get a bit more. With more than 2^ALPHABET_BITS symbols there are no codes any more: every
 * symbol is its own code. Symbols of more than 16 bits keep codes as long as these are shorter, since a text uses a
 * small part of a vocabulary.
 */
#pragma once

#include "base/memory.h"
#include "retrieval/symbol_array.h"

#include <stdbool.h>
#include <stdint.h>

#define ALPHABET_BITS 8 /* of the widest code, for symbols of up to 16 bits */
#define ALPHABET_NONE UINT32_MAX

struct alphabet {
	unsigned symbol_bits;
	unsigned width;   /* bits of a code; symbol_bits: a symbol is its own code */
	unsigned count;   /* codes given out */
	uint32_t *symbol; /* [2^width] of each code; behind them the hash table [slots]: code + 1, or 0 */
};

/* No symbols, no memory. */
struct alphabet alphabet_for(unsigned symbol_bits);
void alphabet_free(struct alphabet *alphabet, const rosa_allocator *allocator);
bool alphabet_copy(struct alphabet *to, const struct alphabet *from, const rosa_allocator *allocator);
size_t alphabet_bytes(const struct alphabet *alphabet);

/* The same symbols with codes of the next width. False if memory is short; then nothing has changed. */
bool alphabet_widen(const struct alphabet *from, struct alphabet *to, const rosa_allocator *allocator);

/* Give codes to the symbols, from number `from` on. The number of the first that there is no code left for; `count`:
 * there were enough. */
size_t alphabet_learn(struct alphabet *alphabet, const void *symbols, size_t from, size_t count);

static inline bool alphabet_is_plain(const struct alphabet *alphabet)
{
	return alphabet->width == alphabet->symbol_bits;
}

/* Slots of the hash table, in bits. There are many, since a look-up that has to try a second one mispredicts a branch.
 */
static inline unsigned alphabet_slot_bits(unsigned width)
{
	return width < 5 ? 8 : width <= ALPHABET_BITS ? width + 3 : width + 2;
}

static inline uint32_t *alphabet_slot(const struct alphabet *alphabet, unsigned symbol)
{
	const unsigned slot_bits = alphabet_slot_bits(alphabet->width);
	uint32_t *const table = alphabet->symbol + ((size_t)1 << alphabet->width);
	unsigned i = symbol * 0x9e3779b1u >> (32 - slot_bits);

	while (table[i] && alphabet->symbol[table[i] - 1] != symbol)
		i = (i + 1) & ((1u << slot_bits) - 1);
	return &table[i];
}

/* The code of a symbol; ALPHABET_NONE: it has not occurred. */
static inline uint32_t alphabet_code(const struct alphabet *alphabet, unsigned symbol)
{
	if (alphabet_is_plain(alphabet))
		return symbol;
	return alphabet->symbol ? *alphabet_slot(alphabet, symbol) - 1u : ALPHABET_NONE;
}

/* The symbol of a code. */
static inline unsigned alphabet_symbol(const struct alphabet *alphabet, unsigned code)
{
	return alphabet_is_plain(alphabet) ? code : alphabet->symbol[code];
}
