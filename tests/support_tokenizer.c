/* Small tokenizers: a vocabulary that is easy to count in, and as little else as a test wants. */
#include "support_tokenizer.h"

#include "model/bpe_vocabulary.h"
#include "support_test.h"
#include "support_weights.h"
#include "base/utf8.h"

/* ------------------------------------------------------------------------------------------------------ writing -- */

/* The character that stands for a byte in vocabularies: found by asking what each character stands for, once. */
static const char *spell(int byte)
{
	static char spellings[256][4];

	for (uint32_t point = 0x21; !spellings['!'][0] && point < 0x144; point++) {
		char spelling[4] = "", stands_for;
		size_t length = utf8_put(point, spelling), bytes;
		if (point != '!' && spelling_bytes(spelling, length, &stands_for, &bytes))
			memcpy(spellings[(uint8_t)stands_for], spelling, sizeof(spelling));
	}
	spellings['!'][0] = '!';
	return spellings[byte];
}

static void put_entry(struct bytes *out, const char *token, size_t size, unsigned id)
{
	char number[16];

	bytes_words(out, out->data[out->size - 1] == '{' ? "\"" : ", \"");
	for (size_t i = 0; i < size; i++) {
		if (token[i] == '"' || token[i] == '\\')
			bytes_words(out, "\\");
		bytes_put(out, token + i, 1);
	}
	snprintf(number, sizeof(number), "\": %u", id);
	bytes_words(out, number);
}

/* The next merge of a list, "t h": where its sides begin and how long they are. */
static const char *next_merge(const char *at, const char **right, size_t *left_size, size_t *right_size)
{
	*left_size = strcspn(at, " ");
	*right = at + *left_size + 1;
	*right_size = strcspn(*right, ",");
	return (*right)[*right_size] ? *right + *right_size + 1 : NULL;
}

static void put_vocab(struct bytes *out, const struct recipe *recipe)
{
	const char *right;
	size_t left_size, right_size;
	unsigned id = 256;

	bytes_words(out, "\"vocab\": {");
	for (int byte = 0; byte < 256; byte++) {
		const char *spelling = spell(byte);
		if (!recipe->without || strcmp(recipe->without, spelling) != 0)
			put_entry(out, spelling, strlen(spelling), (unsigned)byte);
	}
	for (const char *left = recipe->merges, *next; left && *left; left = next) {
		char joined[256];
		next = next_merge(left, &right, &left_size, &right_size);
		memcpy(joined, left, left_size);
		memcpy(joined + left_size, right, right_size);
		put_entry(out, joined, left_size + right_size, id++);
	}
	bytes_words(out, "}");
}

static void put_merges(struct bytes *out, const struct recipe *recipe)
{
	const char *right;
	size_t left_size, right_size;

	bytes_words(out, ", \"merges\": [");
	for (const char *left = recipe->merges, *next; left && *left; left = next) {
		next = next_merge(left, &right, &left_size, &right_size);
		bytes_words(out, left == recipe->merges ? "" : ", ");
		bytes_words(out, recipe->pairs ? "[\"" : "\"");
		bytes_put(out, left, left_size);
		bytes_words(out, recipe->pairs ? "\", \"" : " ");
		bytes_put(out, right, right_size);
		bytes_words(out, recipe->pairs ? "\"]" : "\"");
	}
	bytes_words(out, "]");
}

static void put_part(struct bytes *out, const char *name, const char *value, const char *usual)
{
	bytes_words(out, "\"");
	bytes_words(out, name);
	bytes_words(out, "\": ");
	bytes_words(out, value ? value : usual);
	bytes_words(out, ",\n");
}

char *recipe_json(const struct recipe *recipe)
{
	struct bytes out = {0};

	bytes_words(&out, "{\n");
	put_part(&out, "added_tokens", recipe->added, "[]");
	put_part(&out, "normalizer", recipe->normalizer, "null");
	put_part(&out, "pre_tokenizer", recipe->pre_tokenizer,
		 "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}");
	put_part(&out, "post_processor", recipe->post_processor, "null");
	put_part(&out, "decoder", recipe->decoder, "{\"type\": \"ByteLevel\"}");
	bytes_words(&out, "\"model\": {");
	bytes_words(&out, recipe->model ? recipe->model : "\"type\": \"BPE\",");
	put_vocab(&out, recipe);
	put_merges(&out, recipe);
	bytes_words(&out, "}}");
	bytes_put(&out, "", 1);
	return (char *)out.data;
}

int recipe_needed(void **state)
{
	const struct recipe recipe = {0};
	char *json = recipe_json(&recipe);
	tokenizer *made = NULL;
	rosa_error err = {0};

	tokenizer_from_json(json, strlen(json), "test.json", &made, &err);
	tokenizer_free(made);
	if (!made && strstr(err.message, "build again")) {
		print_message("skipped: %s\n", err.message);
		exit(0);
	}
	return 0;
}

TEST_CLOSER(close_tokenizer, tokenizer_free)

tokenizer *recipe_make(const struct recipe *recipe)
{
	char *json = recipe_json(recipe);
	tokenizer *made;

	must(tokenizer_from_json(json, strlen(json), "test.json", &made, &err));
	test_later(close_tokenizer, made);
	return made;
}

/* ---------------------------------------------------------------------------------------------------- comparing -- */

/* Ids as "1 2 3". */
static char *ids_text(const struct tokens *tokens)
{
	char *text = test_alloc(12 * tokens->count + 1);
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < tokens->count; i++)
		used += (size_t)sprintf(text + used, i ? " %u" : "%u", (unsigned)tokens->ids[i]);
	return text;
}

static void expect(const tokenizer *tokenizer, const char *text, bool special, const char *ids)
{
	struct tokens tokens = {0};

	if (tokenizer_encode(tokenizer, text, strlen(text), special, &tokens, &err) != ROSA_OK)
		fail_msg("'%s': %s", text, err.message);
	char *found = ids_text(&tokens);
	if (strcmp(found, ids) != 0)
		fail_msg("'%s': %s instead of %s", text, found, ids);
	tokens_free(&tokens);
}

void expect_ids(const tokenizer *tokenizer, const char *text, const char *ids)
{
	expect(tokenizer, text, true, ids);
}

void expect_plain_ids(const tokenizer *tokenizer, const char *text, const char *ids)
{
	expect(tokenizer, text, false, ids);
}
