/*
 * Writing JSON.
 *
 * The texts have a few kilobytes at most (configurations, headers, lines of a log). They are put together with printf,
 * and strings are escaped. That takes no library, so builds without one can write JSON too. Whether a comma is needed
 * is seen from the last character.
 */
#include "base/json_text.h"

#include "base/array.h"
#include "base/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct json_text *text, size_t more)
{
	text->failed = text->failed || !ARRAY_RESERVE(text->data, text->room, text->size + more + 1);
	return !text->failed;
}

static void add_formatted(struct json_text *text, const char *format, va_list arguments)
{
	va_list again;
	int length;

	va_copy(again, arguments);
	length = vsnprintf(NULL, 0, format, arguments);
	if (length >= 0 && make_room(text, (size_t)length + 1)) {
		vsnprintf(text->data + text->size, (size_t)length + 1, format, again);
		text->size += (size_t)length;
	} else {
		text->failed = true;
	}
	va_end(again);
}

void json_text_add(struct json_text *text, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	add_formatted(text, format, arguments);
	va_end(arguments);
}

/* Bytes at the beginning that stand for themselves. Control characters do not, DEL and C1 (two bytes, the first 0xc2)
 * among them: the text may reach a terminal. */
static size_t plain_bytes(const char *string, const char *end)
{
	const char *at = string;

	for (; at < end; at++) {
		const unsigned char byte = (unsigned char)*at;

		if (byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7f ||
		    (byte == 0xc2 && at + 1 < end && (unsigned char)at[1] < 0xa0))
			break;
	}
	return (size_t)(at - string);
}

void json_text_bytes(struct json_text *text, const char *string, size_t size)
{
	const char *end = string + size;

	json_text_add(text, "\"");
	while (string < end) {
		const size_t plain = plain_bytes(string, end);

		if (plain && make_room(text, plain + 1)) {
			memcpy(text->data + text->size, string, plain);
			text->size += plain;
			text->data[text->size] = '\0';
		}
		string += plain;
		if (string == end)
			break;
		string += (unsigned char)*string == 0xc2; /* the second byte of a C1 is its number */
		json_text_add(text, *string == '"' || *string == '\\' ? "\\%c" : "\\u%04x", (unsigned char)*string);
		string++;
	}
	json_text_add(text, "\"");
}

void json_text_string(struct json_text *text, const char *string)
{
	if (string)
		json_text_bytes(text, string, strlen(string));
	else
		json_text_add(text, "null");
}

/* The shortest form that reads back as the same number: 0.1 rather than 0.10000000000000001. */
static void add_shortest(struct json_text *text, double number, bool narrow)
{
	char shortest[32];

	if (!isfinite(number)) {
		json_text_add(text, "null");
		return;
	}
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(shortest, sizeof(shortest), "%.*g", digits, number);
		if (narrow ? strtof(shortest, NULL) == (float)number : strtod(shortest, NULL) == number)
			break;
	}
	json_text_add(text, "%s", shortest);
}

void json_text_number(struct json_text *text, double number)
{
	add_shortest(text, number, false);
}

void json_text_float(struct json_text *text, float number)
{
	add_shortest(text, (double)number, true);
}

void json_text_key(struct json_text *text, const char *key)
{
	if (text->size && !strchr("{[\n", text->data[text->size - 1]))
		json_text_add(text, ", ");
	if (key) {
		json_text_string(text, key);
		json_text_add(text, ": ");
	}
}

void json_text_open(struct json_text *text, const char *key, char bracket)
{
	json_text_key(text, key);
	json_text_add(text, "%c", bracket);
}

void json_text_close(struct json_text *text, char bracket)
{
	json_text_add(text, "%c", bracket);
}

void json_text_put(struct json_text *text, const char *key, const char *format, ...)
{
	va_list arguments;

	json_text_key(text, key);
	va_start(arguments, format);
	add_formatted(text, format, arguments);
	va_end(arguments);
}

void json_text_put_string(struct json_text *text, const char *key, const char *string)
{
	json_text_key(text, key);
	json_text_string(text, string);
}

void json_text_put_number(struct json_text *text, const char *key, double number)
{
	json_text_key(text, key);
	json_text_number(text, number);
}

void json_text_put_size(struct json_text *text, const char *key, uint64_t size)
{
	json_text_put(text, key, "%" PRIu64, size);
}

void json_text_put_bool(struct json_text *text, const char *key, bool truth)
{
	json_text_put(text, key, "%s", truth ? "true" : "false");
}

rosa_status json_text_save(struct json_text *text, const char *path, const struct file_options *options,
			   rosa_error *err)
{
	const rosa_status status = text->failed ? rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write it", path)
						: file_save(path, text->data, text->size, options, err);

	json_text_free(text);
	return status;
}

void json_text_free(struct json_text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}
