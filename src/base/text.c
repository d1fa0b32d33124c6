/* Text from outside is checked once, where it is read: only there are the name of the file and the place in it known.
 */
#include "base/text.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Appends bytes as they are. There is always room for the terminator. */
static rosa_status add(struct text *text, const char *bytes, size_t size, rosa_error *err)
{
	if (!ARRAY_RESERVE(text->data, text->room, text->size + size + 1))
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for a text of %zu bytes", text->size + size);
	if (size)
		memcpy(text->data + text->size, bytes, size);
	text->size += size;
	text->data[text->size] = '\0';
	return ROSA_OK;
}

rosa_status text_append(struct text *text, const char *name, const char *bytes, size_t size, bool lossy,
			rosa_error *err)
{
	for (size_t at = 0;;) {
		const size_t good = utf8_valid(bytes + at, size - at);
		size_t bad;
		rosa_status status;

		if (at + good < size && !lossy)
			return rosa_fail(err, ROSA_EFORMAT,
					 "%s: byte %zu (0x%02x) is not UTF-8; convert the text, or read such bytes as "
					 "U+FFFD with --lossy",
					 name, at + good, (unsigned char)bytes[at + good]);
		status = add(text, bytes + at, good, err);
		at += good;
		if (status != ROSA_OK || at == size)
			return status;
		utf8_next(bytes + at, size - at, &bad);
		status = add(text, UTF8_REPLACEMENT, strlen(UTF8_REPLACEMENT), err);
		if (status != ROSA_OK)
			return status;
		at += bad;
	}
}

void text_free(struct text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}
