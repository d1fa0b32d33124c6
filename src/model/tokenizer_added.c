/*
 * Added tokens: texts that become tokens before any other step.
 *
 * Llama 3 has 256 of them that begin alike, so comparing one after the other at each '<' is not enough. They are kept
 * sorted. A binary search finds the last one that does not come after the text; the longest that the text begins with
 * is that one or one of its own prefixes, and each token knows its longest prefix among the others. Most bytes of a
 * text begin no added token at all and are passed over by a table.
 *
 * The rest does what Hugging Face's tokenizers does, its peculiarities included: a special token where special tokens
 * do not count, or a single word beside a letter, is skipped as a whole, and other tokens inside it are not found.
 */
#include "model/tokenizer_added.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#ifdef ROSATUNE_UTF8PROC
#include <utf8proc.h>
#endif

/* ----------------------------------------------------------------------------------------------------- the list -- */

rosa_status added_put(struct added_tokens *added, const struct added_token *token, rosa_error *err)
{
	struct added_token copy = *token;

	if (!token->size)
		return ROSA_OK;
	if (token->size > ADDED_LONGEST)
		return rosa_fail(err, ROSA_EFORMAT,
				 "the added token %u, '%.32s...', has %zu bytes; at most %d are supported",
				 (unsigned)token->id, token->content, token->size, ADDED_LONGEST);
	copy.content = ARRAY_RESERVE(added->all, added->room, added->count + 1) ? malloc(token->size) : NULL;
	if (!copy.content)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the added tokens");
	memcpy(copy.content, token->content, token->size);
	added->first[(uint8_t)copy.content[0]] = true;
	added->all[added->count++] = copy;
	return ROSA_OK;
}

static int compare(const void *left, const void *right)
{
	const struct added_token *a = left, *b = right;
	int order = memcmp(a->content, b->content, a->size < b->size ? a->size : b->size);

	if (order == 0)
		order = (a->size > b->size) - (a->size < b->size);
	return order ? order : (a->id > b->id) - (a->id < b->id);
}

static bool begins_with(const struct added_token *token, const struct added_token *start)
{
	return token->size >= start->size && memcmp(token->content, start->content, start->size) == 0;
}

static void drop_copies(struct added_tokens *added)
{
	size_t kept = 0;

	for (size_t i = 0; i < added->count; i++) {
		struct added_token *token = &added->all[i];
		if (kept && added->all[kept - 1].size == token->size && begins_with(token, &added->all[kept - 1]))
			free(token->content);
		else
			added->all[kept++] = *token;
	}
	added->count = kept;
}

void added_finish(struct added_tokens *added)
{
	if (added->count)
		qsort(added->all, added->count, sizeof(*added->all), compare);
	drop_copies(added);
	/* In sorted order a prefix of a token is the token before it, or a prefix of that one. */
	for (size_t i = 0; i < added->count; i++) {
		size_t prefix = i;
		while (prefix && !begins_with(&added->all[i], &added->all[prefix - 1]))
			prefix = added->all[prefix - 1].prefix;
		added->all[i].prefix = prefix;
	}
}

void added_free(struct added_tokens *added)
{
	for (size_t i = 0; i < added->count; i++)
		free(added->all[i].content);
	free(added->all);
	*added = (struct added_tokens){0};
}

/* ------------------------------------------------------------------------------------------------------- search -- */

/* How many bytes two texts share at their beginnings, of which the first `from` are known to be the same. */
static size_t shared_bytes(const char *a, size_t a_size, const char *b, size_t b_size, size_t from)
{
	size_t size = a_size < b_size ? a_size : b_size;

	while (size - from >= 32 && memcmp(a + from, b + from, 32) == 0)
		from += 32;
	while (from < size && a[from] == b[from])
		from++;
	return from;
}

/* The longest token that stands at the beginning of a text; NULL: none. What the text shares with the tokens at both
 * ends of the search it shares with all between them, so no byte of it is compared again. */
static const struct added_token *longest(const struct added_tokens *added, const char *text, size_t size)
{
	size_t low = 0, high = added->count, low_shared = 0, high_shared = 0;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct added_token *token = &added->all[middle];
		size_t shared = shared_bytes(token->content, token->size, text, size,
					     low_shared < high_shared ? low_shared : high_shared);
		if (shared == token->size ||
		    (shared < size && (uint8_t)token->content[shared] < (uint8_t)text[shared])) {
			low = middle + 1;
			low_shared = shared;
		} else {
			high = middle;
			high_shared = shared;
		}
	}
	while (low && added->all[low - 1].size > low_shared)
		low = added->all[low - 1].prefix;
	return low ? &added->all[low - 1] : NULL;
}

/* --------------------------------------------------------------------------------------------------- neighbours -- */

static bool is_space(uint32_t point)
{
	return (point >= 9 && point <= 13) || point == ' ' || point == 0x85 || point == 0xa0 || point == 0x1680 ||
	       (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 || point == 0x202f ||
	       point == 0x205f || point == 0x3000;
}

/* \w of Rust's regular expressions: letters, marks, decimal digits, connectors, joiners, and letters in circles and
 * squares, which are symbols by category. */
static bool is_word(uint32_t point)
{
#ifdef ROSATUNE_UTF8PROC
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);

	return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
	       category == UTF8PROC_CATEGORY_PC || point == 0x200c || point == 0x200d ||
	       (point >= 0x24b6 && point <= 0x24e9) || (point >= 0x1f130 && point <= 0x1f149) ||
	       (point >= 0x1f150 && point <= 0x1f169) || (point >= 0x1f170 && point <= 0x1f189);
#else
	return point >= 0x80 || point == '_' || (point >= '0' && point <= '9') ||
	       ((point | 32) >= 'a' && (point | 32) <= 'z');
#endif
}

/* The character that ends at `at` > 0: where it starts, and what it is. */
static uint32_t before(const char *text, size_t at, size_t *start)
{
	size_t length;

	for (*start = at - 1; *start > 0 && ((uint8_t)text[*start] & 0xc0) == 0x80;)
		--*start;
	return utf8_next(text + *start, at - *start, &length);
}

static bool stands_alone(const char *text, size_t size, size_t start, size_t end)
{
	size_t unused;

	return (start == 0 || !is_word(before(text, start, &unused))) &&
	       (end == size || !is_word(utf8_next(text + end, size - end, &unused)));
}

/* Where the spaces before `at` begin, but not before `limit`. */
static size_t strip_left(const char *text, size_t at, size_t limit)
{
	size_t start;

	while (at > limit && is_space(before(text, at, &start)))
		at = start;
	return at;
}

/* Where the spaces after `at` end. A row of spaces may hold many tokens that take in spaces; it is read once. */
static size_t strip_right(struct added_search *search, size_t at)
{
	size_t length;

	if (at < search->spaces_end)
		return search->spaces_end;
	while (at < search->size && is_space(utf8_next(search->text + at, search->size - at, &length)))
		at += length;
	search->spaces_end = at;
	return at;
}

bool added_next(struct added_search *search, struct added_match *match)
{
	const struct added_tokens *added = search->added;
	const char *text = search->text;
	const size_t size = search->size;

	for (size_t at = search->from; added->count && at < size; at++) {
		const struct added_token *token =
		    added->first[(uint8_t)text[at]] ? longest(added, text + at, size - at) : NULL;
		if (!token)
			continue;
		size_t end = at + token->size;
		if ((token->special && !search->special) ||
		    (token->single_word && !stands_alone(text, size, at, end))) {
			at = end - 1;
			continue;
		}
		*match = (struct added_match){token->id, at, end};
		if (token->lstrip && search->done < at)
			match->start = strip_left(text, at, search->done);
		if (token->rstrip)
			match->end = strip_right(search, end);
		search->from = end;
		search->done = match->end;
		return true;
	}
	return false;
}
