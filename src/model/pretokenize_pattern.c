/*
 * Regular expressions of tokenizers, rewritten for PCRE2.
 *
 * tokenizer.json holds expressions for Oniguruma. Most of what tokenizers use has the same meaning in PCRE2, with three
 * exceptions. In PCRE2 \s also matches U+180E, which has not been a space since Unicode 6.3. \p{L} and other properties
 * are those of the library's version of Unicode (see pretokenize_unicode.c). And some syntax looks the same but
 * differs: \h is a hexadecimal digit in Oniguruma and a space in PCRE2, {1,3}+ is greedy in one and possessive in the
 * other, ^ is the start of a line or of the text. A wrong guess would not fail but give other tokens. So only what is
 * known to be the same, or can be made so, is accepted; everything else is refused by name.
 *
 * Sets are written out inside brackets: \s becomes [\t-\r...], and in [^\s\p{L}] the same is inserted. ASCII comes
 * first: PCRE2 keeps it in a bit map, which is checked before everything else.
 */
#include "model/pretokenize_pattern.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_REGEX 4096

struct translation {
	const char *regex;
	size_t size, at;
	char *out;
	size_t used, room;
	bool no_memory;
	rosa_error *err;
};

/* ------------------------------------------------------------------------------------------------------ writing -- */

static void put(struct translation *t, const char *text, size_t size)
{
	if (!ARRAY_RESERVE(t->out, t->room, t->used + size + 1)) {
		t->no_memory = true;
		return;
	}
	if (size)
		memcpy(t->out + t->used, text, size);
	t->used += size;
}

static void put_text(struct translation *t, const char *text)
{
	put(t, text, strlen(text));
}

static void put_range(struct translation *t, uint32_t first, uint32_t last)
{
	char range[40];

	snprintf(range, sizeof(range), "\\x{%x}-\\x{%x}", (unsigned)first, (unsigned)last);
	put_text(t, range);
}

/* The characters of White_Space, as they stand inside brackets. */
static void put_spaces(struct translation *t)
{
	put_text(t, "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}");
}

static void put_category(struct translation *t, const char *name)
{
	char property[16];

	if (strcmp(name, "L") == 0)
		put_text(t, "A-Za-z");
	if (name[0] == 'N' && (!name[1] || name[1] == 'd'))
		put_text(t, "0-9");
	snprintf(property, sizeof(property), "\\p{%s}", name);
	put_text(t, property);
	for (size_t i = 0; i < unicode_additions_count; i++) {
		const struct unicode_range *range = &unicode_additions[i];
		if (strncmp(range->category, name, strlen(name)) == 0)
			put_range(t, range->first, range->last);
	}
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

/* Sees the character `ahead` places on; '\0' beyond the end. */
static char peek(const struct translation *t, size_t ahead)
{
	return t->at + ahead < t->size ? t->regex[t->at + ahead] : '\0';
}

static bool looking_at(const struct translation *t, const char *text)
{
	size_t size = strlen(text);

	return t->size - t->at >= size && memcmp(t->regex + t->at, text, size) == 0;
}

/* Refuses the next `size` characters. */
static rosa_status refuse(const struct translation *t, size_t size, const char *why)
{
	size_t left = t->size - t->at;

	return rosa_fail(t->err, ROSA_EFORMAT, "regular expression: '%.*s' at character %zu %s",
			 (int)(size < left ? size : left), t->regex + t->at, t->at, why);
}

static const char not_supported[] = "is not supported";

/* L, Lu, N, ... : two letters at most, the first one of those that additions are known for. */
static bool is_category(const char *name)
{
	static const char *const second[] = {
	    ['L'] = "ultmo", ['M'] = "nce", ['N'] = "dlo", ['P'] = "cdseifo", ['S'] = "mcko", ['Z'] = "slp"};
	unsigned char first = (unsigned char)name[0];

	if (first >= sizeof(second) / sizeof(second[0]) || !second[first])
		return false;
	return !name[1] || (strchr(second[first], name[1]) && !name[2]);
}

/* The category of \p{..} or \P{..}; t->at is at the backslash and goes behind the brace. */
static rosa_status read_category(struct translation *t, char *name, size_t room)
{
	const char *open = t->regex + t->at + 3, *close = NULL;

	if (peek(t, 2) == '{')
		close = memchr(open, '}', t->size - t->at - 3);
	size_t length = close ? (size_t)(close - open) : 0;
	if (!length || length >= room)
		return refuse(t, 16, not_supported);
	memcpy(name, open, length);
	name[length] = '\0';
	if (!is_category(name))
		return refuse(t, length + 4, "is not a general category that is supported here");
	t->at += length + 4;
	return ROSA_OK;
}

/* A set, \s \S \d \D \p{..} \P{..}: its brackets are written unless it stands inside some. */
static rosa_status translate_set(struct translation *t, bool inside)
{
	char kind = peek(t, 1), name[8] = "Nd";
	bool negative = kind == 'S' || kind == 'D' || kind == 'P';
	rosa_status status = ROSA_OK;

	if (negative && inside)
		return refuse(t, 2, "inside brackets is not supported");
	if (kind == 'p' || kind == 'P')
		status = read_category(t, name, sizeof(name));
	else
		t->at += 2;
	if (status)
		return status;
	if (!inside)
		put_text(t, negative ? "[^" : "[");
	if (kind == 's' || kind == 'S')
		put_spaces(t);
	else
		put_category(t, name);
	if (!inside)
		put_text(t, "]");
	else if (peek(t, 0) == '-' && peek(t, 1) != ']')
		return refuse(t, 2, "after a set is not supported");
	return ROSA_OK;
}

static rosa_status translate_escape(struct translation *t, bool inside)
{
	char kind = peek(t, 1);

	if (kind && strchr("sSdDpP", kind))
		return translate_set(t, inside);
	if ((kind && strchr("rntfae", kind)) ||
	    (kind > ' ' && kind < 0x7f && !strchr("<>", kind) && !((kind | 32) >= 'a' && (kind | 32) <= 'z') &&
	     !(kind >= '0' && kind <= '9'))) {
		put(t, t->regex + t->at, 2);
		t->at += 2;
		return ROSA_OK;
	}
	return refuse(t, 2, not_supported);
}

static void copy(struct translation *t, size_t size)
{
	put(t, t->regex + t->at, size);
	t->at += size;
}

static rosa_status translate_brackets(struct translation *t)
{
	copy(t, peek(t, 1) == '^' ? 2 : 1);
	if (peek(t, 0) == ']')
		return refuse(t, 1, "as the first in brackets is not supported");
	while (t->at < t->size) {
		rosa_status status = ROSA_OK;
		char next = peek(t, 0);
		if (next == ']') {
			copy(t, 1);
			return ROSA_OK;
		}
		if (next == '[' || looking_at(t, "&&"))
			return refuse(t, 2, "inside brackets is not supported");
		if (next == '\\')
			status = translate_escape(t, true);
		else
			copy(t, 1);
		if (status)
			return status;
	}
	return refuse(t, 0, "brackets that are never closed");
}

static rosa_status translate_group(struct translation *t)
{
	static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

	for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
		if (looking_at(t, openings[i])) {
			copy(t, strlen(openings[i]));
			return ROSA_OK;
		}
	}
	if (peek(t, 1) == '?' || peek(t, 1) == '*')
		return refuse(t, 4, not_supported);
	copy(t, 1);
	return ROSA_OK;
}

/* {2}, {2,} and {2,5}, greedy. */
static rosa_status translate_counts(struct translation *t)
{
	size_t length = 1, digits = 0, commas = 0;

	for (; (peek(t, length) >= '0' && peek(t, length) <= '9') || peek(t, length) == ','; length++) {
		commas += peek(t, length) == ',';
		digits += !commas;
	}
	if (peek(t, length) != '}' || !digits || commas > 1)
		return refuse(t, length + 1, not_supported);
	length++;
	if (peek(t, length) == '+' || peek(t, length) == '?')
		return refuse(t, length + 1, "differs between Oniguruma and PCRE2");
	copy(t, length);
	return ROSA_OK;
}

static rosa_status translate_next(struct translation *t)
{
	switch (peek(t, 0)) {
	case '\\':
		return translate_escape(t, false);
	case '[':
		return translate_brackets(t);
	case '(':
		return translate_group(t);
	case '{':
		return translate_counts(t);
	case '.':
		t->at++;
		put_text(t, "[^\\n]");
		return ROSA_OK;
	case '^':
	case '$':
	case '\0':
		return refuse(t, 1, not_supported);
	default:
		copy(t, 1);
		return ROSA_OK;
	}
}

rosa_status pattern_translate(const char *regex, size_t size, char **pattern, size_t *pattern_size, rosa_error *err)
{
	struct translation t = {.regex = regex, .size = size, .err = err};
	rosa_status status = ROSA_OK;

	*pattern = NULL;
	if (size > LONGEST_REGEX)
		return rosa_fail(err, ROSA_EFORMAT, "regular expression: %zu characters are too many; at most %d", size,
				 LONGEST_REGEX);
	if (utf8_valid(regex, size) != size)
		return rosa_fail(err, ROSA_EFORMAT, "regular expression: it is not UTF-8");
	put_text(&t, ""); /* something to return for nothing */
	while (!status && t.at < size)
		status = translate_next(&t);
	if (!status && t.no_memory)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for a regular expression");
	if (status) {
		free(t.out);
		return status;
	}
	*pattern = t.out;
	*pattern_size = t.used;
	return ROSA_OK;
}
