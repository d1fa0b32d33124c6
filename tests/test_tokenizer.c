/*
 * Tokenizers: every part of the pipeline by itself, merging against its definition, decoding against replacing bad
 * bytes in the whole text at once, and everything that is refused, with the word that says why.
 *
 * Equality with Hugging Face's tokenizers on real vocabularies is checked by python/tests/test_tokenizer.py.
 */
#include "base/text.h"
#include "model/bpe.h"
#include "model/tokenizer_added.h"
#include "base/draw.h"
#include "support_checkpoint.h"
#include "support_test.h"
#include "support_tokenizer.h"
#include "support_weights.h"
#include "model/tokenizer_nfc.h"
#include "base/utf8.h"

#include <sys/stat.h>

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(regex, behavior)                                                                                         \
	"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"" behavior                     \
	"\", \"invert\": false}"
#define SEQUENCE(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"

/* A number below `bound`. */
static size_t draw_below(uint64_t *random, size_t bound)
{
	return (size_t)(draw_mix((*random)++) % bound);
}

/* ------------------------------------------------------------------------------------------------------ merging -- */

TEST(merges_by_rank)
{
	struct recipe recipe = {.merges = "b c,a b,ab c,a a,Ġ x"};
	tokenizer *tokenizer = recipe_make(&recipe);

	assert_int_equal(tokenizer_size(tokenizer), 261);
	expect_ids(tokenizer, "", "");
	expect_ids(tokenizer, "a", "97");
	expect_ids(tokenizer, "abc", "97 256");
	expect_ids(tokenizer, "ab", "257");
	expect_ids(tokenizer, "aaa", "259 97");
	expect_ids(tokenizer, "aaaa", "259 259");
	expect_ids(tokenizer, "a x", "97 260");
	expect_ids(tokenizer, "\xc3\xa9", "195 169");
}

TEST(merges_come_in_two_dresses)
{
	struct recipe recipe = {.merges = "t h,th e,Ġ the", .pairs = true};

	expect_ids(recipe_make(&recipe), "the the", "257 258");
	recipe.pairs = false;
	expect_ids(recipe_make(&recipe), "the the", "257 258");
}

/* The definition: the lowest rank, and of those the leftmost, again and again. */
static size_t merge_slowly(const struct bpe *bpe, const char *text, size_t size, uint32_t *ids)
{
	for (size_t i = 0; i < size; i++)
		ids[i] = bpe->letters[(uint8_t)text[i]];
	for (;;) {
		const struct merge *best = NULL;
		size_t place = 0;
		for (size_t i = 0; i + 1 < size; i++) {
			for (size_t m = 0; m < bpe->merges_room; m++) {
				const struct merge *merge = &bpe->merges[m];
				if (merge->pair == ((uint64_t)ids[i] << 32 | ids[i + 1]) &&
				    (!best || merge->rank < best->rank)) {
					best = merge;
					place = i;
				}
			}
		}
		if (!best)
			return size;
		ids[place] = best->id;
		memmove(ids + place + 1, ids + place + 2, (size - place - 2) * sizeof(*ids));
		size--;
	}
}

static void make_random_bpe(struct bpe *bpe, uint64_t *random)
{
	char tokens[64][32] = {"a", "b", "c"};
	uint32_t count = 3;

	*bpe = (struct bpe){.unknown = NO_TOKEN};
	for (uint32_t i = 0; i < 3; i++)
		must(vocabulary_add_spelled(&bpe->vocabulary, i, tokens[i], 1, &err));
	while (count < 24) {
		const char *left = tokens[draw_below(random, count)], *right = tokens[draw_below(random, count)];
		char joined[64];
		snprintf(joined, sizeof(joined), "%s%s", left, right);
		if (strlen(joined) > 16)
			continue;
		memcpy(tokens[count], joined, strlen(joined) + 1);
		if (vocabulary_find(&bpe->vocabulary, tokens[count], strlen(tokens[count])) == NO_TOKEN) {
			must(vocabulary_add_spelled(&bpe->vocabulary, count, tokens[count], strlen(tokens[count]),
						    &err));
			count++;
		}
		must(bpe_add_merge(bpe, left, strlen(left), right, strlen(right), &err));
	}
	bpe_find_letters(bpe);
}

TEST(merging_follows_the_definition)
{
	uint64_t random = 7;

	for (int round = 0; round < 60; round++) {
		struct bpe_scratch scratch;
		struct bpe bpe;
		make_random_bpe(&bpe, &random);
		must(bpe_scratch_new(&scratch, 1000, &err));
		for (int text = 0; text < 40; text++) {
			size_t size = 1 + draw_below(&random, text < 30 ? 20 : 80), expected;
			struct tokens tokens = {0};
			uint32_t ids[128];
			char letters[128];
			for (size_t i = 0; i < size; i++)
				letters[i] = (char)('a' + draw_below(&random, 3));
			expected = merge_slowly(&bpe, letters, size, ids);
			/* twice: the second time it is remembered */
			for (int turn = 0; turn < 2; turn++) {
				tokens.count = 0;
				must(bpe_encode(&bpe, &scratch, letters, size, &tokens, &err));
				assert_int_equal(tokens.count, expected);
				assert_memory_equal(tokens.ids, ids, expected * sizeof(*ids));
			}
			tokens_free(&tokens);
		}
		bpe_scratch_free(&scratch);
		bpe_free(&bpe);
	}
}

TEST(long_runs_are_no_trouble)
{
	static const char letters[] = "a \n!7'";
	struct recipe recipe = {.merges = "a a,aa aa,aaaa aaaa",
				.pre_tokenizer = SEQUENCE(SPLIT("\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+|[^\\\\s]+",
								"Isolated") "," BYTE_LEVEL)};
	tokenizer *tokenizer = recipe_make(&recipe);
	size_t size = 3000000;
	char *text = test_alloc(size);

	for (const char *letter = letters; *letter; letter++) {
		struct tokens tokens = {0};
		memset(text, *letter, size);
		must(tokenizer_encode(tokenizer, text, size, true, &tokens, &err));
		assert_int_equal(tokens.count, *letter == 'a' ? size / 8 : size);
		tokens_free(&tokens);
	}
}

TEST(bytes_without_a_token)
{
	struct recipe recipe = {.merges = "a b", .without = "x"};

	expect_ids(recipe_make(&recipe), "axb", "256"); /* as if it had not been there */
	recipe.model = "\"unk_token\": \"?\",";
	expect_ids(recipe_make(&recipe), "axxb", "97 63 63 98");
	recipe.model = "\"unk_token\": \"?\", \"fuse_unk\": true,";
	expect_ids(recipe_make(&recipe), "axxb", "97 63 98");
}

TEST(a_piece_may_be_a_token_at_once)
{
	struct recipe recipe = {.merges = "a b,b c,a bc"};

	expect_ids(recipe_make(&recipe), "abc", "256 99"); /* no way leads to 258 */
	recipe.model = "\"ignore_merges\": true,";
	expect_ids(recipe_make(&recipe), "abc abc", "258 32 256 99");
}

TEST(a_space_may_come_first)
{
	struct recipe recipe = {.merges = "Ġ a",
				.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"};
	tokenizer *tokenizer = recipe_make(&recipe);

	expect_ids(tokenizer, "a", "256");
	expect_ids(tokenizer, " a", "256");
	expect_ids(tokenizer, "a a", "256 256");
}

/* ------------------------------------------------------------------------------------------------- added tokens -- */

#define ADDED(id, content, more) "{\"id\": " #id ", \"content\": \"" content "\"" more "}"

TEST(added_tokens_come_first)
{
	struct recipe recipe = {.added =
				    "[" ADDED(256, "<a>", ", \"special\": true") "," ADDED(257, "<a><b>", "") "," ADDED(
					258, "<b>", ", \"special\": false") "," ADDED(300, "<c>", "") "]"};
	tokenizer *tokenizer = recipe_make(&recipe);

	assert_int_equal(tokenizer_size(tokenizer), 301);
	expect_ids(tokenizer, "x<a>y", "120 256 121");
	expect_ids(tokenizer, "<a><b>", "257"); /* the longest */
	expect_ids(tokenizer, "<b><a>", "258 256");
	expect_ids(tokenizer, "<a", "60 97");
	expect_plain_ids(tokenizer, "<a>", "60 97 62");
	expect_plain_ids(tokenizer, "<b>", "258");
	assert_int_equal(tokenizer_find(tokenizer, "<a>"), 256);
	assert_int_equal(tokenizer_find(tokenizer, "a"), 97);
	assert_int_equal(tokenizer_find(tokenizer, "<d>"), -1);
	assert_true(tokenizer_is_special(tokenizer, 256));
	assert_false(tokenizer_is_special(tokenizer, 258));
	assert_false(tokenizer_is_special(tokenizer, 280));
	assert_false(tokenizer_is_special(tokenizer, 4000000000u));
}

TEST(added_tokens_take_spaces)
{
	struct recipe recipe = {
	    .added = "[" ADDED(256, "<l>", ", \"lstrip\": true") "," ADDED(257, "<r>", ", \"rstrip\": true") "]"};
	tokenizer *tokenizer = recipe_make(&recipe);

	expect_ids(tokenizer, "a \xe3\x80\x80<l> b", "97 256 32 98");
	expect_ids(tokenizer, "a <r> \n b", "97 32 257 98");
	expect_ids(tokenizer, "<r>  <l>", "257 256");
	expect_ids(tokenizer, "  <l>", "256");
	expect_ids(tokenizer, "<r>  ", "257");
}

TEST(added_tokens_may_be_words)
{
	struct recipe recipe = {.added = "[" ADDED(256, "cat", ", \"single_word\": true") "]"};
	tokenizer *tokenizer = recipe_make(&recipe);

	expect_ids(tokenizer, "cat", "256");
	expect_ids(tokenizer, "a cat.", "97 32 256 46");
	expect_ids(tokenizer, "cats", "99 97 116 115");
	expect_ids(tokenizer, "_cat", "95 99 97 116");
	expect_ids(tokenizer,
		   "\xc3\xa9"
		   "cat",
		   "195 169 99 97 116");
}

static bool is_blank(char byte)
{
	return byte == ' ' || byte == '\n';
}

/* The definition of added_next: every token compared at every place. Letters and spaces are ASCII. */
static bool next_slowly(const struct added_token *all, size_t count, struct added_search *search,
			struct added_match *match)
{
	for (size_t at = search->from; at < search->size; at++) {
		const struct added_token *best = NULL;
		for (size_t i = 0; i < count; i++) {
			if (all[i].size <= search->size - at &&
			    memcmp(all[i].content, search->text + at, all[i].size) == 0 &&
			    (!best || all[i].size > best->size || (all[i].size == best->size && all[i].id < best->id)))
				best = &all[i];
		}
		if (best && best->special && !search->special)
			at += best->size - 1;
		if (!best || (best->special && !search->special))
			continue;
		*match = (struct added_match){best->id, at, at + best->size};
		while (best->lstrip && match->start > search->done && is_blank(search->text[match->start - 1]))
			match->start--;
		while (best->rstrip && match->end < search->size && is_blank(search->text[match->end]))
			match->end++;
		search->from = at + best->size;
		search->done = match->end;
		return true;
	}
	return false;
}

TEST(added_tokens_follow_the_definition)
{
	uint64_t random = 5;

	for (int round = 0; round < 3000; round++) {
		struct added_tokens added = {0};
		struct added_token all[12];
		char contents[12][80], text[300];
		size_t count = 1 + draw_below(&random, 12);

		for (size_t i = 0; i < count; i++) {
			size_t size = 1 + draw_below(&random, i % 4 ? 6 : 80);
			for (size_t j = 0; j < size; j++)
				contents[i][j] = "aab \n"[draw_below(&random, size > 10 ? 2 : 5)];
			all[i] = (struct added_token){.content = contents[i],
						      .size = size,
						      .id = (uint32_t)draw_below(&random, 100),
						      .special = draw_below(&random, 4) == 0,
						      .lstrip = draw_below(&random, 3) == 0,
						      .rstrip = draw_below(&random, 3) == 0};
			/* equal contents have equal flags here: which of them counts is told by the id */
			for (size_t j = 0; j < i; j++) {
				uint32_t id = all[i].id;
				if (all[j].size == size && memcmp(contents[j], contents[i], size) == 0) {
					all[i] = all[j];
					all[i].id = id;
				}
			}
			must(added_put(&added, &all[i], &err));
		}
		added_finish(&added);
		for (size_t i = 0; i < sizeof(text); i++)
			text[i] = "aaaaab \n"[draw_below(&random, round % 2 ? 8 : 5)];
		struct added_search fast = {.added = &added,
					    .text = text,
					    .size = draw_below(&random, sizeof(text)),
					    .special = round % 3},
				    slow = fast;
		struct added_match found, expected;
		bool more = true;
		while (more) {
			more = next_slowly(all, count, &slow, &expected);
			assert_int_equal(added_next(&fast, &found), more);
			if (more) {
				assert_int_equal(found.id, expected.id);
				assert_int_equal(found.start, expected.start);
				assert_int_equal(found.end, expected.end);
			}
		}
		added_free(&added);
	}
}

TEST(added_tokens_in_normal_form)
{
	/* e and an acute: found in a text that has them apart or together, if it is normalised */
	struct recipe recipe = {.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}",
				.added = "[" ADDED(256, "e\\u0301x", ", \"normalized\": true") "," ADDED(
				    257, "e\\u0301y", ", \"normalized\": false") "]"};
	tokenizer *tokenizer = recipe_make(&recipe);

	expect_ids(tokenizer, "e\xcc\x81x", "256");
	expect_ids(tokenizer, "\xc3\xa9x", "256");
	expect_ids(tokenizer, "e\xcc\x81y", "257");
	expect_ids(tokenizer, "\xc3\xa9y", "195 169 121");
}

/* -------------------------------------------------------------------------------------------------- normal form -- */

static void check_form(const char *text, const char *expected)
{
	char *form;
	size_t size;

	must(nfc(text, strlen(text), &form, &size, &err));
	if (strcmp(text, expected) == 0) {
		assert_null(form);
		return;
	}
	assert_non_null(form);
	assert_int_equal(size, strlen(expected));
	assert_memory_equal(form, expected, size);
	free(form);
}

TEST(texts_are_normalised)
{
	check_form("", "");
	check_form("plain", "plain");
	check_form("caf\xc3\xa9", "caf\xc3\xa9");
	check_form("cafe\xcc\x81!", "caf\xc3\xa9!");
	check_form("q\xcc\x81\xcc\xa3", "q\xcc\xa3\xcc\x81");               /* marks by class */
	check_form("a\xcc\xa3\xcc\x82", "\xe1\xba\xad");                    /* twice */
	check_form("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul */
	check_form("\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81");
	check_form("\xe2\x84\xab", "\xc3\x85");                       /* a sign that is a letter */
	check_form("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");       /* comes apart, and stays so */
	check_form("x\xe0\xa2\x98\xcc\xb4", "x\xe0\xa2\x98\xcc\xb4"); /* U+0898: a mark since Unicode 14 */
	check_form("e\xe0\xa2\x98\xcc\x81", "e\xe0\xa2\x98\xcc\x81");
	check_form("\xcc\x81"
		   "e\xcc\x81",
		   "\xcc\x81\xc3\xa9");
}

TEST(many_marks_are_no_trouble)
{
	size_t pairs = 200000, size;
	char *text = test_alloc(1 + 4 * pairs), *form;

	text[0] = 'q';
	for (size_t i = 0; i < pairs; i++)
		memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4);
	must(nfc(text, 1 + 4 * pairs, &form, &size, &err));
	assert_int_equal(size, 1 + 4 * pairs);
	assert_memory_equal(form, "q\xcc\xa3\xcc\xa3", 5);
	assert_memory_equal(form + size - 4, "\xcc\x81\xcc\x81", 4);
	free(form);
}

/* ---------------------------------------------------------------------------------------------------- bad bytes -- */

TEST(bad_bytes_are_refused_or_replaced)
{
	struct recipe recipe = {0};
	tokenizer *tokenizer = recipe_make(&recipe);
	struct tokens tokens = {0};
	struct text text = {0};

	must_fail(tokenizer_encode(tokenizer, "ab\xff", 3, true, &tokens, &err), ROSA_EINVAL, "offset 2");
	assert_int_equal(tokens.count, 0);
	must(text_append(&text, "a text", "a\xe2\x82z\xff\xc0\x80", 7, true, &err));
	assert_string_equal(text.data, "a" UTF8_REPLACEMENT "z" UTF8_REPLACEMENT UTF8_REPLACEMENT UTF8_REPLACEMENT);
	text_free(&text);
	must(tokenizer_encode(tokenizer, "a\0b", 3, true, &tokens, &err));
	assert_int_equal(tokens.count, 3);
	tokens_free(&tokens);
}

/* ----------------------------------------------------------------------------------------------------- decoding -- */

/* The whole text, bad bytes replaced. */
static size_t replace_all(const uint8_t *bytes, size_t size, char *out)
{
	size_t written = 0, length;

	for (size_t at = 0; at < size; at += length) {
		bool bad = utf8_next((const char *)bytes + at, size - at, &length) == UTF8_BAD;
		memcpy(out + written, bad ? UTF8_REPLACEMENT : (const char *)bytes + at, bad ? 3 : length);
		written += bad ? 3 : length;
	}
	return written;
}

TEST(decoding_does_not_depend_on_tokens)
{
	static const char *const bits[] = {"a",    "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf0\x9f",
					   "\xe2", "\x80",     "\xff",         "\xed\xa0\x80",     "\xf4\x90"};
	struct recipe recipe = {0};
	tokenizer *tokenizer = recipe_make(&recipe);
	char expected[512], found[512], *one = test_alloc(tokenizer_longest(tokenizer));
	uint64_t random = 3;

	for (int round = 0; round < 2000; round++) {
		struct decoding decoding = {{0}, 0};
		uint8_t bytes[64];
		size_t size = 0, written = 0, expected_size;
		for (int i = 0; i < 8; i++) {
			const char *bit = bits[draw_below(&random, COUNT(bits))];
			memcpy(bytes + size, bit, strlen(bit));
			size += strlen(bit);
		}
		for (size_t i = 0; i < size; i++) { /* the id of a byte is the byte */
			size_t count = decode_token(tokenizer, &decoding, bytes[i], false, one);
			assert_true(count <= tokenizer_longest(tokenizer));
			assert_int_equal(utf8_valid(one, count), count);
			memcpy(found + written, one, count);
			written += count;
		}
		written += decode_finish(&decoding, found + written);
		expected_size = replace_all(bytes, size, expected);
		assert_int_equal(written, expected_size);
		assert_memory_equal(found, expected, written);
	}
}

TEST(special_tokens_are_written_on_request)
{
	struct recipe recipe = {.added = "[" ADDED(256, "<s>", ", \"special\": true") "," ADDED(257, "<t>", "") "]"};
	tokenizer *tokenizer = recipe_make(&recipe);
	struct decoding decoding = {{0}, 0};
	char out[64];
	size_t length;

	assert_int_equal(decode_token(tokenizer, &decoding, 256, false, out), 0);
	assert_int_equal(decode_token(tokenizer, &decoding, 256, true, out), 3);
	assert_int_equal(decode_token(tokenizer, &decoding, 257, false, out), 3);
	assert_memory_equal(out, "<t>", 3);
	assert_int_equal(decode_token(tokenizer, &decoding, 9999, false, out), 0);
	assert_memory_equal(tokenizer_bytes(tokenizer, 32, &length), " ", 1);
	assert_int_equal(length, 1);
	tokenizer_bytes(tokenizer, 9999, &length);
	assert_int_equal(length, 0);
}

/* ---------------------------------------------------------------------------------------------- what is refused -- */

#define TEMPLATE(single)                                                                                               \
	"{\"type\": \"TemplateProcessing\", \"single\": [" single                                                      \
	"], \"special_tokens\": {\"!\": {\"id\": \"!\", \"ids\": [33], \"tokens\": [\"!\"]}}}"
#define TOKEN(name) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define TEXT        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"

static const struct refused {
	struct recipe recipe;
	const char *reason;
} refusals[] = {
    {{.model = "\"type\": \"Unigram\","}, "Unigram"},
    {{.model = "\"byte_fallback\": true,"}, "byte_fallback"},
    {{.model = "\"dropout\": 0.1,"}, "dropout"},
    {{.model = "\"continuing_subword_prefix\": \"##\","}, "##"},
    {{.model = "\"end_of_word_suffix\": \"</w>\","}, "</w>"},
    {{.model = "\"unk_token\": \"<unk>\","}, "<unk>"},
    {{.model = "\"unk_token\": 3,"}, "unk_token"},
    {{.model = "\"ignore_merges\": \"yes\","}, "ignore_merges"},
    {{.normalizer = "{\"type\": \"NFKC\"}"}, "NFKC"},
    {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}"}, "Lowercase"},
    {{.normalizer = "{}"}, "type"},
    {{.pre_tokenizer = "null"}, "ByteLevel"},
    {{.pre_tokenizer = "{\"type\": \"Metaspace\"}"}, "Metaspace"},
    {{.pre_tokenizer = SPLIT("a", "Isolated")}, "ByteLevel"},
    {{.pre_tokenizer = SEQUENCE(SPLIT("\\\\w", "Isolated") "," BYTE_LEVEL)}, "\\w"},
    {{.pre_tokenizer = SEQUENCE(SPLIT("(a", "Isolated") "," BYTE_LEVEL)}, "PCRE2"},
    {{.pre_tokenizer = SEQUENCE(SPLIT("a", "Sideways") "," BYTE_LEVEL)}, "Sideways"},
    {{.pre_tokenizer = SEQUENCE(BYTE_LEVEL "," SPLIT("a", "Isolated"))}, "after ByteLevel"},
    {{.pre_tokenizer = SEQUENCE("{\"type\": \"Sequence\", \"pretokenizers\": []}")}, "Sequence"},
    {{.post_processor = "{\"type\": \"BertProcessing\"}"}, "BertProcessing"},
    {{.post_processor = TEMPLATE(TEXT "," TOKEN("!"))}, "after it"},
    {{.post_processor = TEMPLATE(TOKEN("!") "," TOKEN("!") "," TEXT)}, "more than one"},
    {{.post_processor = TEMPLATE(TOKEN("?") "," TEXT)}, "'?'"},
    {{.decoder = "{\"type\": \"WordPiece\"}"}, "WordPiece"},
    {{.added = "[" ADDED(16777216, "x", "") "]"}, "16777216"},
    {{.added = "[" ADDED(-1, "x", "") "]"}, "id"},
    {{.added = "[{\"id\": 3}]"}, "content"},
    {{.added = "{}"}, "added_tokens"},
};

static void check_refused(const char *json, size_t size, const char *reason)
{
	tokenizer *made;

	if (tokenizer_from_json(json, size, "test.json", &made, &err) == ROSA_OK)
		fail_msg("accepted, but not: %s", reason);
	assert_null(made);
	if (!strstr(err.message, reason) || strncmp(err.message, "test.json: ", 11) != 0)
		fail_msg("'%s' does not say test.json and '%s'", err.message, reason);
}

TEST(what_is_unknown_is_refused_by_name)
{
	for (size_t i = 0; i < COUNT(refusals); i++) {
		char *json = recipe_json(&refusals[i].recipe);
		check_refused(json, strlen(json), refusals[i].reason);
	}
}

TEST(broken_vocabularies_are_refused)
{
	static const struct {
		const char *model, *reason;
	} cases[] = {
	    {"{\"vocab\": {}, \"merges\": []}", "model.vocab"},
	    {"{\"vocab\": [], \"merges\": []}", "model.vocab"},
	    {"{\"vocab\": {\"a\": 0}}", "model.merges is missing"},
	    {"{\"merges\": []}", "model.vocab is missing"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}", "id 0 is there twice"},
	    {"{\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}", "the same"},
	    {"{\"vocab\": {\"a\": -1}, \"merges\": []}", "whole number"},
	    {"{\"vocab\": {\"a\": 1.5}, \"merges\": []}", "comma"},
	    {"{\"vocab\": {\"a\": 99999999}, \"merges\": []}", "id"},
	    {"{\"vocab\": {\"a\": 99999999999999999999}, \"merges\": []}", "large"},
	    {"{\"vocab\": {\"a\\ud800\": 1}, \"merges\": []}", "escape"},
	    {"{\"vocab\": {\"a\\x\": 1}, \"merges\": []}", "escape"},
	    {"{\"vocab\": {\"a\xff\": 1}, \"merges\": []}", "UTF-8"},
	    {"{\"vocab\": {\"a\": 0} {}, \"merges\": []}", "something more"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}", "'a' with 'b' is not in the vocabulary"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a c\"]}", "'c' is not in the vocabulary"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"ab\"]}", "two tokens"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b c\"]}", "two tokens"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [[\"a\"]]}", "comma"},
	    {"{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [3]}", "string"},
	    {"{\"vocab\": {\"a\": 0}, \"vocab\": {\"a\": 0}, \"merges\": []}", "vocab"},
	    {"[]", "model"},
	};
	char json[512];

	for (size_t i = 0; i < COUNT(cases); i++) {
		snprintf(json, sizeof(json),
			 "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": %s}",
			 cases[i].model);
		check_refused(json, strlen(json), cases[i].reason);
	}
	check_refused("{}", 2, "model");
	check_refused("", 0, "");
	check_refused("[1", 2, "");
}

TEST(every_beginning_is_refused)
{
	struct recipe recipe = {.merges = "a b,ab c", .added = "[" ADDED(300, "<a>", "") "]"};
	char *json = recipe_json(&recipe);
	size_t size = strlen(json);

	for (size_t length = 0; length < size; length += 1 + length / 50) {
		char *part = test_alloc(length ? length : 1);
		memcpy(part, json, length);
		check_refused(part, length, "");
	}
}

/* -------------------------------------------------------------------------------------------------------- begin -- */

TEST(a_token_may_begin_texts)
{
	struct recipe recipe = {0};
	tokenizer *tokenizer = recipe_make(&recipe);

	assert_int_equal(tokenizer_bos(tokenizer), -1);
	recipe.post_processor =
	    "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, " TEMPLATE(TOKEN("!") "," TEXT) "]}";
	tokenizer = recipe_make(&recipe);
	assert_int_equal(tokenizer_bos(tokenizer), 33);
	expect_ids(tokenizer, "a", "97"); /* it is the caller who puts it there */
}

/* --------------------------------------------------------------------------------------------------------- GGUF -- */

/* One thing that is not as it should be. */
struct oddity {
	const char *model, *pre, *first_merge;
	int64_t kinds, bos; /* entries too many; -2: left out */
	const char *reason;
};

static struct bytes make_gguf(const struct oddity *oddity)
{
	struct weights_writer *writer = weights_new(WEIGHTS_GGUF);
	const char *tokens[] = {"a", "b", "Ġ", "ab", "<s>", "<u>", "1", "2"};
	int64_t kinds[] = {1, 1, 1, 1, 3, 4, 1, 1, 1};
	const char *merges[] = {oddity->first_merge ? oddity->first_merge : "a b"};

	if (oddity->model)
		weights_set_string(writer, "tokenizer.ggml.model", oddity->model);
	if (oddity->pre)
		weights_set_string(writer, "tokenizer.ggml.pre", oddity->pre);
	weights_set_strings(writer, "tokenizer.ggml.tokens", 8, tokens);
	weights_set_integers(writer, "tokenizer.ggml.token_type", GGUF_INT32, (size_t)(8 + oddity->kinds), kinds);
	weights_set_strings(writer, "tokenizer.ggml.merges", 1, merges);
	weights_set_string(writer, "tokenizer.chat_template", "hello");
	if (oddity->bos != -2)
		weights_set_integer(writer, "tokenizer.ggml.bos_token_id", GGUF_UINT32, oddity->bos);
	return weights_finish(writer);
}

TEST_CLOSER(close_tokenizer, tokenizer_free)

static rosa_status read_gguf(const struct oddity *oddity, tokenizer **made, rosa_error *err)
{
	struct bytes file = make_gguf(oddity);
	struct gguf gguf = {0};
	rosa_status status = gguf_read(file.data, file.size, "test.gguf", &gguf, err);

	assert_int_equal(status, ROSA_OK);
	status = tokenizer_from_gguf(&gguf, "test.gguf", made, err);
	gguf_free(&gguf);
	test_later(close_tokenizer, *made);
	return status;
}

TEST(gguf_says_the_same)
{
	static const char *const names[] = {"gpt-2", "smollm", "qwen2", "llama-bpe"};
	struct oddity plain = {.model = "gpt2", .bos = 4};
	tokenizer *tokenizer;

	for (size_t i = 0; i < COUNT(names); i++) {
		plain.pre = names[i];
		must(read_gguf(&plain, &tokenizer, &err));
		assert_int_equal(tokenizer_size(tokenizer), 8);
		assert_string_equal(tokenizer_template(tokenizer), "hello");
		expect_ids(tokenizer, "ab<s>a<u>", "3 4 0 5");
		expect_plain_ids(tokenizer, "ab<u>", "3 5");
		expect_ids(tokenizer, " 12", "2 6 7");
		assert_int_equal(tokenizer_bos(tokenizer), strcmp(names[i], "llama-bpe") == 0 ? 4 : -1);
		assert_true(tokenizer_is_special(tokenizer, 4));
		assert_false(tokenizer_is_special(tokenizer, 5));
	}
}

TEST(gguf_is_refused_by_name)
{
	static const struct oddity cases[] = {
	    {.reason = "has no tokenizer"},
	    {.model = "llama", .reason = "'llama'"},
	    {.model = "gpt2", .pre = "tekken", .reason = "'tekken'"},
	    {.model = "gpt2", .first_merge = "a c", .reason = "'c'"},
	    {.model = "gpt2", .first_merge = "ab", .reason = "two tokens"},
	    {.model = "gpt2", .kinds = 1, .reason = "token_type"},
	    {.model = "gpt2", .pre = "llama-bpe", .bos = -2, .reason = "bos_token_id"},
	    {.model = "gpt2", .pre = "llama-bpe", .bos = 8, .reason = "begin-of-text"},
	};
	tokenizer *made;

	for (size_t i = 0; i < COUNT(cases); i++) {
		if (read_gguf(&cases[i], &made, &err) == ROSA_OK)
			fail_msg("accepted, but not: %s", cases[i].reason);
		assert_null(made);
		if (!strstr(err.message, cases[i].reason) || strncmp(err.message, "test.gguf: ", 11) != 0)
			fail_msg("'%s' does not say test.gguf and '%s'", err.message, cases[i].reason);
	}
}

/* -------------------------------------------------------------------------------------------------------- files -- */

static const tokenizer *opened(const char *name)
{
	tokenizer *made;

	must(tokenizer_open(scratch_path(name), &made, &err));
	test_later(close_tokenizer, made);
	return made;
}

TEST_WITH(finds_the_files_of_a_model, scratch_enter, scratch_leave)
{
	static const char *const paths[] = {".", "tokenizer.json", "model.safetensors"};
	struct recipe recipe = {.merges = "a b"};
	struct oddity plain = {.model = "gpt2", .bos = 4};
	struct bytes gguf = make_gguf(&plain);
	tokenizer *none;

	must_fail(tokenizer_open(scratch_path("."), &none, &err), ROSA_EIO, "tokenizer.json");
	must_refuse(tokenizer_open(scratch_path("none.gguf"), &none, &err), ROSA_EIO);
	assert_null(none);
	scratch_write("tokenizer.json", recipe_json(&recipe));
	scratch_write(
	    "tokenizer_config.json",
	    "{\"chat_template\": [{\"name\": \"x\", \"template\": \"X\"}, {\"name\": \"default\", \"template\": "
	    "\"D\"}]}");
	for (size_t i = 0; i < COUNT(paths); i++) {
		const tokenizer *tokenizer = opened(paths[i]);

		expect_ids(tokenizer, "ab", "256");
		assert_string_equal(tokenizer_template(tokenizer), "D");
	}
	scratch_write("chat_template.jinja", "J");
	assert_string_equal(tokenizer_template(opened(".")), "J");
	bytes_save(&gguf, scratch_path("a.bin"));
	expect_ids(opened("a.bin"), "ab", "3");
	scratch_write("tokenizer.json", "{\"model\": ");
	must_fail(tokenizer_open(scratch_path("."), &none, &err), ROSA_EFORMAT, "tokenizer.json");
}

TEST(refuses_pipes_by_name)
{
	static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
	struct recipe recipe = {0};
	char *json = recipe_json(&recipe), says[64];
	tokenizer *tokenizer;

	for (size_t i = 0; i < COUNT(names); i++) {
		scratch_enter(NULL);
		scratch_write("tokenizer.json", json);
		remove(scratch_path(names[i]));
		assert_int_equal(mkfifo(scratch_path(names[i]), 0600), 0);
		assert_int_equal(tokenizer_open(scratch_path("."), &tokenizer, &err), ROSA_EIO);
		assert_null(tokenizer);
		snprintf(says, sizeof(says), "%s: is not a regular file", names[i]);
		must_say(says);
		scratch_leave(NULL);
	}
}

TEST_GROUP(recipe_needed, NULL)
