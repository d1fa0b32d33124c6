/* From the text of a request to tokens, and the answer to /tokenize, which is that and no more. */
#include "serve/prompt_encode.h"

#include "base/text.h"
#include "base/utf8.h"

#include <stdlib.h>

/* A text's tokens, with the one that begins every text where the tokenizer has one. */
static bool encode_text(const struct served *model, const struct prompt *prompt, struct tokens *tokens,
			struct api_error *error)
{
	rosa_error why;

	return tokenizer_encode_text(model->tokenizer, prompt->text, prompt->size, tokens, &why) == ROSA_OK ||
	       api_refuse(error, "prompt", &why);
}

static bool encode_chat(const struct served *model, const struct request *request, struct tokens *tokens,
			struct api_error *error)
{
	const struct conversation *said = &request->conversation;
	rosa_error why;

	if (model->chat.style == CHAT_NONE)
		return api_fail(error, 400, NULL, NULL,
				"the model %s has no chat template that is known here; use /v1/completions",
				model->name);
	return chat_encode(model->tokenizer, &model->chat, said->all, said->count, true, request->think, tokens,
			   &why) == ROSA_OK ||
	       api_refuse(error, "messages", &why);
}

bool prompt_encode(const struct served *model, struct request *request, size_t i, struct tokens *tokens,
		   struct api_error *error)
{
	struct prompt *prompt = request->kind == REQUEST_CHAT ? NULL : &request->prompts[i];
	const char *name = prompt ? "prompt" : "messages";
	bool good = true;

	if (!prompt) {
		good = encode_chat(model, request, tokens, error);
	} else if (prompt->text) {
		good = encode_text(model, prompt, tokens, error);
	} else {
		*tokens = prompt->tokens;
		prompt->tokens = (struct tokens){0};
	}
	if (!good)
		return false;
	if (tokens->count == 0)
		return api_fail(error, 400, name, NULL, "the prompt is empty; give at least a word");
	if (tokens->count >= ROSA_MAX_STEPS - request->most)
		return api_fail(error, 400, name, "context_length_exceeded",
				"%zu tokens, and %zu to be made: at most %zu", tokens->count, request->most,
				ROSA_MAX_STEPS);
	for (size_t j = 0; j < tokens->count; j++)
		if (tokens->ids[j] >= model->config->vocabulary)
			return api_fail(error, 400, name, NULL, "token %zu is %lu; the model's are below %zu", j,
					(unsigned long)tokens->ids[j], model->config->vocabulary);
	return true;
}

/* The text of the tokens, special ones spelled out, and how many characters of it stand before each. */
static void put_text(struct json_text *text, const struct served *model, const struct tokens *tokens, char *room)
{
	struct decoding decoding = {0};
	struct text whole = {0};
	size_t characters = 0;
	bool good = true;

	json_text_add(text, "\"offsets\": [");
	for (size_t i = 0; i < tokens->count; i++) {
		json_text_add(text, "%s%zu", i ? ", " : "", characters);
		const size_t size = decode_token(model->tokenizer, &decoding, tokens->ids[i], true, room);

		characters += utf8_characters(room, size);
		good = good && text_append(&whole, "the prompt", room, size, true, NULL) == ROSA_OK;
	}
	const size_t rest = decode_finish(&decoding, room);

	good = good && text_append(&whole, "the prompt", room, rest, true, NULL) == ROSA_OK;
	json_text_add(text, "], \"text\": ");
	json_text_bytes(text, whole.data ? whole.data : "", whole.size);
	text->failed = text->failed || !good;
	text_free(&whole);
}

static void put_tokens(struct json_text *text, const struct served *model, const struct tokens *tokens)
{
	char *room = malloc(tokenizer_longest(model->tokenizer));

	text->failed = text->failed || !room;
	if (!room)
		return;
	json_text_add(text, "{\"count\": %zu, \"tokens\": [", tokens->count);
	for (size_t i = 0; i < tokens->count; i++)
		json_text_add(text, "%s%lu", i ? ", " : "", (unsigned long)tokens->ids[i]);
	json_text_add(text, "], ");
	put_text(text, model, tokens, room);
	json_text_add(text, "}");
	free(room);
}

bool answer_tokens(struct json_text *text, const struct served *model, const char *body, size_t size,
		   struct api_error *error)
{
	struct tokens tokens = {0};
	struct request request;

	if (!request_parse(REQUEST_EITHER, body, size, &model->defaults, &request, error))
		return false;
	bool good = request.kind == REQUEST_CHAT || request.prompt_count == 1 ||
		    api_fail(error, 400, "prompt", NULL, "there are %zu prompts; give one", request.prompt_count);

	good = good && prompt_encode(model, &request, 0, &tokens, error);
	if (good)
		put_tokens(text, model, &tokens);
	tokens_free(&tokens);
	request_free(&request);
	return good;
}
