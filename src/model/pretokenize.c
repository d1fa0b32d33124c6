/*
 * The pieces of a text, within which tokens are merged.
 *
 * A step walks from match to match of its regular expression; matches and what lies between become pieces, joined or
 * dropped as its behaviour says, and every piece goes straight on into the next step. Pieces are not collected: a novel
 * has 300,000. Lookahead ends with the piece, so the order of steps matters: "  1" is two spaces and a digit to
 * digits-then-GPT-2, but one space and a spaced digit to GPT-2 alone.
 */
#include "model/pretokenize.h"

#include "model/pretokenize_pattern.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

const char gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pretokenizer_free(struct pretokenizer *pretokenizer)
{
	for (size_t i = 0; i < pretokenizer->count; i++)
		expression_free(&pretokenizer->steps[i].expression);
	*pretokenizer = (struct pretokenizer){0};
}

/* ---------------------------------------------------------------------------------------------------- splitting -- */

/* One call's work. */
struct splitting {
	const struct pretokenizer *pretokenizer;
	struct search *search;
	piece_sink *sink;
	void *context;
	rosa_error *err;
};

static rosa_status split(struct splitting *splitting, size_t i, const char *text, size_t size);

/* A piece that may still grow. */
struct pending {
	size_t start, end;
	bool there, match;
};

static rosa_status pass_on(struct splitting *splitting, size_t i, const char *text, const struct pending *piece)
{
	bool removed = piece->match && splitting->pretokenizer->steps[i].behavior == SPLIT_REMOVED;

	if (!piece->there || removed || piece->start == piece->end)
		return ROSA_OK;
	return split(splitting, i + 1, text + piece->start, piece->end - piece->start);
}

/* The next part of the text, a match or what lies between two. */
static rosa_status take(struct splitting *splitting, size_t i, const char *text, struct pending *pending, size_t start,
			size_t end, bool match)
{
	const struct split_step *step = &splitting->pretokenizer->steps[i];
	bool joins = false;

	match ^= step->invert;
	if (step->behavior == SPLIT_CONTIGUOUS)
		joins = match == pending->match;
	else if (step->behavior == SPLIT_PREVIOUS)
		joins = match && !pending->match;
	else if (step->behavior == SPLIT_NEXT)
		joins = !match && pending->match;
	if (joins && pending->there) {
		pending->end = end;
		pending->match = match;
		return ROSA_OK;
	}
	rosa_status status = pass_on(splitting, i, text, pending);
	*pending = (struct pending){start, end, true, match};
	return status;
}

static size_t character_length(const char *text, size_t at, size_t size)
{
	size_t length = 1;

	while (at + length < size && ((uint8_t)text[at + length] & 0xc0) == 0x80)
		length++;
	return length;
}

static rosa_status split_by(struct splitting *splitting, size_t i, const char *text, size_t size)
{
	const struct expression *expression = &splitting->pretokenizer->steps[i].expression;
	struct pending pending = {0};
	struct search_match match;
	size_t done = 0, from = 0;
	rosa_status status = ROSA_OK;

	while (!status && from <= size) {
		status = search_next(splitting->search, expression, text, size, from, &match, splitting->err);
		if (status || !match.there)
			break;
		if (match.start > done)
			status = take(splitting, i, text, &pending, done, match.start, false);
		if (!status)
			status = take(splitting, i, text, &pending, match.start, match.end, true);
		done = from = match.end;
		if (match.start == match.end)
			from += from < size ? character_length(text, from, size) : 1;
	}
	if (!status && done < size)
		status = take(splitting, i, text, &pending, done, size, false);
	return status ? status : pass_on(splitting, i, text, &pending);
}

static rosa_status with_space(struct splitting *splitting, size_t i, const char *text, size_t size)
{
	char *spaced = malloc(size + 1);
	rosa_status status;

	if (!spaced)
		return rosa_fail(splitting->err, ROSA_ENOMEM, "no memory to split a text");
	spaced[0] = ' ';
	memcpy(spaced + 1, text, size);
	/* it begins with a space now, so this does not come back here */
	status = split(splitting, i, spaced, size + 1);
	free(spaced);
	return status;
}

/* Step i and those after it. */
static rosa_status split(struct splitting *splitting, size_t i, const char *text, size_t size)
{
	const struct pretokenizer *pretokenizer = splitting->pretokenizer;

	if (pretokenizer->prefix_space && i == pretokenizer->space_at && text[0] != ' ')
		return with_space(splitting, i, text, size);
	if (i == pretokenizer->count)
		return splitting->sink(splitting->context, text, size, splitting->err);
	return split_by(splitting, i, text, size);
}

rosa_status pretokenize(const struct pretokenizer *pretokenizer, struct search *search, const char *text, size_t size,
			piece_sink *sink, void *context, rosa_error *err)
{
	struct splitting splitting = {pretokenizer, search, sink, context, err};

	return size ? split(&splitting, 0, text, size) : ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- steps -- */

/* One more step, by a pattern in PCRE2's own language; `shown` is what the model's file calls it. */
static rosa_status add_step(struct pretokenizer *pretokenizer, const char *pattern, size_t size, const char *shown,
			    size_t shown_size, enum split_behavior behavior, bool invert, rosa_error *err)
{
	struct split_step *step = &pretokenizer->steps[pretokenizer->count];

	if (pretokenizer->count == SPLIT_MAX_STEPS)
		return rosa_fail(err, ROSA_EFORMAT, "pre_tokenizer: more than %d steps", SPLIT_MAX_STEPS);
	rosa_status status = expression_compile(&step->expression, pattern, size, shown, shown_size, err);
	if (status)
		return status;
	step->behavior = behavior;
	step->invert = invert;
	pretokenizer->count++;
	return ROSA_OK;
}

rosa_status pretokenizer_add_split(struct pretokenizer *pretokenizer, const char *regex, size_t size,
				   enum split_behavior behavior, bool invert, rosa_error *err)
{
	char *pattern;
	size_t pattern_size;
	rosa_status status = pattern_translate(regex, size, &pattern, &pattern_size, err);

	if (!status)
		status = add_step(pretokenizer, pattern, pattern_size, regex, size, behavior, invert, err);
	free(pattern);
	return status;
}

rosa_status pretokenizer_add_literal(struct pretokenizer *pretokenizer, const char *text, size_t size,
				     enum split_behavior behavior, bool invert, rosa_error *err)
{
	char *pattern = malloc(2 * size + 1);
	size_t used = 0;
	rosa_status status;

	if (!pattern)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a pattern");
	for (size_t i = 0; i < size; i++) {
		/* a backslash makes punctuation itself, and letters something else */
		if (strchr("\\^$.[]|()?*+{}-#", text[i]) && text[i])
			pattern[used++] = '\\';
		pattern[used++] = text[i];
	}
	status = add_step(pretokenizer, pattern, used, text, size, behavior, invert, err);
	free(pattern);
	return status;
}

/* Rust's char::is_numeric, which has the numerals of Unicode 17: those that Oniguruma's \p{N} lacks stand beside it. */
rosa_status pretokenizer_add_digits(struct pretokenizer *pretokenizer, bool individual, rosa_error *err)
{
	static const char digits[] = "[\\p{N}\xf0\x91\xb7\xa0-\xf0\x91\xb7\xa9\xf0\x96\xbf\xb4-\xf0\x96\xbf\xb6]";

	return pretokenizer_add_split(pretokenizer, digits, sizeof(digits) - 1,
				      individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false, err);
}
