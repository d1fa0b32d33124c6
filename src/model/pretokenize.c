/*
 * The pieces of a text, within which tokens are merged.
 *
 * A step walks from match to match of its regular expression; matches and what lies between become pieces, joined or
 * dropped as its behaviour says, and every piece goes straight on into the next step. Nothing is collected: a novel is
 * 300,000 pieces. Lookahead ends with the piece, so the order of steps matters: "  1" is two spaces and a digit to
 * digits-then-GPT-2, but one space and a spaced digit to GPT-2 alone.
 *
 * Expressions are compiled to machine code where PCRE2 can. That code has 32 KB of stack to backtrack on and a limit on
 * its work; expressions of tokenizers hardly use any, but ten million spaces do, and a file may bring an expression of
 * its own. Then the match is tried again with more. What fails even so is an error, and says so: a text must not be cut
 * wrongly in silence.
 */
#include "model/pretokenize.h"

#include "model/pretokenize_pattern.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

const char gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#ifdef ROSATUNE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MOST_STACK ((size_t)64 << 20)

/* ---------------------------------------------------------------------------------------------------- compiling -- */

/* A pattern in PCRE2's own language. */
static rosa_status add_pattern(struct pretokenizer *pretokenizer, const char *pattern, size_t size,
			       enum split_behavior behavior, bool invert, rosa_error *err)
{
	struct split_step *step = &pretokenizer->steps[pretokenizer->count];
	PCRE2_SIZE where;
	int code;

	if (pretokenizer->count == SPLIT_MAX_STEPS)
		return rosa_fail(err, ROSA_EFORMAT, "pre_tokenizer: more than %d steps", SPLIT_MAX_STEPS);
	step->code = pcre2_compile((PCRE2_SPTR)pattern, size, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
				   &where, NULL);
	if (!step->code) {
		char why[128] = "";
		pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
		return rosa_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? ROSA_ENOMEM : ROSA_EFORMAT,
				 "regular expression: PCRE2 says: %s", why);
	}
	step->jit = pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE) == 0;
	step->behavior = behavior;
	step->invert = invert;
	pretokenizer->count++;
	return ROSA_OK;
}

void pretokenizer_free(struct pretokenizer *pretokenizer)
{
	for (size_t i = 0; i < pretokenizer->count; i++)
		pcre2_code_free(pretokenizer->steps[i].code);
	*pretokenizer = (struct pretokenizer){0};
}

/* ----------------------------------------------------------------------------------------------------- matching -- */

/* One call's work. */
struct splitting {
	const struct pretokenizer *pretokenizer;
	pcre2_match_data *matches[SPLIT_MAX_STEPS];
	pcre2_match_context *limits; /* of the second try; NULL: never needed yet */
	pcre2_jit_stack *stack;
	piece_sink *sink;
	void *context;
	rosa_error *err;
};

static rosa_status out_of_memory(const struct splitting *splitting)
{
	return rosa_fail(splitting->err, ROSA_ENOMEM, "no memory to split a text");
}

static rosa_status explain(const struct splitting *splitting, int code, size_t size)
{
	char why[128] = "";

	if (code == PCRE2_ERROR_NOMEMORY)
		return out_of_memory(splitting);
	pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
	return rosa_fail(splitting->err, ROSA_EINVAL,
			 "the tokenizer's regular expression cannot split a text of %zu bytes: PCRE2 says: %s", size,
			 why);
}

/* More stack, and a limit on the work of a match that grows with the text: \s*[\r\n]+ goes back over a run of spaces
 * once, which is what a million spaces cost; what takes much longer is an expression that never ends. */
static bool raise_limits(struct splitting *splitting, size_t size)
{
	uint64_t work = 10000000 + 16 * (uint64_t)size;

	if (!splitting->limits) {
		splitting->stack = pcre2_jit_stack_create(64 << 10, MOST_STACK, NULL);
		splitting->limits = pcre2_match_context_create(NULL);
	}
	if (!splitting->stack || !splitting->limits)
		return false;
	pcre2_jit_stack_assign(splitting->limits, NULL, splitting->stack);
	pcre2_set_match_limit(splitting->limits, work < UINT32_MAX ? (uint32_t)work : UINT32_MAX);
	return true;
}

static int find_once(struct splitting *splitting, size_t i, const char *text, size_t size, size_t from)
{
	const struct split_step *step = &splitting->pretokenizer->steps[i];
	PCRE2_SPTR subject = (PCRE2_SPTR)text;

	return (step->jit ? pcre2_jit_match : pcre2_match)(step->code, subject, size, from, PCRE2_NO_UTF_CHECK,
							   splitting->matches[i], splitting->limits);
}

/* The next match from `from` on: its number of captures, or an error code. */
static int find(struct splitting *splitting, size_t i, const char *text, size_t size, size_t from)
{
	int code = find_once(splitting, i, text, size, from);

	if (code != PCRE2_ERROR_JIT_STACKLIMIT && code != PCRE2_ERROR_MATCHLIMIT)
		return code;
	if (!raise_limits(splitting, size))
		return PCRE2_ERROR_NOMEMORY;
	return find_once(splitting, i, text, size, from);
}

/* --------------------------------------------------------------------------------------------------------- splitting
 * -- */

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
	const PCRE2_SIZE *place = pcre2_get_ovector_pointer(splitting->matches[i]);
	struct pending pending = {0};
	size_t done = 0, from = 0;
	rosa_status status = ROSA_OK;

	while (!status && from <= size) {
		int code = find(splitting, i, text, size, from);
		if (code == PCRE2_ERROR_NOMATCH)
			break;
		if (code < 0)
			return explain(splitting, code, size);
		size_t start = place[0], end = place[1];
		if (start > end || start < done) /* \K and lookbehind can do so */
			return explain(splitting, PCRE2_ERROR_BADOFFSET, size);
		if (start > done)
			status = take(splitting, i, text, &pending, done, start, false);
		if (!status)
			status = take(splitting, i, text, &pending, start, end, true);
		done = end;
		from = end > start ? end : end + (end < size ? character_length(text, end, size) : 1);
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
		return out_of_memory(splitting);
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

rosa_status pretokenize(const struct pretokenizer *pretokenizer, const char *text, size_t size, piece_sink *sink,
			void *context, rosa_error *err)
{
	struct splitting splitting = {.pretokenizer = pretokenizer, .sink = sink, .context = context, .err = err};
	rosa_status status = ROSA_OK;

	if (!size)
		return ROSA_OK;
	for (size_t i = 0; i < pretokenizer->count && !status; i++) {
		splitting.matches[i] = pcre2_match_data_create(1, NULL);
		if (!splitting.matches[i])
			status = out_of_memory(&splitting);
	}
	if (!status)
		status = split(&splitting, 0, text, size);
	for (size_t i = 0; i < pretokenizer->count; i++)
		pcre2_match_data_free(splitting.matches[i]);
	pcre2_match_context_free(splitting.limits);
	pcre2_jit_stack_free(splitting.stack);
	return status;
}

#else

static rosa_status add_pattern(struct pretokenizer *pretokenizer, const char *pattern, size_t size,
			       enum split_behavior behavior, bool invert, rosa_error *err)
{
	(void)pretokenizer, (void)pattern, (void)size, (void)behavior, (void)invert;
	return rosa_fail(err, ROSA_EINVAL,
			 "this build has no regular expressions: install libpcre2-dev and build again");
}

void pretokenizer_free(struct pretokenizer *pretokenizer)
{
	*pretokenizer = (struct pretokenizer){0};
}

rosa_status pretokenize(const struct pretokenizer *pretokenizer, const char *text, size_t size, piece_sink *sink,
			void *context, rosa_error *err)
{
	(void)pretokenizer;
	return sink(context, text, size, err);
}

#endif

rosa_status pretokenizer_add_split(struct pretokenizer *pretokenizer, const char *regex, size_t size,
				   enum split_behavior behavior, bool invert, rosa_error *err)
{
	char *pattern;
	rosa_status status = pattern_translate(regex, size, &pattern, &size, err);

	if (!status)
		status = add_pattern(pretokenizer, pattern, size, behavior, invert, err);
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
	status = add_pattern(pretokenizer, pattern, used, behavior, invert, err);
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
