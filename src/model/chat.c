/*
 * Conversations as the text a model was trained on.
 *
 * Templates are programs in Jinja, a language with loops, filters and namespaces. Running one would take an
 * interpreter. But conversations have few formats, and the special tokens that a template names tell which one it is.
 * So a template is not run but recognised, and its literal texts (the system message of SmolLM2, the dates of
 * Llama 3.1) are read out of it by chat_template.c. A template with none of the known tokens is CHAT_NONE, and the
 * caller reports that.
 *
 * Text is collected up to the next special token and encoded at once: the role, the line end and the content are one
 * text to the tokenizer, and a piece may extend over more than one of them.
 */
#include "model/chat.h"

#include "base/array.h"
#include "model/bpe.h"
#include "model/chat_template.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ writing -- */

/* A stretch of text, not terminated. */
struct stretch {
	const char *at;
	size_t size;
};

static struct stretch stretch_of(const char *text)
{
	return (struct stretch){text, strlen(text)};
}

struct writing {
	const tokenizer *tokenizer;
	struct tokens *tokens;
	char *text; /* since the last special token */
	size_t used, room;
	rosa_status status; /* of the first failure, after which nothing is written */
	rosa_error *err;
};

static void put(struct writing *writing, struct stretch stretch)
{
	if (writing->status)
		return;
	if (!ARRAY_RESERVE(writing->text, writing->room, writing->used + stretch.size)) {
		writing->status = rosa_fail(writing->err, ROSA_ENOMEM, "no memory for a conversation");
		return;
	}
	if (stretch.size)
		memcpy(writing->text + writing->used, stretch.at, stretch.size);
	writing->used += stretch.size;
}

static void put_text(struct writing *writing, const char *text)
{
	put(writing, stretch_of(text));
}

static void flush(struct writing *writing)
{
	if (!writing->status && writing->used)
		writing->status = tokenizer_encode(writing->tokenizer, writing->text, writing->used, false,
						   writing->tokens, writing->err);
	writing->used = 0;
}

static void put_special(struct writing *writing, const char *content)
{
	const int64_t id = tokenizer_find(writing->tokenizer, content);
	const uint32_t token = (uint32_t)id;

	flush(writing);
	if (!writing->status && id < 0)
		writing->status = rosa_fail(writing->err, ROSA_EINVAL,
					    "the tokenizer has no %s, which its chat template needs", content);
	if (!writing->status)
		writing->status = tokens_add(writing->tokens, &token, 1, writing->err);
}

/* ------------------------------------------------------------------------------------------------------- ChatML -- */

static bool has_role(const struct chat_message *message, const char *role)
{
	return strcmp(message->role, role) == 0;
}

static void open_ml(struct writing *writing, const char *role)
{
	put_special(writing, "<|im_start|>");
	put_text(writing, role);
	put_text(writing, "\n");
}

static void close_ml(struct writing *writing)
{
	put_special(writing, "<|im_end|>");
	put_text(writing, "\n");
}

static void put_ml(struct writing *writing, const char *role, struct stretch content)
{
	open_ml(writing, role);
	put(writing, content);
	close_ml(writing);
}

static void write_ml(struct writing *writing, const struct chat_format *format, const struct chat_message *messages,
		     size_t count)
{
	if (count && format->system && !has_role(&messages[0], "system"))
		put_ml(writing, "system", stretch_of(format->system));
	for (size_t i = 0; i < count; i++)
		put_ml(writing, messages[i].role, stretch_of(messages[i].content));
}

/* -------------------------------------------------------------------------------------------------------- Qwen3 -- */

static struct stretch strip_lines(struct stretch stretch, bool left, bool right)
{
	while (left && stretch.size && stretch.at[0] == '\n') {
		stretch.at++;
		stretch.size--;
	}
	while (right && stretch.size && stretch.at[stretch.size - 1] == '\n')
		stretch.size--;
	return stretch;
}

/* Behind the last occurrence of `mark`; all of it if there is none. */
static struct stretch after_last(struct stretch stretch, const char *mark)
{
	size_t length = strlen(mark);

	for (size_t at = stretch.size >= length ? stretch.size - length + 1 : 0; at > 0; at--) {
		if (memcmp(stretch.at + at - 1, mark, length) == 0)
			return (struct stretch){stretch.at + at - 1 + length, stretch.size - (at - 1) - length};
	}
	return stretch;
}

/* An answer as the model wrote it: its thought, perhaps empty, and what it said. */
static void split_thought(const char *content, struct stretch *thought, struct stretch *said)
{
	const char *end = strstr(content, "</think>");

	*said = stretch_of(content);
	*thought = (struct stretch){content, 0};
	if (!end)
		return;
	*said = strip_lines(after_last(*said, "</think>"), true, false);
	*thought = strip_lines((struct stretch){content, (size_t)(end - content)}, false, true);
	*thought = strip_lines(after_last(*thought, "<think>"), true, true);
}

/* The last message of the user; after it, thoughts stay. */
static size_t last_question(const struct chat_message *messages, size_t count)
{
	for (size_t i = count; i > 0; i--) {
		if (has_role(&messages[i - 1], "user") && !chat_is_tool_response(messages[i - 1].content))
			return i - 1;
	}
	return count - 1;
}

static void write_answer(struct writing *writing, const struct chat_message *message, bool recent, bool last)
{
	struct stretch thought, said;

	split_thought(message->content, &thought, &said);
	open_ml(writing, message->role);
	if (recent && (last || thought.size)) {
		put_text(writing, "<think>\n");
		put(writing, thought);
		put_text(writing, "\n</think>\n\n");
		said = strip_lines(said, true, false);
	}
	put(writing, said);
	close_ml(writing);
}

static void write_qwen3(struct writing *writing, const struct chat_format *format, const struct chat_message *messages,
			size_t count)
{
	size_t question = last_question(messages, count);

	if (count && format->system && !has_role(&messages[0], "system"))
		put_ml(writing, "system", stretch_of(format->system));
	for (size_t i = 0; i < count; i++) {
		if (has_role(&messages[i], "assistant"))
			write_answer(writing, &messages[i], i > question, i + 1 == count);
		else
			put_ml(writing, messages[i].role, stretch_of(messages[i].content));
	}
}

static void prompt_ml(struct writing *writing, const struct chat_format *format, bool think)
{
	open_ml(writing, "assistant");
	if (format->style == CHAT_QWEN3 && format->opens_think)
		put_text(writing, "<think>\n");
	else if (format->style == CHAT_QWEN3 && !think)
		put_text(writing, "<think>\n\n</think>\n\n");
}

/* ------------------------------------------------------------------------------------------------------ Llama 3 -- */

static void open_llama3(struct writing *writing, const char *role)
{
	put_special(writing, "<|start_header_id|>");
	put_text(writing, role);
	put_special(writing, "<|end_header_id|>");
	put_text(writing, "\n\n");
}

static void put_llama3(struct writing *writing, const char *role, const char *preamble, const char *content)
{
	struct stretch trimmed = stretch_of(content);

	chat_trim(&trimmed.at, &trimmed.size);
	open_llama3(writing, role);
	put_text(writing, preamble);
	put(writing, trimmed);
	put_special(writing, "<|eot_id|>");
}

static void write_llama3(struct writing *writing, const struct chat_format *format, const struct chat_message *messages,
			 size_t count)
{
	bool first_is_system = count && has_role(&messages[0], "system");

	if (count)
		put_special(writing, "<|begin_of_text|>");
	if (count && !first_is_system && (format->preamble || format->system))
		put_llama3(writing, "system", format->preamble ? format->preamble : "",
			   format->system ? format->system : "");
	for (size_t i = 0; i < count; i++)
		put_llama3(writing, messages[i].role,
			   i == 0 && first_is_system && format->preamble ? format->preamble : "", messages[i].content);
}

static void prompt_llama3(struct writing *writing, const struct chat_format *format, bool think)
{
	(void)format, (void)think;
	open_llama3(writing, "assistant");
}

/* ------------------------------------------------------------------------------------------------------- styles -- */

static const struct style {
	const char *end;
	void (*write)(struct writing *writing, const struct chat_format *format, const struct chat_message *messages,
		      size_t count);
	void (*prompt)(struct writing *writing, const struct chat_format *format, bool think);
} styles[] = {
    [CHAT_NONE] = {NULL, NULL, NULL},
    [CHAT_ML] = {"<|im_end|>", write_ml, prompt_ml},
    [CHAT_QWEN3] = {"<|im_end|>", write_qwen3, prompt_ml},
    [CHAT_LLAMA3] = {"<|eot_id|>", write_llama3, prompt_llama3},
};

static rosa_status check_roles(const struct chat_message *messages, size_t count, rosa_error *err)
{
	for (size_t i = 0; i < count; i++) {
		if (!has_role(&messages[i], "system") && !has_role(&messages[i], "user") &&
		    !has_role(&messages[i], "assistant"))
			return rosa_fail(
			    err, ROSA_EINVAL,
			    "message %zu: the role '%.64s' is not supported; use system, user or assistant", i,
			    messages[i].role);
	}
	return ROSA_OK;
}

rosa_status chat_encode(const tokenizer *tokenizer, const struct chat_format *format,
			const struct chat_message *messages, size_t count, bool answer, bool think,
			struct tokens *tokens, rosa_error *err)
{
	struct writing writing = {.tokenizer = tokenizer, .tokens = tokens, .err = err};
	size_t before = tokens->count;

	if (format->style == CHAT_NONE)
		return rosa_fail(err, ROSA_EINVAL, "the model has no chat template that is known here");
	writing.status = check_roles(messages, count, err);
	if (!writing.status)
		styles[format->style].write(&writing, format, messages, count);
	if (answer)
		styles[format->style].prompt(&writing, format, think);
	flush(&writing);
	free(writing.text);
	if (writing.status)
		tokens->count = before;
	return writing.status;
}

int64_t chat_end(const tokenizer *tokenizer, const struct chat_format *format)
{
	return format->style == CHAT_NONE ? -1 : tokenizer_find(tokenizer, styles[format->style].end);
}
