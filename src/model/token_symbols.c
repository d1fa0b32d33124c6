/*
 * The symbols of the source `embeddings`.
 *
 * A projection takes width^2 additions per token. A text has far fewer different tokens than steps, so the symbols of a
 * token are computed when it comes first, and kept.
 */
#include "model/token_symbols.h"

#include "base/draw.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t words_of(size_t width)
{
	return (width + 63) / 64;
}

rosa_status token_symbols_new(struct token_symbols *s, const struct tensor *embedding, int bits, uint64_t seed,
			      rosa_error *err)
{
	const size_t vocabulary = embedding->shape[0], width = embedding->shape[1], words = words_of(width);

	*s = (struct token_symbols){.embedding = embedding,
				    .vocabulary = vocabulary,
				    .width = width,
				    .routes = width / (size_t)bits,
				    .bits = bits};
	s->signs = calloc(width, words * sizeof(*s->signs));
	s->table = calloc(vocabulary, s->routes * sizeof(*s->table));
	s->known = calloc(vocabulary, sizeof(*s->known));
	s->row = calloc(width, sizeof(*s->row));
	s->whole = calloc(words * 64, sizeof(*s->whole));
	if (!s->signs || !s->table || !s->known || !s->row || !s->whole) {
		token_symbols_free(s);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the symbols of %zu tokens", vocabulary);
	}
	for (size_t c = 0; c < width; c++)
		for (size_t w = 0; w < words; w++)
			s->signs[c * words + w] = draw_long(seed, c, w);
	return ROSA_OK;
}

void token_symbols_free(struct token_symbols *s)
{
	free(s->signs);
	free(s->table);
	free(s->known);
	free(s->row);
	free(s->whole);
	*s = (struct token_symbols){0};
}

/* s->whole of a token; its sum is returned. An embedding without a finite maximum above 0 has only zeros. */
static int64_t make_whole(struct token_symbols *s, uint32_t token)
{
	const size_t bytes = format_row_bytes(s->embedding->format, s->width);
	float most = 0;
	int64_t sum = 0;

	format_widen(s->embedding->format, (const char *)s->embedding->data + token * bytes, s->width, s->row);
	for (size_t i = 0; i < s->width; i++)
		most = fmaxf(most, fabsf(s->row[i]));
	for (size_t i = 0; i < s->width; i++) {
		const float share = s->row[i] / most * 32767;

		s->whole[i] = most > 0 && fabsf(share) <= 32767 ? (int32_t)rintf(share) : 0;
		sum += s->whole[i];
	}
	return sum;
}

static void make_symbols(struct token_symbols *s, uint32_t token)
{
	const size_t words = words_of(s->width);
	const int64_t all = make_whole(s, token);
	uint16_t *symbols = s->table + token * s->routes;

	for (size_t c = 0; c < s->width; c++) {
		int64_t plus = 0; /* the sum of those with the sign +1 */

		for (size_t w = 0; w < words; w++) {
			const uint64_t signs = s->signs[c * words + w];
			const int32_t *whole = s->whole + 64 * w;
			int32_t sum = 0;

			for (unsigned i = 0; i < 64; i++)
				sum += whole[i] & -(int32_t)(signs >> i & 1);
			plus += sum;
		}
		if (2 * plus > all)
			symbols[c / (size_t)s->bits] |= (uint16_t)(1 << c % (size_t)s->bits);
	}
	s->known[token] = true;
}

void token_symbols_forget(struct token_symbols *s)
{
	memset(s->known, 0, s->vocabulary * sizeof(*s->known));
	memset(s->table, 0, s->vocabulary * s->routes * sizeof(*s->table));
}

void token_symbols_get(struct token_symbols *s, size_t steps, const uint32_t *tokens, uint16_t *to)
{
	for (size_t t = 0; t < steps; t++) {
		const uint16_t *symbols = s->table + tokens[t] * s->routes;

		if (!s->known[tokens[t]])
			make_symbols(s, tokens[t]);
		for (size_t r = 0; r < s->routes; r++)
			to[r * steps + t] = symbols[r];
	}
}
