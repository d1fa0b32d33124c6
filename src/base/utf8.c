/*
 * UTF-8, strictly.
 *
 * Strictness is a matter of the second byte: after E0, ED, F0 and F4 only some continuation bytes are allowed, which
 * excludes overlong forms, surrogates and code points above U+10FFFF. A bad sequence ends at the first byte that is not
 * allowed. Unicode calls this the "maximal subpart" and recommends to replace it by one U+FFFD. Rust and Python do so,
 * and results must equal theirs.
 */
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* The number of bytes of a character that begins with `first`, and the range of its second byte; 0: no character begins
 * with it. */
static size_t shape(uint8_t first, uint8_t *low, uint8_t *high)
{
	*low = 0x80;
	*high = 0xbf;
	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	if (first < 0xe0)
		return 2;
	if (first < 0xf0) {
		*low = first == 0xe0 ? 0xa0 : 0x80;
		*high = first == 0xed ? 0x9f : 0xbf;
		return 3;
	}
	*low = first == 0xf0 ? 0x90 : 0x80;
	*high = first == 0xf4 ? 0x8f : 0xbf;
	return 4;
}

/* The number of bytes, from the first on, that fit one character; *whole is how many the character has. */
static size_t fitting(const char *text, size_t size, size_t *whole)
{
	uint8_t low, high;
	size_t count = 1;

	*whole = shape((uint8_t)text[0], &low, &high);
	while (count < *whole && count < size && (uint8_t)text[count] >= low && (uint8_t)text[count] <= high) {
		low = 0x80;
		high = 0xbf;
		count++;
	}
	return count;
}

uint32_t utf8_next(const char *text, size_t size, size_t *length)
{
	static const uint8_t mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
	size_t whole;
	uint32_t point;

	*length = fitting(text, size, &whole);
	if (*length != whole)
		return UTF8_BAD;
	point = (uint8_t)text[0] & mask[whole];
	for (size_t i = 1; i < whole; i++)
		point = point << 6 | ((uint8_t)text[i] & 0x3f);
	return point;
}

int utf8_unfinished(const char *text, size_t size)
{
	size_t whole;

	return fitting(text, size, &whole) == size && size < whole;
}

size_t utf8_valid(const char *text, size_t size)
{
	size_t at = 0, length;
	uint64_t eight;

	while (at < size) {
		/* most text is ASCII */
		if (size - at >= sizeof(eight)) {
			memcpy(&eight, text + at, sizeof(eight));
			if (!(eight & 0x8080808080808080u)) {
				at += sizeof(eight);
				continue;
			}
		}
		if (utf8_next(text + at, size - at, &length) == UTF8_BAD)
			return at;
		at += length;
	}
	return size;
}

size_t utf8_characters(const char *text, size_t size)
{
	size_t count = 0;

	for (size_t i = 0; i < size; i++)
		count += ((unsigned char)text[i] & 0xc0) != 0x80;
	return count;
}

size_t utf8_put(uint32_t point, char *to)
{
	if (point < 0x80) {
		to[0] = (char)point;
		return 1;
	}
	size_t length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
	for (size_t i = length - 1; i > 0; i--) {
		to[i] = (char)(0x80 | (point & 0x3f));
		point >>= 6;
	}
	to[0] = (char)((0xf00 >> length & 0xff) | point);
	return length;
}

int utf8_active(uint32_t point)
{
	return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x61c || point == 0x200e ||
	       point == 0x200f || (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
}

/* Writes the escape for an active character or a bad byte and returns its length. */
static size_t escape(char *to, size_t room, uint32_t point, uint8_t byte)
{
	static const char names[] = "abtnvfr"; /* of the control characters from 7 on */

	if (point >= 7 && point < 7 + sizeof(names) - 1)
		return (size_t)snprintf(to, room, "\\%c", names[point - 7]);
	if (point == UTF8_BAD || point < 0x80)
		return (size_t)snprintf(to, room, "\\x%02x", (unsigned)byte);
	return (size_t)snprintf(to, room, "\\u{%x}", (unsigned)point);
}

size_t utf8_printable(char *to, size_t room, const char *text, size_t size)
{
	size_t used = 0, length;

	for (size_t at = 0; at < size; at += length) {
		uint32_t point = utf8_next(text + at, size - at, &length);
		char escaped[16];
		const char *from = text + at;
		size_t count = length;
		if (point == UTF8_BAD || utf8_active(point)) {
			if (point == UTF8_BAD)
				length = 1;
			count = escape(escaped, sizeof(escaped), point, (uint8_t)*from);
			from = escaped;
		}
		if (count >= room - used)
			break;
		memcpy(to + used, from, count);
		used += count;
	}
	to[used] = '\0';
	return used;
}
