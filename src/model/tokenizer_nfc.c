/*
 * Unicode's normal form C, as Hugging Face's tokenizers computes it.
 *
 * Nearly all text is in normal form already. Most characters never combine with the character before them; those are
 * called plain here. A text is cut into stretches, each of which begins with a plain character, and only stretches that
 * contain other characters are normalised, by utf8proc. English text never needs it.
 *
 * The reference uses the combining classes of Unicode 9. It treats marks that were added later as letters: they neither
 * move nor combine. To give the same results they are treated so here too, and stretches end at them. They are listed
 * below, as found by comparing both for every code point after letters and after marks of low and high class; the last
 * entry is the second half of the one composition (U+11938) that was added after Unicode 9.
 */
#include "model/tokenizer_nfc.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#ifdef ROSATUNE_UTF8PROC

#include <utf8proc.h>

/* --------------------------------------------------------------------------------------------------- characters -- */

struct range {
	uint32_t first, last;
};

/* By code point. */
static const struct range later_marks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
    {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};

static int compare(const void *key, const void *entry)
{
	uint32_t point = *(const uint32_t *)key;
	const struct range *range = entry;

	return point < range->first ? -1 : point > range->last;
}

static bool is_in(uint32_t point, const struct range *ranges, size_t count)
{
	return bsearch(&point, ranges, count, sizeof(*ranges), compare) != NULL;
}

/* How a character interacts with its neighbours. */
enum manner {
	PLAIN,     /* in normal form by itself, and nothing before it changes with it: it begins a stretch */
	COMBINING, /* may move, combine with the character before it, or decompose */
	ALONE      /* a stretch of its own */
};

/* The largest ranges of plain characters: common scripts, symbols and private use. */
static const struct range plain[] = {
    {0x0, 0x2ff},       {0x388, 0x482},     {0x48a, 0x590},   {0x5be, 0x5be},   {0x5c6, 0x5c6},   {0x5c8, 0x60f},
    {0x61b, 0x64a},     {0x660, 0x66f},     {0x671, 0x6d5},   {0x904, 0x93b},   {0xe40, 0xe47},   {0xe50, 0xeb7},
    {0x1e00, 0x1f70},   {0x2002, 0x20cf},   {0x20f1, 0x2125}, {0x212c, 0x2328}, {0x232b, 0x2adb}, {0x2add, 0x2cee},
    {0x3000, 0x3029},   {0x3030, 0x3098},   {0x309b, 0xa66e}, {0xac00, 0xd7a3}, {0xe000, 0xf8ff}, {0xfe30, 0x101fc},
    {0x1f000, 0x1fbff}, {0x20000, 0x2a6df},
};

static enum manner manner_of(uint32_t point)
{
	if (is_in(point, plain, sizeof(plain) / sizeof(plain[0])))
		return PLAIN;
	return is_in(point, later_marks, sizeof(later_marks) / sizeof(later_marks[0])) ? ALONE : COMBINING;
}

/* ---------------------------------------------------------------------------------------------------- stretches -- */

struct output {
	char *text; /* NULL: nothing has differed yet */
	size_t used, room;
};

static bool append(struct output *output, const char *text, size_t size)
{
	if (!ARRAY_RESERVE(output->text, output->room, output->used + size + 1))
		return false;
	memcpy(output->text + output->used, text, size);
	output->used += size;
	return true;
}

/* One number for the class, the place and the code point of a mark: sorting by it keeps the order within a class. */
static uint64_t sort_key(int32_t point, size_t place)
{
	return (uint64_t)utf8proc_get_property(point)->combining_class << 56 | (uint64_t)place << 24 | (uint32_t)point;
}

static int compare_keys(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

/* Sorts marks in a row by class. utf8proc does it in quadratic time. */
static bool order_marks(utf8proc_int32_t *points, size_t count)
{
	uint64_t some[64], *keys = count <= 64 ? some : malloc(count * sizeof(*keys));

	if (!keys)
		return false;
	for (size_t start = 0, end; start < count; start = end + (end == start)) {
		for (end = start; end < count; end++) {
			keys[end] = sort_key(points[end], end);
			if (!(keys[end] >> 56))
				break;
		}
		if (end - start > 1)
			qsort(keys + start, end - start, sizeof(*keys), compare_keys);
		for (size_t i = start; i < end; i++)
			points[i] = (utf8proc_int32_t)(keys[i] & 0x1fffff);
	}
	if (keys != some)
		free(keys);
	return true;
}

/* The code points of a stretch, taken apart as far as they come: up to four for one, which has two bytes or more; only
 * the first may be ASCII. */
static size_t decompose(const char *text, size_t size, utf8proc_int32_t *points)
{
	size_t count = 0, length;

	for (size_t at = 0; at < size; at += length) {
		uint32_t point = utf8_next(text + at, size - at, &length);
		int last = 0;
		count += (size_t)utf8proc_decompose_char((utf8proc_int32_t)point, points + count, 4,
							 UTF8PROC_COMPOSE | UTF8PROC_STABLE, &last);
	}
	return count;
}

/* The normal form of a stretch, in *form; memory to free. */
static bool compose(const char *text, size_t size, char **form, size_t *form_size)
{
	utf8proc_int32_t *points = malloc((2 * size + 4) * sizeof(*points));
	bool done = false;

	*form = NULL;
	if (points) {
		size_t count = decompose(text, size, points);
		done = order_marks(points, count);
		if (done)
			count = (size_t)utf8proc_normalize_utf32(points, (utf8proc_ssize_t)count,
								 UTF8PROC_STABLE | UTF8PROC_COMPOSE);
		*form = done ? malloc(4 * count + 1) : NULL;
		done = *form != NULL;
		*form_size = 0;
		for (size_t i = 0; done && i < count; i++)
			*form_size += utf8_put((uint32_t)points[i], *form + *form_size);
	}
	free(points);
	return done;
}

/* Appends the normal form of the stretch from `start` to `end`, and the unchanged text before it, but only if the form
 * differs from the stretch: a text in normal form is never copied. */
static rosa_status normalize(const char *text, size_t start, size_t end, size_t *kept, struct output *output,
			     rosa_error *err)
{
	size_t size;
	char *form;
	bool done = compose(text + start, end - start, &form, &size);

	if (done && (size != end - start || memcmp(form, text + start, size) != 0)) {
		done = append(output, text + *kept, start - *kept) && append(output, form, size);
		*kept = end;
	}
	free(form);
	return done ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "no memory to normalise a text");
}

/* The end of the row of combining characters at `at`. */
static size_t stretch_end(const char *text, size_t size, size_t at)
{
	size_t length;

	while (at < size && manner_of(utf8_next(text + at, size - at, &length)) == COMBINING)
		at += length;
	return at;
}

rosa_status nfc_check(rosa_error *err)
{
	(void)err;
	return ROSA_OK;
}

rosa_status nfc(const char *text, size_t size, char **made, size_t *made_size, rosa_error *err)
{
	struct output output = {0};
	size_t kept = 0, at = 0, before = 0, length; /* `before`: where a stretch that reaches `at` would begin */
	rosa_status status = ROSA_OK;

	*made = NULL;
	while (!status && at < size) {
		enum manner manner = (uint8_t)text[at] < 0x80 ? (length = 1, PLAIN)
							      : manner_of(utf8_next(text + at, size - at, &length));
		if (manner == COMBINING) {
			length = stretch_end(text, size, at) - at;
			status = normalize(text, before, at + length, &kept, &output, err);
		}
		before = manner == PLAIN ? at : at + length;
		at += length;
	}
	if (!status && output.text && !append(&output, text + kept, size - kept))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to normalise a text");
	if (status) {
		free(output.text);
		return status;
	}
	*made = output.text;
	*made_size = output.used;
	return ROSA_OK;
}

#else

rosa_status nfc_check(rosa_error *err)
{
	return rosa_fail(err, ROSA_EINVAL,
			 "this build cannot normalise texts: install libutf8proc-dev and build again");
}

rosa_status nfc(const char *text, size_t size, char **made, size_t *made_size, rosa_error *err)
{
	(void)text, (void)size, (void)made_size;
	*made = NULL;
	return nfc_check(err);
}

#endif
