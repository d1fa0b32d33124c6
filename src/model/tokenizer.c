/*
 * Text to tokens.
 *
 * The order of things is that of Hugging Face's tokenizers, since each step can change the ids:
 *
 *   1. added tokens that do not ask for normal form are found in the text as it is;
 *   2. each part between them is brought into normal form (where the tokenizer does so at all);
 *   3. the other added tokens are found in that;
 *   4. what is left is cut into pieces, and each piece is encoded by itself.
 *
 * A tokenizer does not change once it is made. Everything that encoding needs to write on belongs to the call.
 */
#include "model/tokenizer_parts.h"

#include "base/array.h"
#include "base/status.h"
#include "model/tokenizer_nfc.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- making -- */

rosa_status tokenizer_new(tokenizer **made, rosa_error *err)
{
	*made = calloc(1, sizeof(**made));
	if (!*made)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a tokenizer");
	(*made)->bos = -1;
	(*made)->bpe.unknown = NO_TOKEN;
	return ROSA_OK;
}

void tokenizer_free(tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	bpe_free(&tokenizer->bpe);
	pretokenizer_free(&tokenizer->pretokenizer);
	added_free(&tokenizer->raw);
	added_free(&tokenizer->normalized);
	free(tokenizer->template);
	free(tokenizer);
}

rosa_status tokenizer_add(tokenizer *tokenizer, const struct added_token *token, bool normalized, rosa_error *err)
{
	int flags = TOKEN_ADDED | (token->special ? TOKEN_SPECIAL : 0);
	struct added_token copy = *token;
	char *form = NULL;
	size_t size;
	rosa_status status =
	    vocabulary_add_raw(&tokenizer->bpe.vocabulary, token->id, token->content, token->size, flags, err);

	if (!status && normalized && tokenizer->nfc)
		status = nfc(token->content, token->size, &form, &size, err);
	if (!status && form) {
		copy.content = form;
		copy.size = size;
	}
	if (!status)
		status = added_put(normalized ? &tokenizer->normalized : &tokenizer->raw, &copy, err);
	free(form);
	return status;
}

rosa_status tokenizer_finish(tokenizer *tokenizer, rosa_error *err)
{
	added_finish(&tokenizer->raw);
	added_finish(&tokenizer->normalized);
	bpe_find_letters(&tokenizer->bpe);
	if (tokenizer->bos >= 0 && (uint64_t)tokenizer->bos >= tokenizer_size(tokenizer))
		return rosa_fail(err, ROSA_EFORMAT, "the begin-of-text token %lld is not in the vocabulary",
				 (long long)tokenizer->bos);
	return ROSA_OK;
}

rosa_status tokenizer_set_template(tokenizer *tokenizer, const char *text, size_t size, rosa_error *err)
{
	char *copy = malloc(size + 1);

	if (!copy)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the chat template");
	memcpy(copy, text, size);
	copy[size] = '\0';
	free(tokenizer->template);
	tokenizer->template = copy;
	return ROSA_OK;
}

rosa_status tokenizer_blame(rosa_status status, const char *name, rosa_error *err)
{
	if (status && err && strncmp(err->message, name, strlen(name)) != 0) {
		rosa_error told = *err;
		rosa_fail(err, told.status, "%s: %s", name, told.message);
	}
	return status;
}

/* ---------------------------------------------------------------------------------------------------- accessors -- */

size_t tokenizer_size(const tokenizer *tokenizer)
{
	return tokenizer->bpe.vocabulary.size;
}

size_t tokenizer_longest(const tokenizer *tokenizer)
{
	/* if each byte is a bad one, and one more was held back before */
	return 3 * (tokenizer->bpe.vocabulary.longest + 1);
}

const char *tokenizer_bytes(const tokenizer *tokenizer, uint32_t id, size_t *length)
{
	const struct vocabulary *vocabulary = &tokenizer->bpe.vocabulary;

	*length = id < vocabulary->size ? vocabulary->tokens[id].length : 0;
	return *length ? vocabulary_bytes(vocabulary, id) : "";
}

bool tokenizer_is_special(const tokenizer *tokenizer, uint32_t id)
{
	return id < tokenizer_size(tokenizer) && tokenizer->bpe.vocabulary.tokens[id].flags & TOKEN_SPECIAL;
}

int64_t tokenizer_find(const tokenizer *tokenizer, const char *content)
{
	const struct added_tokens *stages[] = {&tokenizer->raw, &tokenizer->normalized};
	size_t size = strlen(content);

	for (int stage = 0; stage < 2; stage++) {
		for (size_t i = 0; i < stages[stage]->count; i++) {
			const struct added_token *token = &stages[stage]->all[i];
			if (token->size == size && memcmp(token->content, content, size) == 0)
				return token->id;
		}
	}
	uint32_t id = vocabulary_find_spelled(&tokenizer->bpe.vocabulary, content, size);
	return id == NO_TOKEN ? -1 : (int64_t)id;
}

int64_t tokenizer_bos(const tokenizer *tokenizer)
{
	return tokenizer->bos;
}

const char *tokenizer_template(const tokenizer *tokenizer)
{
	return tokenizer->template;
}

rosa_status tokens_reserve(struct tokens *tokens, size_t more, rosa_error *err)
{
	if (ARRAY_RESERVE(tokens->ids, tokens->room, tokens->count + more))
		return ROSA_OK;
	return rosa_fail(err, ROSA_ENOMEM, "not enough memory for %zu tokens", tokens->count + more);
}

rosa_status tokens_add(struct tokens *tokens, const uint32_t *ids, size_t count, rosa_error *err)
{
	const rosa_status status = tokens_reserve(tokens, count, err);

	if (status == ROSA_OK && count)
		memcpy(tokens->ids + tokens->count, ids, count * sizeof(*ids));
	tokens->count += status == ROSA_OK ? count : 0;
	return status;
}

size_t tokens_common(const struct tokens *tokens, const uint32_t *ids, size_t count)
{
	size_t common = 0;

	while (common < count && common < tokens->count && tokens->ids[common] == ids[common])
		common++;
	return common;
}

void tokens_free(struct tokens *tokens)
{
	free(tokens->ids);
	*tokens = (struct tokens){0};
}

/* ----------------------------------------------------------------------------------------------------- encoding -- */

struct encoding {
	const tokenizer *tokenizer;
	struct bpe_scratch scratch;
	struct search search;
	struct tokens *tokens;
	bool special;
};

static rosa_status encode_piece(void *context, const char *piece, size_t size, rosa_error *err)
{
	struct encoding *encoding = context;

	return bpe_encode(&encoding->tokenizer->bpe, &encoding->scratch, piece, size, encoding->tokens, err);
}

static rosa_status encode_pieces(struct encoding *encoding, const char *text, size_t size, rosa_error *err)
{
	return pretokenize(&encoding->tokenizer->pretokenizer, &encoding->search, text, size, encode_piece, encoding,
			   err);
}

typedef rosa_status encode_part(struct encoding *encoding, const char *text, size_t size, rosa_error *err);

/* Added tokens become ids, and what lies between them goes on to `rest`. */
static rosa_status encode_around(struct encoding *encoding, const struct added_tokens *added, encode_part *rest,
				 const char *text, size_t size, rosa_error *err)
{
	struct added_search search = {.added = added, .text = text, .size = size, .special = encoding->special};
	struct added_match match;
	rosa_status status = ROSA_OK;
	size_t done = 0;

	while (!status && added_next(&search, &match)) {
		if (match.start > done)
			status = rest(encoding, text + done, match.start - done, err);
		if (!status)
			status = tokens_reserve(encoding->tokens, 1, err);
		if (!status)
			encoding->tokens->ids[encoding->tokens->count++] = match.id;
		done = match.end;
	}
	if (!status && done < size)
		status = rest(encoding, text + done, size - done, err);
	return status;
}

static rosa_status encode_normalized(struct encoding *encoding, const char *text, size_t size, rosa_error *err)
{
	rosa_status status = ROSA_OK;
	char *form = NULL;
	size_t form_size;

	if (encoding->tokenizer->nfc)
		status = nfc(text, size, &form, &form_size, err);
	if (!status)
		status = encode_around(encoding, &encoding->tokenizer->normalized, encode_pieces, form ? form : text,
				       form ? form_size : size, err);
	free(form);
	return status;
}

rosa_status tokenizer_encode(const tokenizer *tokenizer, const char *text, size_t size, bool special,
			     struct tokens *tokens, rosa_error *err)
{
	struct encoding encoding = {.tokenizer = tokenizer, .tokens = tokens, .special = special};
	const size_t before = tokens->count, valid = utf8_valid(text, size);

	if (valid < size)
		return rosa_fail(err, ROSA_EINVAL, "the text is not UTF-8: byte 0x%02x at offset %zu",
				 (unsigned)(uint8_t)text[valid], valid);
	if (size > INT32_MAX)
		return rosa_fail(err, ROSA_EINVAL, "a text of %zu bytes is too long; encode it in parts below 2 GB",
				 size);
	rosa_status status = bpe_scratch_new(&encoding.scratch, size, err);
	if (!status)
		status = search_new(&encoding.search, size, err);
	if (!status)
		status = encode_around(&encoding, &tokenizer->raw, encode_normalized, text, size, err);
	search_free(&encoding.search);
	bpe_scratch_free(&encoding.scratch);
	if (status)
		tokens->count = before;
	return status;
}

rosa_status tokenizer_encode_text(const tokenizer *tokenizer, const char *text, size_t size, struct tokens *tokens,
				  rosa_error *err)
{
	const uint32_t first = (uint32_t)tokenizer->bos;
	rosa_status status;

	*tokens = (struct tokens){0};
	status = tokens_add(tokens, &first, tokenizer->bos >= 0, err);
	if (status == ROSA_OK)
		status = tokenizer_encode(tokenizer, text, size, true, tokens, err);
	if (status != ROSA_OK)
		tokens_free(tokens);
	return status;
}
