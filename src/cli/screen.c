/*
 * Text on a terminal.
 *
 * A model can be made to output any bytes, and a terminal executes some of them as commands: to rename its window, to
 * put text into the clipboard, to send input. So they are escaped on a terminal; a pipe or a file gets them unchanged.
 */
#include "cli/screen.h"

#include "base/utf8.h"
#include "cli/text_input.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_ESCAPE 16 /* bytes that utf8_printable writes for one character, and its end */

/* The control characters C0, DEL and C1, except newline and tab. */
static bool is_order(uint32_t point)
{
	if (point == '\n' || point == '\t')
		return false;
	return point == UTF8_BAD || point < 0x20 || (point >= 0x7f && point < 0xa0);
}

bool screen_print_escaped(const char *text, size_t size, rosa_error *why)
{
	size_t plain = 0, length;
	bool good = true;

	for (size_t at = 0; good && at < size; at += length) {
		char escaped[LONGEST_ESCAPE * 4];
		if (!is_order(utf8_next(text + at, size - at, &length)))
			continue;
		size_t count = utf8_printable(escaped, sizeof(escaped), text + at, length);
		good = text_print(text + plain, at - plain, why) && text_print(escaped, count, why);
		plain = at + length;
	}
	return good && text_print(text + plain, size - plain, why);
}

bool screen_print(const char *text, size_t size, rosa_error *why)
{
	return isatty(STDOUT_FILENO) ? screen_print_escaped(text, size, why) : text_print(text, size, why);
}

char *screen_name(const char *text)
{
	size_t size = strlen(text), room = size * LONGEST_ESCAPE + 1;
	char *shown = room > size ? malloc(room) : NULL;

	if (shown)
		utf8_printable(shown, room, text, size);
	return shown;
}
