/*
 * A tokenizer from the metadata of a GGUF file.
 *
 * GGUF stores the vocabulary and the merges, but only a name for the pipeline around them, tokenizer.ggml.pre. The
 * pipelines are listed here, as in the tokenizer.json that was published with the models: SmolLM2 splits off each digit
 * before it applies GPT-2's expression, Qwen normalises texts, Llama 3 takes a piece that is a token without applying
 * merges. An unknown name is refused, because a wrong expression gives wrong tokens that look right.
 *
 * Note that transformers, reading a GGUF file, passes over the name and splits by GPT-2's expression always; before
 * digits its tokens differ from those that SmolLM2 was trained on, which are the ones given here.
 */
#include "model/tokenizer_parts.h"

#include "base/status.h"
#include "model/tokenizer_nfc.h"

#include <string.h>

#define KEY(name) "tokenizer.ggml." name

/* ---------------------------------------------------------------------------------------------------- pipelines -- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS        "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define THE_REST     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char qwen2_regex[] = CONTRACTIONS "|" WORDS "|\\p{N}|" THE_REST;
static const char llama3_regex[] = CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" THE_REST;

static const struct pipeline {
	const char *name;
	const char *regex;
	bool digits; /* each cut off first */
	bool nfc, ignore_merges, bos;
} pipelines[] = {
    {.name = "gpt-2", .regex = gpt2_regex},
    {.name = "default", .regex = gpt2_regex},
    {.name = "smollm", .regex = gpt2_regex, .digits = true},
    {.name = "qwen2", .regex = qwen2_regex, .nfc = true},
    {.name = "llama-bpe", .regex = llama3_regex, .ignore_merges = true, .bos = true},
    {.name = "llama3", .regex = llama3_regex, .ignore_merges = true, .bos = true},
    {.name = "llama-v3", .regex = llama3_regex, .ignore_merges = true, .bos = true},
};

/* As much of a text from the file as a message holds. */
#define SHOWN(text) (int)((text).length < 64 ? (text).length : 64), (text).at

static bool equals(struct gguf_text text, const char *name)
{
	return text.length == strlen(name) && memcmp(text.at, name, text.length) == 0;
}

static rosa_status find_pipeline(const struct gguf *gguf, const struct pipeline **found, rosa_error *err)
{
	struct gguf_text name = {"default", 7};

	if (gguf_find(gguf, KEY("pre")) && !gguf_string(gguf_find(gguf, KEY("pre")), 0, &name))
		return rosa_fail(err, ROSA_EFORMAT, KEY("pre") " is not a string");
	for (size_t i = 0; i < sizeof(pipelines) / sizeof(pipelines[0]); i++) {
		if (equals(name, pipelines[i].name)) {
			*found = &pipelines[i];
			return ROSA_OK;
		}
	}
	return rosa_fail(err, ROSA_EFORMAT, KEY("pre") ": '%.*s' is not supported", SHOWN(name));
}

/* A flag that may be missing. */
static rosa_status read_flag(const struct gguf *gguf, const char *key, bool *flag, rosa_error *err)
{
	const struct gguf_entry *entry = gguf_find(gguf, key);
	int64_t value;

	if (entry && (entry->type == GGUF_ARRAY || !gguf_integer(entry, 0, &value)))
		return rosa_fail(err, ROSA_EFORMAT, "%s is not a flag", key);
	if (entry)
		*flag = value != 0;
	return ROSA_OK;
}

static rosa_status build_pipeline(tokenizer *tokenizer, const struct gguf *gguf, const struct pipeline *pipeline,
				  rosa_error *err)
{
	struct pretokenizer *pretokenizer = &tokenizer->pretokenizer;
	rosa_status status = pipeline->nfc ? nfc_check(err) : ROSA_OK;

	tokenizer->byte_level = true;
	tokenizer->nfc = pipeline->nfc;
	tokenizer->bpe.ignore_merges = pipeline->ignore_merges;
	if (!status)
		status = read_flag(gguf, KEY("add_space_prefix"), &pretokenizer->prefix_space, err);
	if (!status && pipeline->digits)
		status = pretokenizer_add_digits(pretokenizer, true, err);
	pretokenizer->space_at = pretokenizer->count;
	if (!status)
		status = pretokenizer_add_split(pretokenizer, pipeline->regex, strlen(pipeline->regex), SPLIT_ISOLATED,
						false, err);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- tokens -- */

/* Kinds of tokens, as in the file. */
enum token_kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static rosa_status find_texts(const struct gguf *gguf, const char *key, const struct gguf_entry **entry,
			      rosa_error *err)
{
	*entry = gguf_find(gguf, key);
	if (!*entry)
		return rosa_fail(err, ROSA_EFORMAT, "%s is missing", key);
	if ((*entry)->type != GGUF_ARRAY || (*entry)->element != GGUF_STRING)
		return rosa_fail(err, ROSA_EFORMAT, "%s is not an array of strings", key);
	return ROSA_OK;
}

static rosa_status find_kinds(const struct gguf *gguf, size_t tokens, const struct gguf_entry **kinds, rosa_error *err)
{
	*kinds = gguf_find(gguf, KEY("token_type"));
	if (*kinds && ((*kinds)->type != GGUF_ARRAY || (*kinds)->count != tokens))
		return rosa_fail(err, ROSA_EFORMAT,
				 KEY("token_type") " is not an array with one entry for each of %zu tokens", tokens);
	return ROSA_OK;
}

static rosa_status read_token(tokenizer *tokenizer, uint32_t id, struct gguf_text text, int64_t kind, rosa_error *err)
{
	struct added_token token = {
	    .content = (char *)text.at, .size = text.length, .id = id, .special = kind == CONTROL};
	rosa_status status = vocabulary_add_spelled(&tokenizer->bpe.vocabulary, id, text.at, text.length, err);

	if (!status && (kind == CONTROL || kind == USER_DEFINED))
		status = tokenizer_add(tokenizer, &token, false, err);
	return status;
}

static rosa_status read_tokens(tokenizer *tokenizer, const struct gguf *gguf, rosa_error *err)
{
	const struct gguf_entry *tokens, *kinds;
	rosa_status status = find_texts(gguf, KEY("tokens"), &tokens, err);

	if (!status && (tokens->count == 0 || tokens->count > TOKEN_ID_LIMIT))
		status = rosa_fail(err, ROSA_EFORMAT, KEY("tokens") ": %zu tokens", tokens->count);
	if (!status)
		status = find_kinds(gguf, tokens->count, &kinds, err);
	if (!status)
		status = vocabulary_expect(&tokenizer->bpe.vocabulary, tokens->count, err);
	for (size_t i = 0; !status && i < tokens->count; i++) {
		struct gguf_text text;
		int64_t kind = NORMAL;
		if (!gguf_string(tokens, i, &text) || (kinds && !gguf_integer(kinds, i, &kind)))
			return rosa_fail(err, ROSA_EFORMAT, KEY("token_type") " of token %zu is not a whole number", i);
		status = read_token(tokenizer, (uint32_t)i, text, kind, err);
	}
	return tokenizer_blame(status, KEY("token"), err);
}

static rosa_status read_merges(tokenizer *tokenizer, const struct gguf *gguf, rosa_error *err)
{
	const struct gguf_entry *merges;
	rosa_status status = find_texts(gguf, KEY("merges"), &merges, err);

	for (size_t i = 0; !status && i < merges->count; i++) {
		struct gguf_text text = {"", 0};
		gguf_string(merges, i, &text);
		/* a token may be a space only where it is the first character, and then it is spelled otherwise */
		const char *space = text.length ? memchr(text.at, ' ', text.length) : NULL;
		if (!space)
			return rosa_fail(err, ROSA_EFORMAT, KEY("merges") ": entry %zu is not two tokens", i);
		size_t left = (size_t)(space - text.at);
		status = bpe_add_merge(&tokenizer->bpe, text.at, left, space + 1, text.length - left - 1, err);
	}
	return tokenizer_blame(status, KEY("merges"), err);
}

/* --------------------------------------------------------------------------------------------------------- rest -- */

static rosa_status read_bos(tokenizer *tokenizer, const struct gguf *gguf, bool wanted, rosa_error *err)
{
	const struct gguf_entry *entry = gguf_find(gguf, KEY("bos_token_id"));
	rosa_status status = read_flag(gguf, KEY("add_bos_token"), &wanted, err);

	if (status || !wanted)
		return status;
	if (!entry || entry->type == GGUF_ARRAY || !gguf_integer(entry, 0, &tokenizer->bos) || tokenizer->bos < 0)
		return rosa_fail(err, ROSA_EFORMAT,
				 KEY("bos_token_id") " is missing or no id, but texts begin with it");
	return ROSA_OK;
}

static rosa_status read_template(tokenizer *tokenizer, const struct gguf *gguf, rosa_error *err)
{
	struct gguf_text text;

	if (!gguf_string(gguf_find(gguf, "tokenizer.chat_template"), 0, &text))
		return ROSA_OK;
	return tokenizer_set_template(tokenizer, text.at, text.length, err);
}

static rosa_status check_kind(const struct gguf *gguf, rosa_error *err)
{
	struct gguf_text model;

	if (!gguf_string(gguf_find(gguf, KEY("model")), 0, &model))
		return rosa_fail(err, ROSA_EFORMAT, KEY("model") " is missing: the file has no tokenizer");
	if (!equals(model, "gpt2"))
		return rosa_fail(err, ROSA_EFORMAT, KEY("model") ": '%.*s' is not supported, only gpt2 (byte-level) is",
				 SHOWN(model));
	return ROSA_OK;
}

static rosa_status read_all(tokenizer *tokenizer, const struct gguf *gguf, rosa_error *err)
{
	const struct pipeline *pipeline = NULL;
	rosa_status status = check_kind(gguf, err);

	if (!status)
		status = find_pipeline(gguf, &pipeline, err);
	if (!status)
		status = build_pipeline(tokenizer, gguf, pipeline, err);
	if (!status)
		status = read_tokens(tokenizer, gguf, err);
	if (!status)
		status = read_merges(tokenizer, gguf, err);
	if (!status)
		status = read_bos(tokenizer, gguf, pipeline->bos, err);
	if (!status)
		status = read_template(tokenizer, gguf, err);
	return status ? status : tokenizer_finish(tokenizer, err);
}

rosa_status tokenizer_from_gguf(const struct gguf *gguf, const char *name, tokenizer **made, rosa_error *err)
{
	rosa_status status = tokenizer_new(made, err);

	if (!status)
		status = read_all(*made, gguf, err);
	if (status) {
		tokenizer_free(*made);
		*made = NULL;
	}
	return tokenizer_blame(status, name, err);
}
