/* Numbering the symbols of a route. The overview is in alphabet.h. */
#include "retrieval/alphabet.h"

#define FIRST_WIDTH 1

static size_t size_of(unsigned width)
{
	return (((size_t)1 << width) + ((size_t)1 << alphabet_slot_bits(width))) * sizeof(uint32_t);
}

/* Of the widest code that is shorter than a symbol. */
static unsigned most_bits(unsigned symbol_bits)
{
	return symbol_bits > 16 ? symbol_bits - 1 : ALPHABET_BITS;
}

/* Codes of 15 bits are left out: a word holds three of them, and four of 16. */
static unsigned next_width(const struct alphabet *alphabet)
{
	const unsigned next = alphabet->width == 14 ? 16 : alphabet->width + 1;

	return next <= most_bits(alphabet->symbol_bits) ? next : alphabet->symbol_bits;
}

struct alphabet alphabet_for(unsigned symbol_bits)
{
	return (struct alphabet){.symbol_bits = symbol_bits,
				 .width = symbol_bits > FIRST_WIDTH ? FIRST_WIDTH : symbol_bits};
}

void alphabet_free(struct alphabet *alphabet, const rosa_allocator *allocator)
{
	memory_free(allocator, alphabet->symbol);
	alphabet->symbol = NULL;
}

size_t alphabet_bytes(const struct alphabet *alphabet)
{
	return alphabet->symbol ? size_of(alphabet->width) : 0;
}

bool alphabet_copy(struct alphabet *to, const struct alphabet *from, const rosa_allocator *allocator)
{
	*to = *from;
	if (!from->symbol)
		return true;
	to->symbol = memory_resize(allocator, NULL, size_of(from->width));
	if (to->symbol)
		memcpy(to->symbol, from->symbol, size_of(from->width));
	return to->symbol != NULL;
}

bool alphabet_widen(const struct alphabet *from, struct alphabet *to, const rosa_allocator *allocator)
{
	*to = *from;
	to->symbol = NULL;
	if (from->symbol)
		to->width = next_width(from);
	if (alphabet_is_plain(to))
		return true;
	to->symbol = memory_resize(allocator, NULL, size_of(to->width));
	if (!to->symbol)
		return false;
	memset(to->symbol, 0, size_of(to->width));
	for (unsigned code = 0; code < from->count; code++) {
		*alphabet_slot(to, from->symbol[code]) = code + 1;
		to->symbol[code] = from->symbol[code];
	}
	return true;
}

size_t alphabet_learn(struct alphabet *alphabet, const void *symbols, size_t from, size_t count)
{
	const unsigned bits = alphabet->symbol_bits;

	if (alphabet_is_plain(alphabet))
		return count;
	if (!alphabet->symbol)
		return from;
	for (size_t i = from; i < count; i++) {
		const uint32_t symbol = symbol_get(symbols, bits, i);
		uint32_t *const slot = alphabet_slot(alphabet, symbol);

		if (*slot)
			continue;
		if (alphabet->count >> alphabet->width)
			return i;
		alphabet->symbol[alphabet->count++] = symbol;
		*slot = alphabet->count;
	}
	return count;
}
