/*
 * The pieces of a text: how steps cut, which characters their expressions take, and that searching in windows finds the
 * same as PCRE2 does in the whole text.
 */
#include "base/draw.h"
#include "model/pretokenize.h"
#include "model/pretokenize_pattern.h"
#include "support_search.h"
#include "support_test.h"
#include "support_tokenizer.h"

/* -------------------------------------------------------------------------------------------------------- steps -- */

static rosa_status collect(void *context, const char *piece, size_t size, rosa_error *err)
{
	char *pieces = context;

	if (*pieces)
		strcat(pieces, "|");
	strncat(pieces, piece, size);
	return ROSA_OK;
}

static void check_pieces(struct pretokenizer *pretokenizer, const char *text, const char *expected)
{
	struct search search;
	char pieces[512] = "";

	must(search_new(&search, strlen(text), &err));
	must(pretokenize(pretokenizer, &search, text, strlen(text), collect, pieces, &err));
	search_free(&search);
	assert_string_equal(pieces, expected);
}

TEST(splits_behave)
{
	static const struct {
		enum split_behavior behavior;
		bool invert;
		const char *pieces;
	} cases[] = {
	    {SPLIT_ISOLATED, false, "-|-|a|-|bc|-|-|d"}, {SPLIT_REMOVED, false, "a|bc|d"},
	    {SPLIT_PREVIOUS, false, "-|-|a-|bc-|-|d"},   {SPLIT_NEXT, false, "-|-a|-bc|-|-d"},
	    {SPLIT_CONTIGUOUS, false, "--|a|-|bc|--|d"}, {SPLIT_REMOVED, true, "-|-|-|-|-"},
	    {SPLIT_CONTIGUOUS, true, "--|a|-|bc|--|d"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct pretokenizer literal = {0}, regex = {0};
		must(pretokenizer_add_literal(&literal, "-", 1, cases[i].behavior, cases[i].invert, &err));
		must(pretokenizer_add_split(&regex, "-", 1, cases[i].behavior, cases[i].invert, &err));
		check_pieces(&literal, "--a-bc--d", cases[i].pieces);
		check_pieces(&regex, "--a-bc--d", cases[i].pieces);
		pretokenizer_free(&literal);
		pretokenizer_free(&regex);
	}
}

TEST(literals_are_literal)
{
	struct pretokenizer pretokenizer = {0};

	must(pretokenizer_add_literal(&pretokenizer, ".*\\E[", 5, SPLIT_ISOLATED, false, &err));
	check_pieces(&pretokenizer, "a.*\\E[b.*", "a|.*\\E[|b.*");
	pretokenizer_free(&pretokenizer);
}

TEST(steps_follow_each_other)
{
	struct pretokenizer both = {0}, alone = {0};

	must(pretokenizer_add_digits(&both, true, &err));
	must(pretokenizer_add_split(&both, gpt2_regex, strlen(gpt2_regex), SPLIT_ISOLATED, false, &err));
	must(pretokenizer_add_split(&alone, gpt2_regex, strlen(gpt2_regex), SPLIT_ISOLATED, false, &err));
	check_pieces(&both, "it's  12\n\n3 x", "it|'s|  |1|2|\n\n|3| x");
	check_pieces(&alone, "it's  12\n\n3 x", "it|'s| | 12|\n|\n|3| x");
	pretokenizer_free(&both);
	pretokenizer_free(&alone);
}

/* What PCRE2 would see otherwise: U+180E is no space, and letters and numerals of Unicode 15 and 16 are what they are.
 */
TEST(sets_are_those_of_unicode_16)
{
	static const struct {
		const char *regex, *text, *pieces;
	} cases[] = {
	    {"\\s",
	     "a\xe1\xa0\x8e"
	     "b c",
	     "a\xe1\xa0\x8e"
	     "b| |c"},
	    {"\\S", "a ", "a| "},
	    {"\\p{L}",
	     "1\xf0\x9e\x93\x90"
	     "2",
	     "1|\xf0\x9e\x93\x90|2"}, /* U+1E4D0, Unicode 15 */
	    {"\\p{Lu}",
	     "1\xea\x9f\x9c"
	     "2",
	     "1|\xea\x9f\x9c|2"}, /* U+A7DC, Unicode 16 */
	    {"\\P{L}", "a1\xf0\x9e\x93\x90", "a|1|\xf0\x9e\x93\x90"},
	    {"\\p{N}", "a\xf0\x9e\x93\xb0", "a|\xf0\x9e\x93\xb0"}, /* U+1E4F0 */
	    {"[^\\s\\p{L}\\p{N}]+", "a!?\xf0\x9e\x93\x90", "a|!?|\xf0\x9e\x93\x90"},
	    {"(?i:'s)", "a'\xc5\xbf", "a|'\xc5\xbf"}, /* the long s */
	    {"\\d{2}", "1234x5", "12|34|x5"},
	    {".", "a\nb", "a|\n|b"},
	    {"x*?y|\\.", "xy.z", "xy|.|z"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct pretokenizer pretokenizer = {0};
		if (pretokenizer_add_split(&pretokenizer, cases[i].regex, strlen(cases[i].regex), SPLIT_ISOLATED, false,
					   &err) != ROSA_OK)
			fail_msg("%s: %s", cases[i].regex, err.message);
		check_pieces(&pretokenizer, cases[i].text, cases[i].pieces);
		pretokenizer_free(&pretokenizer);
	}
}

TEST(expressions_that_differ_are_refused)
{
	static const char *const cases[] = {
	    "\\w",      "\\h+",    "\\bx",     "a{1,3}+", "a{2}?",  "a{,3}",   "a{x}",   "^a",
	    "a$",       "(?s:.)",  "(?i)a",    "(?<n>a)", "(*UTF)", "[a[bc]]", "[a&&b]", "[\\S]",
	    "[\\P{L}]", "[\\s-z]", "\\p{Han}", "\\p{Lx}", "\\p{L",  "\\p",     "\\1",    "\\x41",
	    "\\Qa",     "[]a]",    "[a",       "\\",      "(?#x)",  "(?-i:a)", "\\R",    "\\K"};
	char *pattern;
	size_t size;

	for (size_t i = 0; i < COUNT(cases); i++) {
		if (pattern_translate(cases[i], strlen(cases[i]), &pattern, &size, &err) == ROSA_OK)
			fail_msg("accepted: %s", cases[i]);
		assert_null(pattern);
		must_say("regular expression");
	}
}

/* ------------------------------------------------------------------------------------------------------- windows -- */

#define LONGEST_TEXT 3000

/* Words from a few letters with runs that are often longer than a window. */
static size_t draw_text(char *text, uint64_t *random)
{
	static const char *const bits[] = {"a", "b", "ab", " ", "\n", "1", "\xc3\xa9", "\xe2\x82\xac", "'s", "x"};
	size_t size = 0, bound = (size_t)(draw_mix((*random)++) % LONGEST_TEXT);

	while (size < bound) {
		const char *bit = bits[draw_mix((*random)++) % (COUNT(bits))];
		size_t length = strlen(bit);
		uint64_t run = draw_mix((*random)++);
		for (size_t count = run % 7 ? 1 + run % 3 : run % 600; count > 0 && size + length <= bound; count--) {
			memcpy(text + size, bit, length);
			size += length;
		}
		if (size + 3 > bound)
			break;
	}
	return size;
}

static const char *const regexes[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    ("(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
    "\\p{N}",
    "x",
    "ab",
    "(?<=a)b*",
    "(?<=a)x*",
    "(?!a)x*",
    "(?<!a)(?=b)",
    "a(?!b)",
    "(?:ab)+",
    "(?:a1|b)+x?",
    "(?>a+)b|b",
    "[^x]*x",
    "[ab]*+x|1",
    "a*?b",
    "\xc3\xa9+",
    "(?=\\s)",
};

#define REGEXES (COUNT(regexes))

static void check_searches(const char *regex, const char *text, size_t size)
{
	for (int jit = 0; jit < 2; jit++) {
		if (!searches_agree(regex, strlen(regex), text, size, jit))
			fail_msg("%s: another match than PCRE2's in a text of %zu bytes", regex, size);
	}
}

TEST(windows_change_nothing)
{
	static char text[LONGEST_TEXT];
	uint64_t random = 11;

	for (size_t i = 0; i < REGEXES; i++) {
		for (int round = 0; round < 30; round++)
			check_searches(regexes[i], text, draw_text(text, &random));
	}
}

/* Runs that end just before, at and after the end of a window, which is 256 bytes. */
TEST(windows_may_end_anywhere)
{
	static const char *const runs[] = {"a", "b", "x", " ", "\xc3\xa9"}, *const ends[] = {"", "xxb", "b1 \n", "a"};
	char text[600];

	for (size_t i = 0; i < REGEXES * COUNT(runs); i++) {
		const char *run = runs[i / REGEXES];
		for (size_t size = 252; size < 260; size++) {
			size_t used = size - size % strlen(run);
			for (size_t at = 0; at < used; at += strlen(run))
				memcpy(text + at, run, strlen(run));
			for (size_t end = 0; end < COUNT(ends); end++) {
				memcpy(text + used, ends[end], strlen(ends[end]));
				check_searches(regexes[i % REGEXES], text, used + strlen(ends[end]));
			}
		}
	}
}

TEST_GROUP(recipe_needed, NULL)
