/* Searches by regular expressions, compared with PCRE2 alone: one call of its interpreter per match. */
#include "support_search.h"

#include "model/pretokenize_pattern.h"
#include "model/pretokenize_search.h"

#include <stdlib.h>

#ifdef ROSATUNE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static bool compare_all(const pcre2_code *code, const struct expression *expression, const char *text, size_t size)
{
	pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	pcre2_match_context *limits = pcre2_match_context_create(NULL);
	const PCRE2_SIZE *place = pcre2_get_ovector_pointer(data);
	struct search search;
	struct search_match match = {true, 0, 0};
	size_t from = 0;
	bool agree = search_new(&search, size, NULL) == ROSA_OK;

	pcre2_set_match_limit(limits, 1000000);
	while (agree && match.there && from <= size) {
		int found = pcre2_match(code, (PCRE2_SPTR)text, size, from, 0, data, limits);
		if (found < PCRE2_ERROR_NOMATCH ||
		    search_next(&search, expression, text, size, from, &match, NULL) != ROSA_OK)
			break;
		agree =
		    match.there == (found >= 0) && (!match.there || (match.start == place[0] && match.end == place[1]));
		from = match.end + (match.start == match.end);
		while (from < size && ((uint8_t)text[from] & 0xc0) == 0x80)
			from++;
	}
	search_free(&search);
	pcre2_match_context_free(limits);
	pcre2_match_data_free(data);
	return agree;
}

bool searches_agree(const char *regex, size_t regex_size, const char *text, size_t size, bool jit)
{
	struct expression expression = {0};
	char *pattern;
	size_t pattern_size;
	PCRE2_SIZE where;
	int failure;
	bool agree = true;

	if (pattern_translate(regex, regex_size, &pattern, &pattern_size, NULL) != ROSA_OK)
		return true;
	pcre2_code *code =
	    pcre2_compile((PCRE2_SPTR)pattern, pattern_size, PCRE2_UTF | PCRE2_UCP, &failure, &where, NULL);
	if (expression_compile(&expression, pattern, pattern_size, regex, regex_size, NULL) == ROSA_OK) {
		expression.jit &= jit;
		agree = code && compare_all(code, &expression, text, size);
	}
	expression_free(&expression);
	pcre2_code_free(code);
	free(pattern);
	return agree;
}

#else

bool searches_agree(const char *regex, size_t regex_size, const char *text, size_t size, bool jit)
{
	return true;
}

#endif
