/*
 * Added tokens: pieces of text that are tokens before anything else happens to it.
 *
 * Llama 3 has 256 of them that begin alike, so looking at one after the other at each '<' is not enough. They lie
 * sorted, and sorted words are a trie: those that share the first n bytes are neighbours, and each further byte of the
 * text narrows them down by a binary search. The last one that was met whole is the longest. Most bytes of a text begin
 * no added token at all and are passed over by a table.
 *
 * The rest follows what Hugging Face's tokenizers does, odd ends included: a special token that is not asked for, or a
 * single word beside a letter, is passed over whole, without a look at what may lie inside.
 */
#include "model/tokenizer_added.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#ifdef ROSATUNE_UTF8PROC
#include <utf8proc.h>
#endif

/* ---------------------------------------------------------------------------------------------------------- the list
 * -- */

rosa_status added_put(struct added_tokens *added, const struct added_token *token, rosa_error *err)
{
	struct added_token copy = *token;

	if (!token->size)
		return ROSA_OK;
	if (added->count == added->room) {
		size_t room = added->room ? 2 * added->room : 64;
		struct added_token *larger = realloc(added->all, room * sizeof(*larger));
		if (!larger)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the added tokens");
		added->all = larger;
		added->room = room;
	}
	copy.content = malloc(token->size);
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

void added_finish(struct added_tokens *added)
{
	if (added->count)
		qsort(added->all, added->count, sizeof(*added->all), compare);
}

void added_free(struct added_tokens *added)
{
	for (size_t i = 0; i < added->count; i++)
		free(added->all[i].content);
	free(added->all);
	*added = (struct added_tokens){0};
}

/* ------------------------------------------------------------------------------------------------------- search -- */

/* The first of all[low..high), which share `depth` bytes, whose next byte is not below `byte`. */
static size_t lower(const struct added_tokens *added, size_t low, size_t high, size_t depth, int byte)
{
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct added_token *token = &added->all[middle];
		int its = token->size > depth ? (uint8_t)token->content[depth] : -1;
		if (its < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest token that stands at the beginning of a text; NULL: none. */
static const struct added_token *longest(const struct added_tokens *added, const char *text, size_t size)
{
	const struct added_token *found = NULL;
	size_t low = 0, high = added->count;

	for (size_t depth = 0; depth < size && low < high; depth++) {
		int byte = (uint8_t)text[depth];
		low = lower(added, low, high, depth, byte);
		high = lower(added, low, high, depth, byte + 1);
		/* the shortest comes first */
		if (low < high && added->all[low].size == depth + 1)
			found = &added->all[low];
	}
	return found;
}

/* --------------------------------------------------------------------------------------------------------- neighbours
 * -- */

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

static size_t strip_left(const char *text, size_t at)
{
	size_t start;

	while (at > 0 && is_space(before(text, at, &start)))
		at = start;
	return at;
}

static size_t strip_right(const char *text, size_t size, size_t at)
{
	size_t length;

	while (at < size && is_space(utf8_next(text + at, size - at, &length)))
		at += length;
	return at;
}

bool added_find(const struct added_tokens *added, const char *text, size_t size, size_t from, size_t done, bool special,
		struct added_match *match, size_t *next)
{
	for (size_t at = from; added->count && at < size; at++) {
		const struct added_token *token =
		    added->first[(uint8_t)text[at]] ? longest(added, text + at, size - at) : NULL;
		if (!token)
			continue;
		size_t end = at + token->size;
		if ((token->special && !special) || (token->single_word && !stands_alone(text, size, at, end))) {
			at = end - 1;
			continue;
		}
		*next = end;
		*match = (struct added_match){token->id, at, end};
		if (token->lstrip)
			match->start = strip_left(text, at);
		if (match->start < done)
			match->start = done < at ? done : at;
		if (token->rstrip)
			match->end = strip_right(text, size, end);
		return true;
	}
	return false;
}
