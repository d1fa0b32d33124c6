/*
 * Writing JSON.
 *
 * The texts have a few kilobytes at most (configurations, headers, lines of a log). They are put together with printf,
 * and strings are escaped. That takes no library, so builds without one can write JSON too.
 */
#include "base/json_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct json_text *text, size_t more)
{
	const size_t room = 2 * text->room + more + 256;
	char *data;

	if (text->failed || text->size + more < text->room)
		return !text->failed;
	data = realloc(text->data, room);
	text->failed = !data;
	if (!data)
		return false;
	text->data = data;
	text->room = room;
	return true;
}

void json_text_add(struct json_text *text, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0 || !make_room(text, (size_t)length + 1)) {
		text->failed = true;
		return;
	}
	va_start(arguments, format);
	vsnprintf(text->data + text->size, (size_t)length + 1, format, arguments);
	va_end(arguments);
	text->size += (size_t)length;
}

void json_text_string(struct json_text *text, const char *string)
{
	if (!string) {
		json_text_add(text, "null");
		return;
	}
	json_text_add(text, "\"");
	while (*string) {
		const size_t plain = strcspn(string, "\"\\\x01\x02\x03\x04\x05\x06\x07\b\t\n\v\f\r\x0e\x0f\x10\x11\x12"
						     "\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f");

		json_text_add(text, "%.*s", (int)plain, string);
		string += plain;
		if (*string == '"' || *string == '\\')
			json_text_add(text, "\\%c", *string++);
		else if (*string)
			json_text_add(text, "\\u%04x", (unsigned char)*string++);
	}
	json_text_add(text, "\"");
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

void json_text_free(struct json_text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}
