/*
 * Any bytes as a tokenizer, and any bytes as a text.
 *
 * The first byte of an input says what the rest is: a tokenizer.json; one part of the pipeline in an otherwise good
 * one; a regular expression; or a text. Whatever is accepted is used: pieces of a text give the text again, ids are
 * below the size, and decoding gives the normal form of what was encoded. What is refused comes with a reason and
 * leaves nothing behind.
 */
#include "base/text.h"
#include "model/pretokenize.h"
#include "support_fuzz.h"
#include "support_search.h"
#include "support_tokenizer.h"
#include "model/tokenizer_nfc.h"
#include "base/utf8.h"

static const char sample[] = "It's  12\r\n <a>\xc3\xa9 e\xcc\x81 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 !? cat\t";

/* -------------------------------------------------------------------------------------------------------- texts -- */

/* Decodes ids; memory to free. */
static char *decode_all(const tokenizer *tokenizer, const struct tokens *tokens, size_t *size)
{
	char *out = malloc((tokens->count + 1) * tokenizer_longest(tokenizer));
	struct decoding decoding = {{0}, 0};

	check(out != NULL);
	*size = 0;
	for (size_t i = 0; i < tokens->count; i++) {
		check(tokens->ids[i] < tokenizer_size(tokenizer));
		size_t count = decode_token(tokenizer, &decoding, tokens->ids[i], true, out + *size);
		check(utf8_valid(out + *size, count) == count);
		*size += count;
	}
	*size += decode_finish(&decoding, out + *size);
	return out;
}

static void check_same(const char *text, size_t size, const char *other, size_t other_size)
{
	check(size == other_size && memcmp(text, other, size) == 0);
}

/* Encodes, and decodes again. `exact`: nothing may be lost but what normalising changes. */
static void try_text(const tokenizer *tokenizer, const char *text, size_t size, bool special, bool exact)
{
	struct tokens tokens = {0};
	struct text repaired = {0};
	rosa_error error = {0};
	size_t decoded_size, form_size;

	if (tokenizer_encode(tokenizer, text, size, special, &tokens, &error) != ROSA_OK) {
		check(error.message[0] != '\0' && tokens.count == 0);
		check(!exact || utf8_valid(text, size) != size);
		tokens_free(&tokens);
		check(text_append(&repaired, "a text", text, size, true, &error) == ROSA_OK);
		check(!exact ||
		      tokenizer_encode(tokenizer, repaired.data, repaired.size, special, &tokens, &error) == ROSA_OK);
		text_free(&repaired);
		free(decode_all(tokenizer, &tokens, &decoded_size));
		tokens_free(&tokens);
		return;
	}
	char *decoded = decode_all(tokenizer, &tokens, &decoded_size), *form = NULL;
	if (exact) {
		check(nfc(text, size, &form, &form_size, &error) == ROSA_OK);
		check_same(decoded, decoded_size, form ? form : text, form ? form_size : size);
	}
	free(form);
	free(decoded);
	tokens_free(&tokens);
}

static const tokenizer *exact_tokenizer(void)
{
	static tokenizer *made; /* once for all inputs; still reachable at the end, so no leak */
	const struct recipe recipe = {
	    .merges = "t h,th e,Ġ the,Ġ Ġ,a a,aa aa,Ã ©,Ċ Ċ",
	    .normalizer = "{\"type\": \"NFC\"}",
	    .added =
		"[{\"id\": 300, \"content\": \"<a>\", \"special\": true}, {\"id\": 301, \"content\": \"<a><b>\"}]"};

	if (!made) {
		char *json = recipe_json(&recipe);

		check(tokenizer_from_json(json, strlen(json), "fuzz", &made, NULL) == ROSA_OK);
	}
	return made;
}

/* --------------------------------------------------------------------------------------------------- tokenizers -- */

static void try_json(const char *json, size_t size)
{
	tokenizer *made = NULL;
	rosa_error error = {0};

	if (tokenizer_from_json(json, size, "fuzz", &made, &error) != ROSA_OK) {
		check(made == NULL && strncmp(error.message, "fuzz: ", 6) == 0);
		return;
	}
	check(tokenizer_bos(made) < (int64_t)tokenizer_size(made));
	try_text(made, sample, sizeof(sample) - 1, true, false);
	try_text(made, sample, sizeof(sample) - 1, false, false);
	tokenizer_free(made);
}

static void try_part(int which, const char *part)
{
	struct recipe recipe = {.merges = "a b,ab c,Ġ a"};
	const char **fields[] = {&recipe.pre_tokenizer,  &recipe.added,   &recipe.normalizer,
				 &recipe.post_processor, &recipe.decoder, &recipe.model};

	*fields[which] = part;
	char *json = recipe_json(&recipe);
	try_json(json, strlen(json));
}

static rosa_status collect(void *context, const char *piece, size_t size, rosa_error *err)
{
	char *text = context;

	strncat(text, piece, size);
	return ROSA_OK;
}

/* A text that is longer than the window of a search, with runs that are as well. */
static void try_windows(const char *regex, size_t size)
{
	static char text[1200];
	static size_t used;

	while (!used || used + sizeof(sample) + 400 < sizeof(text)) {
		memcpy(text + used, sample, sizeof(sample) - 1);
		used += sizeof(sample) - 1;
		memset(text + used, used % 2 ? ' ' : 'a', 300);
		used += 300;
	}
	check(searches_agree(regex, size, text, used, true));
	check(searches_agree(regex, size, text, used, false));
}

static void try_regex(const char *regex, size_t size)
{
	struct pretokenizer pretokenizer = {0};
	struct search search = {0};
	char pieces[sizeof(sample)] = "";
	rosa_error error = {0};

	if (pretokenizer_add_split(&pretokenizer, regex, size, SPLIT_ISOLATED, false, &error) == ROSA_OK) {
		check(search_new(&search, sizeof(sample) - 1, &error) == ROSA_OK);
		if (pretokenize(&pretokenizer, &search, sample, sizeof(sample) - 1, collect, pieces, &error) == ROSA_OK)
			check(strcmp(pieces, sample) == 0);
		else
			check(error.message[0] != '\0');
		search_free(&search);
	} else {
		check(error.message[0] != '\0');
	}
	pretokenizer_free(&pretokenizer);
	try_windows(regex, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *rest = size ? malloc(size) : NULL;

	if (!rest)
		return 0;
	memcpy(rest, data + 1, size - 1);
	rest[size - 1] = '\0';
	switch (data[0] % 10) {
	case 0:
		try_json(rest, size - 1);
		break;
	case 1:
		try_regex(rest, size - 1);
		break;
	case 2:
		try_text(exact_tokenizer(), rest, size - 1, true, true);
		try_text(exact_tokenizer(), rest, size - 1, false, true);
		break;
	case '{' % 10: /* a file as it is */
		try_json((const char *)data, size);
		break;
	default: /* 4 to 9 */
		try_part(data[0] % 10 - 4, rest);
	}
	free(rest);
	test_release(0);
	return 0;
}
