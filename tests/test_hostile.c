/*
 * Model files made to take forever: what reads them must end soon, with a result or with a message that says what is
 * wrong. Sizes are such that work that grows with their square would take hours; an alarm ends the program before.
 */
#include "model/bpe.h"
#include "model/chat.h"
#include "model/tokenizer_parts.h"
#include "support_test.h"
#include "support_tokenizer.h"

#include <unistd.h>

#define MANY 300000

/* Seconds for one test: far more than it takes, under a sanitizer too, and far less than hours. */
static int begin(void **state)
{
	alarm(120);
	return 0;
}

/* `count` copies of a text, with `end` after them; memory to free. */
static char *repeated(const char *text, size_t count, const char *end)
{
	size_t length = strlen(text);
	char *made = test_alloc(count * length + strlen(end) + 1);

	for (size_t i = 0; i < count; i++)
		memcpy(made + i * length, text, length);
	strcpy(made + count * length, end);
	return made;
}

/* A text of many copies of `part` encodes to `ids` tokens. */
static void check_count(const tokenizer *tokenizer, const char *part, size_t count, size_t ids)
{
	char *text = repeated(part, count, "");
	struct tokens tokens = {0};

	must(tokenizer_encode(tokenizer, text, strlen(text), true, &tokens, &err));
	assert_int_equal(tokens.count, ids);
	tokens_free(&tokens);
}

/* ---------------------------------------------------------------------------------------------------- templates -- */

static void check_system(const tokenizer *tokenizer, const char *expected)
{
	struct chat_format format;

	must(chat_format_of(tokenizer, &format, &err));
	assert_int_equal(format.style, CHAT_ML);
	if (expected)
		assert_string_equal(format.system, expected);
	else
		assert_null(format.system);
	chat_format_free(&format);
}

TEST_WITH(templates_may_open_many_messages, begin, NULL)
{
	static const char known[] = "[{\"id\": 300, \"content\": \"<|im_start|>\"}, {\"id\": 301, \"content\": "
				    "\"<|im_end|>\"}]";
	/* in each kind of surroundings a message that never ends, and with it in a literal, one that ends well */
	static const struct {
		const char *opening, *end, *system;
	} cases[] = {
	    {"<|im_start|>system\n", "", NULL},
	    {"<|im_start|>system\\n", "{{ '<|im_end|>' }}", NULL},
	    {"\\'<|im_start|>system\n", "' + '<|im_end|>'", NULL},
	    {"\\\"<|im_start|>system\n", "\" + '<|im_end|>'", NULL},
	    {"<|im_start|>system\n", "{{ '<|im_start|>system\nYou.<|im_end|>' }}", "You."},
	};
	struct recipe recipe = {.added = known};
	tokenizer *tokenizer = recipe_make(&recipe);

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *template = repeated(cases[i].opening, MANY, cases[i].end);
		char *whole = test_alloc(strlen(template) + 16);

		sprintf(whole, "<|im_end|>%s", template);
		must(tokenizer_set_template(tokenizer, whole, strlen(whole), &err));
		check_system(tokenizer, cases[i].system);
	}
}

/* ------------------------------------------------------------------------------------------------- added tokens -- */

TEST_WITH(added_tokens_have_a_longest, begin, NULL)
{
	char *content = repeated("a", ADDED_LONGEST, ""), *added = test_alloc(ADDED_LONGEST + 100), *json;
	struct recipe recipe = {.added = added};
	tokenizer *tokenizer;

	sprintf(added, "[{\"id\": 300, \"content\": \"%s\"}]", content);
	tokenizer = recipe_make(&recipe);
	check_count(tokenizer, "a", 3 * ADDED_LONGEST, 3);
	sprintf(added, "[{\"id\": 300, \"content\": \"%sb\"}]", content);
	json = recipe_json(&recipe);
	must_fail(tokenizer_from_json(json, strlen(json), "test.json", &tokenizer, &err), ROSA_EFORMAT,
		  "the added token 300");
	must_say("1025 bytes; at most 1024");
}

/* Long tokens that a text nearly holds at each of its places. */
TEST_WITH(added_tokens_may_begin_alike, begin, NULL)
{
	char *content = repeated("a", ADDED_LONGEST - 1, ""), *added = test_alloc(3 * ADDED_LONGEST);
	struct recipe recipe = {.added = added};

	sprintf(added, "[{\"id\": 300, \"content\": \"%sb\"}, {\"id\": 301, \"content\": \"%sc\"}]", content, content);
	tokenizer *tokenizer = recipe_make(&recipe);
	check_count(tokenizer, "a", MANY, MANY);
}

/* Tokens that are spaces and take in the spaces around them. */
TEST_WITH(added_tokens_may_take_the_same_spaces, begin, NULL)
{
	struct recipe recipe = {.added = "[{\"id\": 300, \"content\": \" \", \"lstrip\": true, \"rstrip\": true}, "
					 "{\"id\": 301, \"content\": \"\\t\"}]"};
	tokenizer *tokenizer = recipe_make(&recipe);

	check_count(tokenizer, " \t", MANY, 2 * MANY);
}

/* -------------------------------------------------------------------------------------------------- expressions -- */

#define SPLIT(regex)                                                                                                   \
	"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex         \
	"\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "     \
	"false}]}"

TEST_WITH(expressions_may_not_take_forever, begin, NULL)
{
	static const struct {
		const char *pre_tokenizer, *part, *shown;
	} cases[] = {
	    {SPLIT("a*b|a"), "a", "'a*b|a'"},
	    {SPLIT("a*+b|a"), "a", "'a*+b|a'"},
	    {SPLIT("a(?!a*b)|a"), "a", "'a(?!a*b)|a'"},
	    {SPLIT("(a|aa)+b|a"), "a", "'(a|aa)+b|a'"},
	    {SPLIT("(?:a?){20}b|a|z"), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaz", "'(?:a?){20}b|a|z'"},
	    /* each stretch between added tokens alone would be allowed */
	    {SPLIT("(a|aa)+b|a"), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa<>", "'(a|aa)+b|a'"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct recipe recipe = {.pre_tokenizer = cases[i].pre_tokenizer,
					.added = "[{\"id\": 300, \"content\": \"<>\"}]"};
		tokenizer *tokenizer = recipe_make(&recipe);
		char *text = repeated(cases[i].part, MANY / strlen(cases[i].part), "");
		struct tokens tokens = {0};

		must_fail(tokenizer_encode(tokenizer, text, strlen(text), true, &tokens, &err), ROSA_EINVAL,
			  cases[i].shown);
		must_say("steps");
		assert_int_equal(tokens.count, 0);
		tokens_free(&tokens);
	}
}

/* What real expressions do on the longest runs that a text can have is allowed. */
TEST_WITH(expressions_of_real_models_take_long_runs, begin, NULL)
{
	static const char llama3[] =
	    SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
		  "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+");
	static const char *const parts[] = {" ", "\n", " \n", "a", "\xc3\xa9", "1", "-", "'"};
	struct recipe recipe = {.pre_tokenizer = llama3}, gpt2 = {0};
	tokenizer *tokenizers[] = {recipe_make(&recipe), recipe_make(&gpt2)};

	for (size_t i = 0; i < COUNT(parts); i++) {
		for (size_t t = 0; t < 2; t++)
			check_count(tokenizers[t], parts[i], MANY, MANY * strlen(parts[i]));
	}
}

/* ------------------------------------------------------------------------------------------------------- hashes -- */

/* Tokens of eight letters, chosen so that their hashes are the same in tables of up to 2^14 places. */
static rosa_status add_alike(struct vocabulary *vocabulary, uint32_t count, rosa_error *err)
{
	rosa_status status = ROSA_OK;
	char token[9];
	uint32_t id = 0;

	for (uint64_t draw = 0; id < count && !status; draw++) {
		for (int i = 0; i < 8; i++)
			token[i] = (char)('a' + (draw >> (4 * i) & 15));
		if ((hash_bytes(token, 8) & 0x3fff) == 7)
			status = vocabulary_add_spelled(vocabulary, id++, token, 8, err);
	}
	return status;
}

TEST_WITH(tokens_may_not_have_the_same_hash, begin, NULL)
{
	struct vocabulary few = {0}, many = {0};

	must(add_alike(&few, MOST_PROBES, &err));
	assert_int_equal(vocabulary_find(&few, vocabulary_bytes(&few, MOST_PROBES - 1), 8), MOST_PROBES - 1);
	assert_int_equal(vocabulary_find(&few, "zzzzzzzz", 8), NO_TOKEN);
	must_fail(add_alike(&many, MOST_PROBES + 1, &err), ROSA_EFORMAT, "hash");
	vocabulary_free(&few);
	vocabulary_free(&many);
}

/* Merges of the tokens "a...a" with "b...b", chosen by the hashes of the pairs of their ids. */
TEST_WITH(merges_may_not_have_the_same_hash, begin, NULL)
{
	enum { SIDE = 3000 };
	struct bpe bpe = {.unknown = NO_TOKEN};
	char left[16], right[16], joined[32];
	rosa_error err = {0};
	rosa_status status = ROSA_OK;
	uint32_t id = 2 * SIDE;

	for (uint32_t i = 0; i < SIDE; i++) {
		snprintf(left, sizeof(left), "a%u", (unsigned)i);
		snprintf(right, sizeof(right), "b%u", (unsigned)i);
		must(vocabulary_add_spelled(&bpe.vocabulary, i, left, strlen(left), &err));
		must(vocabulary_add_spelled(&bpe.vocabulary, SIDE + i, right, strlen(right), &err));
	}
	for (uint64_t i = 0; i < (uint64_t)SIDE * SIDE && !status; i++) {
		uint64_t a = i / SIDE, b = i % SIDE;
		if ((hash_pair(a << 32 | (SIDE + b)) & 0xfff) != 9)
			continue;
		snprintf(left, sizeof(left), "a%u", (unsigned)a);
		snprintf(right, sizeof(right), "b%u", (unsigned)b);
		snprintf(joined, sizeof(joined), "%s%s", left, right);
		must(vocabulary_add_spelled(&bpe.vocabulary, id++, joined, strlen(joined), &err));
		status = bpe_add_merge(&bpe, left, strlen(left), right, strlen(right), &err);
	}
	must_fail(status, ROSA_EFORMAT, "hash");
	assert_int_equal(id, 2 * SIDE + MOST_PROBES + 1);
	bpe_free(&bpe);
}

TEST_GROUP(recipe_needed, NULL)
