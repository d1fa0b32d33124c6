/*
 * The answers in a conversation.
 *
 * Templates may change what was said: earlier thoughts are dropped, spaces trimmed, a system message put first. So the
 * answers are not looked for as text. Every message begins with one special token and ends with another, which texts
 * cannot contain, and messages keep their order: the n-th beginning is that of the n-th message, after one that the
 * template may have put before all.
 *
 * An answer begins where the model takes over in use, behind what `rosatune generate --chat` puts there. This is
 * measured in bytes and not in tokens: the line end before an answer and one at its beginning may be a single token.
 * That token is the first to count, since part of it belongs to the answer.
 */
#include "train/answers.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Tokens as the bytes they stand for: memory to free. */
static char *bytes_of(const tokenizer *tokenizer, const struct tokens *tokens, size_t *size)
{
	size_t length, used = 0;
	char *bytes;

	*size = 0;
	for (size_t i = 0; i < tokens->count; i++) {
		tokenizer_bytes(tokenizer, tokens->ids[i], &length);
		*size += length;
	}
	bytes = malloc(*size + 1);
	for (size_t i = 0; bytes && i < tokens->count; i++, used += length) {
		const char *piece = tokenizer_bytes(tokenizer, tokens->ids[i], &length);
		memcpy(bytes + used, piece, length);
	}
	return bytes;
}

/* What is written before an answer. */
static rosa_status find_prompt(struct answers *answers, const struct chat_format *format, uint32_t *start,
			       char **prompt, size_t *size, rosa_error *err)
{
	struct tokens tokens = {0};
	rosa_status status = chat_encode(answers->tokenizer, format, NULL, 0, true, true, &tokens, err);

	*prompt = NULL;
	if (!status) {
		*start = tokens.ids[0]; /* it is a special token always */
		*prompt = bytes_of(answers->tokenizer, &tokens, size);
		if (!*prompt)
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for a chat template");
	}
	tokens_free(&tokens);
	return status;
}

rosa_status answers_init(struct answers *answers, const tokenizer *tokenizer, rosa_error *err)
{
	struct chat_format plain;
	char *text = NULL;
	rosa_status status;

	memset(answers, 0, sizeof(*answers));
	answers->tokenizer = tokenizer;
	status = chat_format_of(tokenizer, &answers->format, err);
	if (!status)
		status = find_prompt(answers, &answers->format, &answers->start, &answers->prompt,
				     &answers->prompt_size, err);
	plain = answers->format;
	plain.opens_think = false;
	if (!status)
		status = find_prompt(answers, &plain, &answers->start, &text, &answers->plain_size, err);
	free(text);
	if (!status) {
		int64_t end = chat_end(tokenizer, &answers->format);
		answers->end = (uint32_t)end;
		if (end < 0)
			status = rosa_fail(err, ROSA_EINVAL, "the tokenizer lacks the token that ends an answer");
	}
	if (status)
		answers_free(answers);
	return status;
}

void answers_free(struct answers *answers)
{
	chat_format_free(&answers->format);
	free(answers->prompt);
	memset(answers, 0, sizeof(*answers));
}

/* Do these tokens begin with the prompt? */
static bool is_prompted(const struct answers *answers, const uint32_t *ids, size_t count)
{
	size_t at = 0, length;

	for (size_t i = 0; i < count && at < answers->prompt_size; i++, at += length) {
		const char *bytes = tokenizer_bytes(answers->tokenizer, ids[i], &length);
		size_t left = answers->prompt_size - at;
		if (memcmp(bytes, answers->prompt + at, length < left ? length : left) != 0)
			return false;
	}
	return at >= answers->prompt_size;
}

/* Marks the tokens of one message, from its start on. */
static void mark(const struct answers *answers, const uint32_t *ids, size_t count, uint8_t *counts)
{
	size_t before = is_prompted(answers, ids, count) ? answers->prompt_size : answers->plain_size, at = 0, length;

	for (size_t i = 0; i < count; i++) {
		tokenizer_bytes(answers->tokenizer, ids[i], &length);
		at += length;
		counts[i] = at > before;
		if (ids[i] == answers->end)
			return;
	}
}

static size_t occurrences(const uint32_t *ids, size_t count, uint32_t id)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		found += ids[i] == id;
	return found;
}

static rosa_status mark_answers(const struct answers *answers, const struct chat_message *messages, size_t count,
				const uint32_t *ids, size_t size, uint8_t *counts, rosa_error *err)
{
	size_t starts = occurrences(ids, size, answers->start), ahead = starts - count, seen = 0;

	if (starts < count || ahead > 1 || occurrences(ids, size, answers->end) != starts)
		return rosa_fail(err, ROSA_EINVAL,
				 "a message contains a token that begins or ends messages; take it out");
	for (size_t i = 0; i < size; i++) {
		if (ids[i] != answers->start)
			continue;
		if (seen >= ahead && strcmp(messages[seen - ahead].role, "assistant") == 0)
			mark(answers, ids + i, size - i, counts + i);
		seen++;
	}
	return ROSA_OK;
}

rosa_status answers_encode(const struct answers *answers, const struct chat_message *messages, size_t count,
			   struct tokens *tokens, uint8_t **counts, rosa_error *err)
{
	size_t before = tokens->count, spoken = 0;
	rosa_status status = ROSA_OK;

	*counts = NULL;
	for (size_t i = 0; i < count; i++)
		spoken += strcmp(messages[i].role, "assistant") == 0;
	if (spoken == 0)
		return rosa_fail(err, ROSA_EINVAL, "there is no answer (role assistant) to learn from");
	status = chat_encode(answers->tokenizer, &answers->format, messages, count, false, true, tokens, err);
	if (status)
		return status;
	*counts = calloc(tokens->count - before + 1, 1);
	status =
	    *counts ? mark_answers(answers, messages, count, tokens->ids + before, tokens->count - before, *counts, err)
		    : rosa_fail(err, ROSA_ENOMEM, "no memory for a conversation");
	if (status) {
		free(*counts);
		*counts = NULL;
		tokens->count = before;
	}
	return status;
}
