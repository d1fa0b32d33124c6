/*
 * Searching a text by a regular expression, with a bound on the work.
 *
 * Expressions come from model files, and PCRE2 backtracks: a*b|a takes the square of the length of a text of a's,
 * (a|aa)*b an exponential. PCRE2's own match limit bounds the backtracking of one match and knows nothing of the others
 * in the same text, nor of how far each of them looks ahead. So there are two ways to search.
 *
 * The fast way sees a window of the text, and may backtrack a fixed number of times. PCRE2's partial matching tells
 * whether the end of the window took part in the answer; if it did not, the answer is the one for the whole text. Both
 * bounds are constants, so this way takes linear time. Nearly all pieces of nearly all texts are found by it, with
 * machine code made by PCRE2.
 *
 * What it cannot decide, a run of a thousand spaces for example, is searched the counted way: PCRE2 calls back before
 * each item of the expression, and every call is charged one step, and one more for each byte that the item before it
 * went forward. A text has a number of steps that grows in proportion to its size. An expression that needs more is an
 * error: a text must not be cut wrongly without a word, nor take hours.
 */
#include "model/pretokenize_search.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#ifdef ROSATUNE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define WINDOW          256 /* bytes that the fast way sees */
#define FAST_BACKTRACKS 128
/* Expressions of real tokenizers take fewer than 10 steps per byte, even on runs of spaces. */
#define STEPS_PER_BYTE  64
#define FIRST_STEPS     (1u << 20)   /* for any text, however short */
#define MOST_MEMORY_KIB (512u << 10) /* for the backtracking of the counted way */

/* ---------------------------------------------------------------------------------------------------- compiling -- */

static rosa_status compile(void **code, const char *pattern, size_t size, uint32_t options, rosa_error *err)
{
	char why[128] = "";
	PCRE2_SIZE where;
	int failure;

	*code = pcre2_compile((PCRE2_SPTR)pattern, size, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | options,
			      &failure, &where, NULL);
	if (*code)
		return ROSA_OK;
	pcre2_get_error_message(failure, (PCRE2_UCHAR *)why, sizeof(why));
	return rosa_fail(err, failure == PCRE2_ERROR_HEAP_FAILED ? ROSA_ENOMEM : ROSA_EFORMAT,
			 "regular expression: PCRE2 says: %s", why);
}

rosa_status expression_compile(struct expression *expression, const char *pattern, size_t size, const char *shown,
			       size_t shown_size, rosa_error *err)
{
	rosa_status status = compile(&expression->fast, pattern, size, 0, err);

	expression->counted = NULL;
	if (!status)
		status = compile(&expression->counted, pattern, size, PCRE2_AUTO_CALLOUT, err);
	if (status) {
		expression_free(expression);
		return status;
	}
	expression->jit = pcre2_jit_compile(expression->fast, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
	utf8_printable(expression->shown, sizeof(expression->shown), shown, shown_size);
	return ROSA_OK;
}

void expression_free(struct expression *expression)
{
	pcre2_code_free(expression->fast);
	pcre2_code_free(expression->counted);
	*expression = (struct expression){0};
}

/* ----------------------------------------------------------------------------------------------------- counting -- */

static int count_step(pcre2_callout_block *block, void *context)
{
	struct search *search = context;
	size_t at = block->current_position, steps = 1 + (at > search->at ? at - search->at : 0);

	search->at = at;
	if (steps > search->steps_left)
		return PCRE2_ERROR_MATCHLIMIT;
	search->steps_left -= steps;
	return 0;
}

rosa_status search_new(struct search *search, size_t size, rosa_error *err)
{
	*search = (struct search){.text_size = size, .steps = FIRST_STEPS + STEPS_PER_BYTE * size};
	search->steps_left = search->steps;
	search->match = pcre2_match_data_create(1, NULL);
	search->fast_limits = pcre2_match_context_create(NULL);
	search->counted_limits = pcre2_match_context_create(NULL);
	if (!search->match || !search->fast_limits || !search->counted_limits) {
		search_free(search);
		return rosa_fail(err, ROSA_ENOMEM, "no memory to split a text");
	}
	pcre2_set_match_limit(search->fast_limits, FAST_BACKTRACKS);
	pcre2_set_match_limit(search->counted_limits, UINT32_MAX);
	pcre2_set_depth_limit(search->counted_limits, UINT32_MAX);
	pcre2_set_heap_limit(search->counted_limits, MOST_MEMORY_KIB);
	return ROSA_OK;
}

void search_free(struct search *search)
{
	pcre2_match_data_free(search->match);
	pcre2_match_context_free(search->fast_limits);
	pcre2_match_context_free(search->counted_limits);
	*search = (struct search){0};
}

/* ---------------------------------------------------------------------------------------------------- searching -- */

/* The end of the window that begins at `from`, between two characters. */
static size_t window_end(const char *text, size_t size, size_t from)
{
	size_t end = from + WINDOW;

	if (size - from <= WINDOW)
		return size;
	while (((uint8_t)text[end] & 0xc0) == 0x80)
		end--;
	return end;
}

static int search_window(struct search *search, const struct expression *expression, const char *text, size_t end,
			 size_t from, bool partial)
{
	return (expression->jit ? pcre2_jit_match : pcre2_match)(
	    expression->fast, (PCRE2_SPTR)text, end, from, PCRE2_NO_UTF_CHECK | (partial ? PCRE2_PARTIAL_HARD : 0),
	    search->match, search->fast_limits);
}

/* PCRE2's answer for the first match from *from on, in window after window; anything but a match or PCRE2_ERROR_NOMATCH
 * means that this way cannot tell. No match begins before *from then. */
static int search_fast(struct search *search, const struct expression *expression, const char *text, size_t size,
		       size_t *from)
{
	const PCRE2_SIZE *place = pcre2_get_ovector_pointer(search->match);

	for (;;) {
		size_t end = window_end(text, size, *from);
		int code = search_window(search, expression, text, end, *from, end < size);

		if (end < size && code == PCRE2_ERROR_NOMATCH)
			*from = end;
		else if (end < size && code == PCRE2_ERROR_PARTIAL && place[0] > *from)
			*from = place[0];
		else
			return code;
	}
}

/* The same for the whole text. */
static int search_counted(struct search *search, const struct expression *expression, const char *text, size_t size,
			  size_t from)
{
	search->at = from;
	pcre2_set_callout(search->counted_limits, count_step, search);
	return pcre2_match(expression->counted, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, search->match,
			   search->counted_limits);
}

static rosa_status explain(const struct search *search, const struct expression *expression, int code, rosa_error *err)
{
	char why[128] = "";

	if (code == PCRE2_ERROR_NOMEMORY)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to split a text");
	if (code == PCRE2_ERROR_MATCHLIMIT)
		return rosa_fail(err, ROSA_EINVAL,
				 "the tokenizer's regular expression '%s' takes more than %zu steps on a text of %zu "
				 "bytes; use the tokenizer that the model was published with, or another text",
				 expression->shown, search->steps, search->text_size);
	pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
	return rosa_fail(err, ROSA_EINVAL,
			 "the tokenizer's regular expression '%s' cannot split a text of %zu bytes: PCRE2 says: %s",
			 expression->shown, search->text_size, why);
}

rosa_status search_next(struct search *search, const struct expression *expression, const char *text, size_t size,
			size_t from, struct search_match *match, rosa_error *err)
{
	const PCRE2_SIZE *place = pcre2_get_ovector_pointer(search->match);
	int code = search_fast(search, expression, text, size, &from);

	if (code < PCRE2_ERROR_NOMATCH)
		code = search_counted(search, expression, text, size, from);
	if (code < PCRE2_ERROR_NOMATCH)
		return explain(search, expression, code, err);
	*match = (struct search_match){false, 0, 0};
	if (code >= 0)
		*match = (struct search_match){true, place[0], place[1]};
	/* \K and lookbehind could make a match that begins before `from` */
	if (match->there && (match->start > match->end || match->start < from))
		return explain(search, expression, PCRE2_ERROR_BADOFFSET, err);
	return ROSA_OK;
}

#else

rosa_status expression_compile(struct expression *expression, const char *pattern, size_t size, const char *shown,
			       size_t shown_size, rosa_error *err)
{
	(void)expression, (void)pattern, (void)size, (void)shown, (void)shown_size;
	return rosa_fail(err, ROSA_EINVAL,
			 "this build has no regular expressions: install libpcre2-dev and build again");
}

void expression_free(struct expression *expression)
{
	*expression = (struct expression){0};
}

rosa_status search_new(struct search *search, size_t size, rosa_error *err)
{
	(void)size, (void)err;
	*search = (struct search){0};
	return ROSA_OK;
}

void search_free(struct search *search)
{
	*search = (struct search){0};
}

rosa_status search_next(struct search *search, const struct expression *expression, const char *text, size_t size,
			size_t from, struct search_match *match, rosa_error *err)
{
	(void)search, (void)expression, (void)text, (void)size, (void)from, (void)err;
	*match = (struct search_match){false, 0, 0};
	return ROSA_OK;
}

#endif
