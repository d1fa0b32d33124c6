/*
 * The two large parts of a tokenizer.json, read without building a tree of them.
 *
 * The vocabulary and the merges are all but a few kilobytes of a file of ten megabytes: 450,000 strings in Qwen3's. A
 * tree of them would take a third of a second and 100 MB, and be read only once. So these two are read in place; they
 * consist of strings, whole numbers, commas and brackets only. The rest of the file goes to the JSON reader, with a
 * null in their places, and that reader checks that the rest is JSON.
 */
#include "model/tokenizer_scan.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *at, const char *end)
{
	while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
		at++;
	return at;
}

/* Behind the closing quote of a string that begins at `at`; `end` if it has none. */
static const char *skip_string(const char *at, const char *end)
{
	for (at++; at < end && *at != '"'; at++) {
		if (*at == '\\' && at + 1 < end)
			at++;
	}
	return at < end ? at + 1 : end;
}

/* Behind the value at `at`: brackets are counted, and strings passed over, in which they do not count. */
static const char *skip_value(const char *at, const char *end)
{
	size_t depth = 0;

	while (at < end) {
		if (*at == '"') {
			at = skip_string(at, end);
		} else {
			if ((*at == ',' || *at == '}' || *at == ']') && depth == 0)
				break;
			if (*at == '{' || *at == '[')
				depth++;
			else if (*at == '}' || *at == ']')
				depth--;
			at++;
		}
	}
	return at;
}

/* The next field of an object: its name, without the quotes, and its value. `at` is at the brace or comma before it;
 * NULL if there is none. */
static const char *next_field(const char *at, const char *end, const char **name, size_t *length)
{
	const char *value;

	if (at == end || (*at != '{' && *at != ','))
		return NULL;
	*name = skip_space(at + 1, end);
	if (*name == end || **name != '"')
		return NULL;
	value = skip_string(*name, end);
	*length = (size_t)(value - *name) < 2 ? 0 : (size_t)(value - *name) - 2;
	++*name;
	value = skip_space(value, end);
	return value < end && *value == ':' ? skip_space(value + 1, end) : NULL;
}

static bool is_name(const char *name, size_t length, const char *wished)
{
	return strlen(wished) == length && memcmp(name, wished, length) == 0;
}

void scan_fields(const char *text, size_t size, size_t from, const struct scan_wish *wishes, size_t count)
{
	const char *end = text + size, *at = skip_space(text + from, end), *name, *value;
	size_t length;

	while ((value = next_field(at, end, &name, &length))) {
		at = skip_value(value, end);
		for (size_t i = 0; i < count; i++) {
			if (is_name(name, length, wishes[i].name))
				*wishes[i].field = (struct scan_span){(size_t)(value - text), (size_t)(at - text)};
		}
	}
}

bool scan_field(const char *text, size_t size, size_t from, const char *name, size_t *found)
{
	const char *end = text + size, *at = skip_space(text + from, end), *other, *value;
	size_t length;

	while ((value = next_field(at, end, &other, &length))) {
		if (is_name(other, length, name)) {
			*found = (size_t)(value - text);
			return true;
		}
		at = skip_value(value, end);
	}
	return false;
}

/* ------------------------------------------------------------------------------------------------------ reading -- */

void scan_free(struct scan *scan)
{
	free(scan->buffer[0]);
	free(scan->buffer[1]);
	scan->buffer[0] = scan->buffer[1] = NULL;
}

rosa_status scan_fail(const struct scan *scan, const char *why)
{
	return rosa_fail(scan->err, ROSA_EFORMAT, "%s at byte %zu", why, (size_t)(scan->at - scan->start));
}

bool scan_character(struct scan *scan, char what)
{
	const char *at = skip_space(scan->at, scan->end);

	if (at == scan->end || *at != what)
		return false;
	scan->at = at + 1;
	return true;
}

bool scan_at_end(const struct scan *scan)
{
	return skip_space(scan->at, scan->end) == scan->end;
}

rosa_status scan_number(struct scan *scan, uint64_t *number)
{
	const char *digits = scan->at = skip_space(scan->at, scan->end);

	*number = 0;
	for (; scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
		if (scan->at - digits > 17)
			return scan_fail(scan, "too large a number");
		*number = *number * 10 + (uint64_t)(*scan->at - '0');
	}
	return scan->at > digits ? ROSA_OK : scan_fail(scan, "no whole number");
}

/* Four hexadecimal digits; UTF8_BAD if they are none. */
static uint32_t read_unit(const char *at, const char *end)
{
	uint32_t unit = 0;

	if (end - at < 4)
		return UTF8_BAD;
	for (int i = 0; i < 4; i++) {
		char c = at[i];
		uint32_t digit = c >= '0' && c <= '9'                 ? (uint32_t)(c - '0')
				 : (c | 32) >= 'a' && (c | 32) <= 'f' ? (uint32_t)((c | 32) - 'a' + 10)
								      : 16;
		if (digit == 16)
			return UTF8_BAD;
		unit = unit << 4 | digit;
	}
	return unit;
}

/* A character written as \uXXXX, or two of them; `at` is behind the u. Returns the number of bytes used, 0 if it is
 * none. */
static size_t read_escaped(const char *at, const char *end, uint32_t *point)
{
	*point = read_unit(at, end);
	if (*point == UTF8_BAD || (*point >= 0xdc00 && *point < 0xe000))
		return 0;
	if (*point < 0xd800 || *point > 0xdbff)
		return 4;
	if (end - at < 10 || at[4] != '\\' || at[5] != 'u')
		return 0;
	uint32_t low = read_unit(at + 6, end);
	if (low < 0xdc00 || low > 0xdfff)
		return 0;
	*point = 0x10000 + ((*point - 0xd800) << 10) + (low - 0xdc00);
	return 10;
}

/* Writes what lies between the quotes to `to`, which has as much room; false if an escape is wrong. */
static bool unescape(const char *at, const char *end, char *to, size_t *size)
{
	static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";

	*size = 0;
	while (at < end) {
		if (*at != '\\') {
			to[(*size)++] = *at++;
			continue;
		}
		const char *name = at[1] ? strchr(names, at[1]) : NULL;
		if (name) {
			to[(*size)++] = values[name - names];
			at += 2;
			continue;
		}
		uint32_t point;
		size_t used = at[1] == 'u' ? read_escaped(at + 2, end, &point) : 0;
		if (!used)
			return false;
		*size += utf8_put(point, to + *size);
		at += 2 + used;
	}
	return true;
}

static bool make_room(struct scan *scan, int which, size_t size)
{
	if (scan->room[which] >= size)
		return true;
	free(scan->buffer[which]);
	scan->room[which] = 2 * size + 64;
	scan->buffer[which] = malloc(scan->room[which]);
	if (!scan->buffer[which])
		scan->room[which] = 0;
	return scan->buffer[which] != NULL;
}

rosa_status scan_string(struct scan *scan, int which, const char **text, size_t *size)
{
	const char *open = scan->at = skip_space(scan->at, scan->end), *close;
	bool escapes = false;

	if (open == scan->end || *open != '"')
		return scan_fail(scan, "no string");
	for (close = open + 1; close < scan->end && *close != '"'; close++) {
		if ((uint8_t)*close < 0x20)
			return scan_fail(scan, "a control character in the string");
		if (*close == '\\') {
			escapes = true;
			close++;
		}
	}
	if (close >= scan->end)
		return scan_fail(scan, "no end of the string");
	*text = open + 1;
	*size = (size_t)(close - open - 1);
	if (escapes) {
		if (!make_room(scan, which, *size))
			return rosa_fail(scan->err, ROSA_ENOMEM, "no memory for a string");
		if (!unescape(open + 1, close, scan->buffer[which], size))
			return scan_fail(scan, "a wrong escape in the string");
		*text = scan->buffer[which];
	}
	if (utf8_valid(*text, *size) != *size)
		return scan_fail(scan, "bytes that are not UTF-8 in the string");
	scan->at = close + 1;
	return ROSA_OK;
}
