/*
 * A tokenizer from Hugging Face's tokenizer.json.
 *
 * The file describes a pipeline of parts, each an object with a "type". There are many types, of which byte-level
 * models use few. Types that are not supported are refused by name: a tokenizer that leaves out a step still gives
 * tokens, but wrong ones. What does not change the ids of a text (padding, truncation, offsets) is ignored.
 */
#include "model/tokenizer_parts.h"

#include "model/json.h"
#include "base/status.h"
#include "model/tokenizer_nfc.h"
#include "model/tokenizer_scan.h"

#include <stdlib.h>
#include <string.h>

/* Where the two parts lie that are not given to the JSON reader. */
struct large_parts {
	struct scan_span vocab, merges;
};

/* --------------------------------------------------------------------------------------------------- vocabulary -- */

static rosa_status read_vocab(tokenizer *tokenizer, struct scan *scan)
{
	const char *spelling;
	uint64_t id;
	size_t size;

	if (!scan_character(scan, '{'))
		return scan_fail(scan, "no object");
	/* 16 bytes per token is what a file of short ones takes */
	rosa_status status =
	    vocabulary_expect(&tokenizer->bpe.vocabulary, (size_t)(scan->end - scan->at) / 16, scan->err);
	if (status)
		return status;
	if (scan_character(scan, '}'))
		return scan_fail(scan, "no tokens");
	do {
		status = scan_string(scan, 0, &spelling, &size);
		if (!status && !scan_character(scan, ':'))
			status = scan_fail(scan, "no colon");
		if (!status)
			status = scan_number(scan, &id);
		if (!status && id >= TOKEN_ID_LIMIT)
			status = scan_fail(scan, "too large an id");
		if (!status)
			status =
			    vocabulary_add_spelled(&tokenizer->bpe.vocabulary, (uint32_t)id, spelling, size, scan->err);
	} while (!status && scan_character(scan, ','));
	if (!status && !scan_character(scan, '}'))
		status = scan_fail(scan, "neither comma nor brace");
	return status;
}

/* "a b" or ["a", "b"] */
static rosa_status read_merge(tokenizer *tokenizer, struct scan *scan)
{
	bool pair = scan_character(scan, '[');
	const char *left, *right = NULL;
	size_t left_size, right_size = 0;
	rosa_status status = scan_string(scan, 0, &left, &left_size);

	if (!status && pair) {
		if (!scan_character(scan, ','))
			status = scan_fail(scan, "no comma");
		if (!status)
			status = scan_string(scan, 1, &right, &right_size);
		if (!status && !scan_character(scan, ']'))
			status = scan_fail(scan, "no pair");
	} else if (!status) {
		const char *space = memchr(left, ' ', left_size);
		if (!space || memchr(space + 1, ' ', left_size - (size_t)(space + 1 - left)))
			return scan_fail(scan, "not two tokens with a space between");
		right = space + 1;
		right_size = left_size - (size_t)(right - left);
		left_size = (size_t)(space - left);
	}
	if (!status)
		status = bpe_add_merge(&tokenizer->bpe, left, left_size, right, right_size, scan->err);
	return status;
}

static rosa_status read_merges(tokenizer *tokenizer, struct scan *scan)
{
	rosa_status status;

	if (!scan_character(scan, '['))
		return scan_fail(scan, "no array");
	if (scan_character(scan, ']'))
		return ROSA_OK;
	do {
		status = read_merge(tokenizer, scan);
	} while (!status && scan_character(scan, ','));
	if (!status && !scan_character(scan, ']'))
		status = scan_fail(scan, "neither comma nor bracket");
	return status;
}

typedef rosa_status read_part(tokenizer *tokenizer, struct scan *scan);

static rosa_status read_large(tokenizer *tokenizer, const char *text, struct scan_span span, read_part *read,
			      const char *field, rosa_error *err)
{
	struct scan scan = {.start = text, .at = text + span.start, .end = text + span.end, .err = err};
	rosa_status status;

	if (!span.end)
		return rosa_fail(err, ROSA_EFORMAT, "%s is missing", field);
	status = read(tokenizer, &scan);
	if (!status && !scan_at_end(&scan))
		status = scan_fail(&scan, "something more");
	scan_free(&scan);
	return tokenizer_blame(status, field, err);
}

/* -------------------------------------------------------------------------------------------------------- model -- */

/* A string that must be empty, or not there. */
static rosa_status check_empty(struct json model, const char *name, rosa_error *err)
{
	const char *value = "";
	rosa_status status = json_get_string(model, name, JSON_OPTIONAL, &value, err);

	if (!status && *value)
		status = json_refuse(json_find(model, name), err, "'%s' is not supported; byte-level models have none",
				     value);
	return status;
}

static rosa_status check_model(struct json model, rosa_error *err)
{
	const char *type = "BPE";
	double dropout = 0;
	bool fallback = false;
	rosa_status status = json_get_string(model, "type", JSON_OPTIONAL, &type, err);

	if (!status && strcmp(type, "BPE") != 0)
		return json_refuse(json_find(model, "type"), err, "'%s' is not supported, only BPE is", type);
	if (!status)
		status = json_get_number(model, "dropout", JSON_OPTIONAL, &dropout, err);
	if (!status && dropout != 0)
		return json_refuse(json_find(model, "dropout"), err, "%g is not supported, only null is", dropout);
	if (!status)
		status = json_get_bool(model, "byte_fallback", JSON_OPTIONAL, &fallback, err);
	if (!status && fallback)
		return json_refuse(json_find(model, "byte_fallback"), err,
				   "true is not supported: this is not a byte-level model");
	if (!status)
		status = check_empty(model, "continuing_subword_prefix", err);
	if (!status)
		status = check_empty(model, "end_of_word_suffix", err);
	return status;
}

static rosa_status read_unknown(tokenizer *tokenizer, struct json model, rosa_error *err)
{
	struct json field = json_find(model, "unk_token");
	const char *unknown;
	size_t size;
	rosa_status status;

	if (!json_there(field))
		return ROSA_OK;
	status = json_as_text(field, &unknown, &size, err);
	if (status)
		return status;
	tokenizer->bpe.unknown = vocabulary_find_spelled(&tokenizer->bpe.vocabulary, unknown, size);
	if (tokenizer->bpe.unknown == NO_TOKEN)
		return json_refuse(field, err, "'%.64s' is not in the vocabulary", unknown);
	return ROSA_OK;
}

static rosa_status read_model(tokenizer *tokenizer, struct json root, const char *text, const struct large_parts *parts,
			      rosa_error *err)
{
	struct json model;
	rosa_status status = json_get_object(root, "model", JSON_NEEDED, &model, err);

	if (!status)
		status = check_model(model, err);
	if (!status)
		status = json_get_bool(model, "ignore_merges", JSON_OPTIONAL, &tokenizer->bpe.ignore_merges, err);
	if (!status)
		status = json_get_bool(model, "fuse_unk", JSON_OPTIONAL, &tokenizer->bpe.fuse_unknown, err);
	if (!status)
		status = read_large(tokenizer, text, parts->vocab, read_vocab, "model.vocab", err);
	if (!status)
		status = read_large(tokenizer, text, parts->merges, read_merges, "model.merges", err);
	if (!status)
		status = read_unknown(tokenizer, model, err);
	return status;
}

/* ------------------------------------------------------------------------------------------------ parts by type -- */

typedef rosa_status read_typed(tokenizer *tokenizer, struct json part, rosa_error *err);

/* One kind of part, and what reads it. */
struct typed {
	const char *type;
	read_typed *read;
};

/* A part of the pipeline; `known` ends with a type of NULL. A missing part is none. */
static rosa_status read_part_of(tokenizer *tokenizer, struct json part, const struct typed *known, rosa_error *err)
{
	const char *type;
	rosa_status status;

	if (!json_there(part))
		return ROSA_OK;
	status = json_get_string(part, "type", JSON_NEEDED, &type, err);
	if (status)
		return status;
	for (; known->type; known++) {
		if (strcmp(type, known->type) == 0)
			return known->read(tokenizer, part, err);
	}
	return json_refuse(part, err, "the type '%.64s' is not supported", type);
}

/* The parts of a "Sequence". No tokenizer nests them, so a Sequence inside is refused. */
static rosa_status read_sequence(tokenizer *tokenizer, struct json part, const char *name, const struct typed *known,
				 rosa_error *err)
{
	struct json parts;
	rosa_status status = json_get_array(part, name, JSON_NEEDED, &parts, err);

	for (size_t i = 0; !status && i < json_count(parts); i++)
		status = read_part_of(tokenizer, json_at(parts, i), known, err);
	return status;
}

/* --------------------------------------------------------------------------------------------------- normalizer -- */

static rosa_status read_nfc(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	(void)part;
	tokenizer->nfc = true;
	return nfc_check(err);
}

static const struct typed normalizers[] = {{"NFC", read_nfc}, {NULL, NULL}};

static rosa_status read_normalizers(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	return read_sequence(tokenizer, part, "normalizers", normalizers, err);
}

/* ------------------------------------------------------------------------------------------------ pre-tokenizer -- */

static rosa_status read_behavior(struct json part, enum split_behavior *behavior, rosa_error *err)
{
	static const char *const names[] = {[SPLIT_ISOLATED] = "Isolated",
					    [SPLIT_REMOVED] = "Removed",
					    [SPLIT_PREVIOUS] = "MergedWithPrevious",
					    [SPLIT_NEXT] = "MergedWithNext",
					    [SPLIT_CONTIGUOUS] = "Contiguous"};
	const char *name;
	rosa_status status = json_get_string(part, "behavior", JSON_NEEDED, &name, err);

	for (size_t i = 0; !status && i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(name, names[i]) == 0) {
			*behavior = (enum split_behavior)i;
			return ROSA_OK;
		}
	}
	return status ? status : json_refuse(part, err, "the behavior '%.64s' is not supported", name);
}

/* Nothing comes after ByteLevel: it turns a text into the alphabet that vocabularies are spelled in, and later steps
 * would see that. */
static rosa_status check_open(const tokenizer *tokenizer, struct json part, rosa_error *err)
{
	return tokenizer->byte_level ? json_refuse(part, err, "a step after ByteLevel is not supported") : ROSA_OK;
}

static rosa_status read_split(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	struct json pattern, literal, regex;
	enum split_behavior behavior = SPLIT_ISOLATED;
	bool invert = false;
	const char *text;
	size_t size;
	rosa_status status = check_open(tokenizer, part, err);

	if (!status)
		status = json_get_object(part, "pattern", JSON_NEEDED, &pattern, err);
	if (!status)
		status = read_behavior(part, &behavior, err);
	if (!status)
		status = json_get_bool(part, "invert", JSON_OPTIONAL, &invert, err);
	if (status)
		return status;
	literal = json_find(pattern, "String");
	regex = json_find(pattern, "Regex");
	status = json_as_text(json_there(literal) ? literal : regex, &text, &size, err);
	if (status)
		return status;
	return json_there(literal)
		   ? pretokenizer_add_literal(&tokenizer->pretokenizer, text, size, behavior, invert, err)
		   : pretokenizer_add_split(&tokenizer->pretokenizer, text, size, behavior, invert, err);
}

static rosa_status read_digits(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	bool individual = false;
	rosa_status status = check_open(tokenizer, part, err);

	if (!status)
		status = json_get_bool(part, "individual_digits", JSON_OPTIONAL, &individual, err);
	return status ? status : pretokenizer_add_digits(&tokenizer->pretokenizer, individual, err);
}

static rosa_status read_byte_level(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	struct pretokenizer *pretokenizer = &tokenizer->pretokenizer;
	bool regex = true;
	rosa_status status = check_open(tokenizer, part, err);

	if (!status)
		status = json_get_bool(part, "add_prefix_space", JSON_NEEDED, &pretokenizer->prefix_space, err);
	if (!status)
		status = json_get_bool(part, "use_regex", JSON_OPTIONAL, &regex, err);
	tokenizer->byte_level = true;
	pretokenizer->space_at = pretokenizer->count;
	if (!status && regex)
		status =
		    pretokenizer_add_split(pretokenizer, gpt2_regex, strlen(gpt2_regex), SPLIT_ISOLATED, false, err);
	return status;
}

static const struct typed pretokenizers[] = {
    {"Split", read_split}, {"Digits", read_digits}, {"ByteLevel", read_byte_level}, {NULL, NULL}};

static rosa_status read_pretokenizers(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	return read_sequence(tokenizer, part, "pretokenizers", pretokenizers, err);
}

/* ----------------------------------------------------------------------------------------------- post-processor -- */

/* The id of a special token of a template: the one in its list, or by its name. */
static rosa_status read_template_token(tokenizer *tokenizer, struct json part, struct json token, rosa_error *err)
{
	struct json listed;
	const char *name;
	int64_t id = -1;
	rosa_status status = json_get_string(token, "id", JSON_NEEDED, &name, err);

	if (status)
		return status;
	listed = json_find(json_find(json_find(part, "special_tokens"), name), "ids");
	if (json_count(listed) != 1)
		return json_refuse(part, err, "'%.64s' is not one token", name);
	status = json_as_integer(json_at(listed, 0), &id, err);
	if (!status && (id < 0 || id >= TOKEN_ID_LIMIT))
		status = json_refuse(part, err, "'%.64s' has the id %lld", name, (long long)id);
	tokenizer->bos = id;
	return status;
}

/* Only a token before the text is known here, which is what Llama 3 has. */
static rosa_status read_template(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	struct json single;
	bool text_seen = false;
	rosa_status status = json_get_array(part, "single", JSON_NEEDED, &single, err);

	for (size_t i = 0; !status && i < json_count(single); i++) {
		struct json token = json_find(json_at(single, i), "SpecialToken");
		if (!json_there(token)) {
			text_seen = true;
			continue;
		}
		if (text_seen || tokenizer->bos >= 0)
			return json_refuse(part, err,
					   "more than one token before the text, or any after it, is not supported");
		status = read_template_token(tokenizer, part, token, err);
	}
	return status;
}

/* Offsets only. */
static rosa_status read_nothing(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	(void)tokenizer, (void)part, (void)err;
	return ROSA_OK;
}

static const struct typed processors[] = {
    {"ByteLevel", read_nothing}, {"TemplateProcessing", read_template}, {NULL, NULL}};

static rosa_status read_processors(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	return read_sequence(tokenizer, part, "processors", processors, err);
}

/* ------------------------------------------------------------------------------------------------------ decoder -- */

static const struct typed decoders[] = {{"ByteLevel", read_nothing}, {NULL, NULL}};

static rosa_status read_decoders(tokenizer *tokenizer, struct json part, rosa_error *err)
{
	return read_sequence(tokenizer, part, "decoders", decoders, err);
}

/* ------------------------------------------------------------------------------------------------- added tokens -- */

static rosa_status read_added(tokenizer *tokenizer, struct json entry, rosa_error *err)
{
	struct added_token token = {0};
	const char *content;
	bool normalized = false;
	size_t id;
	rosa_status status = json_get_size(entry, "id", JSON_NEEDED, &id, err);

	if (!status && id >= TOKEN_ID_LIMIT)
		status = json_refuse(entry, err, "the id %zu is too large", id);
	if (!status)
		status = json_as_text(json_find(entry, "content"), &content, &token.size, err);
	if (!status)
		status = json_get_bool(entry, "special", JSON_OPTIONAL, &token.special, err);
	if (!status)
		status = json_get_bool(entry, "single_word", JSON_OPTIONAL, &token.single_word, err);
	if (!status)
		status = json_get_bool(entry, "lstrip", JSON_OPTIONAL, &token.lstrip, err);
	if (!status)
		status = json_get_bool(entry, "rstrip", JSON_OPTIONAL, &token.rstrip, err);
	if (!status)
		status = json_get_bool(entry, "normalized", JSON_OPTIONAL, &normalized, err);
	if (status)
		return status;
	token.id = (uint32_t)id;
	token.content = (char *)content; /* is copied */
	return tokenizer_add(tokenizer, &token, normalized, err);
}

static rosa_status read_all_added(tokenizer *tokenizer, struct json root, rosa_error *err)
{
	struct json list;
	rosa_status status = json_get_array(root, "added_tokens", JSON_OPTIONAL, &list, err);

	for (size_t i = 0; !status && i < json_count(list); i++)
		status = read_added(tokenizer, json_at(list, i), err);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- whole -- */

/* A part that may be a sequence of parts. */
static rosa_status read_stage(tokenizer *tokenizer, struct json root, const char *name, const struct typed *known,
			      read_typed *sequence, rosa_error *err)
{
	struct json part = json_find(root, name);
	const char *type = "";

	if (json_kind(json_find(part, "type")) == JSON_IS_STRING)
		json_get_string(part, "type", JSON_NEEDED, &type, NULL);
	if (strcmp(type, "Sequence") == 0)
		return sequence(tokenizer, part, err);
	return read_part_of(tokenizer, part, known, err);
}

static rosa_status read_stages(tokenizer *tokenizer, struct json root, rosa_error *err)
{
	rosa_status status = read_stage(tokenizer, root, "normalizer", normalizers, read_normalizers, err);

	if (!status)
		status = read_stage(tokenizer, root, "pre_tokenizer", pretokenizers, read_pretokenizers, err);
	if (!status && !tokenizer->byte_level)
		status = rosa_fail(err, ROSA_EFORMAT,
				   "pre_tokenizer: has no ByteLevel; only byte-level tokenizers are supported");
	if (!status)
		status = read_stage(tokenizer, root, "post_processor", processors, read_processors, err);
	if (!status)
		status = read_stage(tokenizer, root, "decoder", decoders, read_decoders, err);
	return status;
}

/* The text without the large parts, and where they were. Memory to free; NULL if there is none. */
static char *small_text(const char *text, size_t size, struct large_parts *parts, size_t *small_size)
{
	const struct scan_wish wishes[] = {{"vocab", &parts->vocab}, {"merges", &parts->merges}};
	char *made = malloc(size + 16);
	size_t at = 0, model;

	memset(parts, 0, sizeof(*parts));
	if (scan_field(text, size, 0, "model", &model))
		scan_fields(text, size, model, wishes, 2);
	*small_size = 0;
	while (made && at < size) {
		const struct scan_span *next = NULL;
		/* the nearer of the two that is still to come */
		if (parts->vocab.end > at)
			next = &parts->vocab;
		if (parts->merges.end > at && (!next || parts->merges.start < next->start))
			next = &parts->merges;
		size_t stop = next ? next->start : size;
		memcpy(made + *small_size, text + at, stop - at);
		*small_size += stop - at;
		if (next) {
			memcpy(made + *small_size, "null", 4);
			*small_size += 4;
		}
		at = next ? next->end : size;
	}
	return made;
}

static rosa_status read_root(tokenizer *tokenizer, struct json root, const char *text, const struct large_parts *parts,
			     rosa_error *err)
{
	rosa_status status = read_model(tokenizer, root, text, parts, err);

	if (!status)
		status = read_stages(tokenizer, root, err);
	if (!status)
		status = read_all_added(tokenizer, root, err);
	return status ? status : tokenizer_finish(tokenizer, err);
}

rosa_status tokenizer_from_json(const char *text, size_t size, const char *name, tokenizer **made, rosa_error *err)
{
	struct large_parts parts;
	struct json root = {0};
	size_t small_size;
	char *small = small_text(text, size, &parts, &small_size);
	rosa_status status = tokenizer_new(made, err);

	if (!status && !small)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for a tokenizer");
	if (!status)
		status = json_read(small, small_size, name, &root, err);
	if (!status)
		status = read_root(*made, root, text, &parts, err);
	json_free(&root);
	free(small);
	if (status) {
		tokenizer_free(*made);
		*made = NULL;
	}
	return tokenizer_blame(status, name, err);
}
