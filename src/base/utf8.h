/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define UTF8_BAD         UINT32_MAX
#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* One character from `size` > 0 bytes: its code point, or UTF8_BAD. *length is the number of bytes of the character or,
 * if there is none, of the longest prefix of a character, at least one byte. Rust and Python replace each such prefix
 * by one U+FFFD. */
uint32_t utf8_next(const char *text, size_t size, size_t *length);

/* Whether `size` bytes, 1 to 3, are a proper prefix of a character. */
int utf8_unfinished(const char *text, size_t size);

/* The number of bytes before the first that is not part of a complete character: `size` if all are. */
size_t utf8_valid(const char *text, size_t size);

/* Characters of a valid text. */
size_t utf8_characters(const char *text, size_t size);

/* Writes a code point (up to 4 bytes) and returns its length. */
size_t utf8_put(uint32_t point, char *to);

/* Whether a terminal would act on a character instead of showing it: control characters (C0, DEL and C1), marks and
 * overrides of the writing direction, and separators of lines and paragraphs. */
int utf8_active(uint32_t point);

/* Copies a text so that a terminal shows it and obeys nothing in it: active characters and bytes that are not UTF-8
 * become escapes (\n, \x1b, \u{202e}). Everything else, a backslash included, stays as it is, so that a text copied
 * twice is the same as copied once. Writes at most `room` > 0 bytes, the terminating NUL included, and cuts only
 * between characters. Returns the length of what it wrote. */
size_t utf8_printable(char *to, size_t room, const char *text, size_t size);
