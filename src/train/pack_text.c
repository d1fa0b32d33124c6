/*
 * Where a text can be cut.
 *
 * A tokenizer first splits a text into words and then merges bytes within words only. If a cut falls between two words,
 * and the words before it do not depend on what follows, the tokens of the two parts are those of the whole. Where that
 * is so depends on the tokenizer: GPT-2's joins the last of several spaces to the next word, Qwen's joins line ends to
 * the punctuation before them, and either may look ahead to see whether more spaces follow.
 *
 * With both, a cut just before or just after a single line end that has no spaces on either side changes nothing. These
 * are the places that are tried. Since other tokenizers may behave differently, each place is tested before it is used:
 * a few kilobytes around it must give the same tokens in one piece and in two. Words are short compared with that, so
 * text further away makes no difference. A text without such a place is not cut at all.
 */
#include "train/pack_text.h"

#include <string.h>

#define AROUND   ((size_t)2048) /* bytes on each side that a place is tested with */
#define ATTEMPTS 64

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Back to the first byte of a character. */
static size_t character(const char *text, size_t at)
{
	while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
		at--;
	return at;
}

/* Appends. Without memory the test fails, and so will the packing itself soon after. */
static bool encode(const tokenizer *tokenizer, const char *text, size_t size, bool special, struct tokens *tokens)
{
	return tokenizer_encode(tokenizer, text, size, special, tokens, NULL) == ROSA_OK;
}

/* Does the text from `first` to `end` give the same tokens when it is cut at `at`? */
static bool changes_nothing(const tokenizer *tokenizer, const char *text, size_t first, size_t at, size_t end,
			    bool special)
{
	struct tokens whole = {0}, parts = {0};
	bool same = encode(tokenizer, text + first, end - first, special, &whole) &&
		    encode(tokenizer, text + first, at - first, special, &parts) &&
		    encode(tokenizer, text + at, end - at, special, &parts);

	same =
	    same && whole.count == parts.count && memcmp(whole.ids, parts.ids, whole.count * sizeof(*whole.ids)) == 0;
	tokens_free(&whole);
	tokens_free(&parts);
	return same;
}

size_t pack_text_cut(const tokenizer *tokenizer, const char *text, size_t size, bool special)
{
	int attempts = 0;

	if (size < 4 * AROUND)
		return 0;
	for (size_t i = size - AROUND; i > size / 2 && attempts < ATTEMPTS; i--) {
		if (text[i] != '\n' || is_space(text[i - 1]) || is_space(text[i + 1]))
			continue;
		size_t first = character(text, i - AROUND), end = character(text, i + AROUND - 1);
		for (size_t at = i; at <= i + 1; at++) {
			attempts++;
			if (changes_nothing(tokenizer, text, first, at, end, special))
				return at;
		}
	}
	return 0;
}
