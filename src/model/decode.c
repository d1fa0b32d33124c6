/*
 * Tokens to text, one at a time.
 *
 * A token's bytes may end in the middle of a character, so up to three bytes are held back for the next token. They are
 * written as soon as they cannot become a character any more, each unfinished beginning as one U+FFFD. Replacing
 * invalid bytes in the whole text at once would give the same, so the output does not depend on where tokens end.
 */
#include "model/tokenizer.h"

#include "base/utf8.h"

#include <string.h>

size_t decode_token(const tokenizer *tokenizer, struct decoding *decoding, uint32_t id, bool special, char *out)
{
	size_t size, written = 0, at = 0;
	const char *bytes = tokenizer_bytes(tokenizer, id, &size);

	if (tokenizer_is_special(tokenizer, id) && !special)
		return 0;
	while (at < size) {
		char *held = decoding->held;
		uint32_t point;
		size_t length;

		held[decoding->count++] = bytes[at++];
		if (utf8_unfinished(held, decoding->count))
			continue;
		point = utf8_next(held, decoding->count, &length);
		memcpy(out + written, point == UTF8_BAD ? UTF8_REPLACEMENT : held, point == UTF8_BAD ? 3 : length);
		written += point == UTF8_BAD ? 3 : length;
		/* an invalid sequence ends before the byte that did not fit, which may begin the next character */
		at -= decoding->count - length;
		decoding->count = 0;
	}
	return written;
}

size_t decode_finish(struct decoding *decoding, char *out)
{
	if (!decoding->count)
		return 0;
	decoding->count = 0;
	memcpy(out, UTF8_REPLACEMENT, 3);
	return 3;
}
