/*
 * Requests from JSON.
 *
 * A field that is missing or null has its default. One of another type or out of range is refused by name. So is one
 * that would change the answer and that this server does not know how to obey: an answer that silently ignores a
 * penalty or a tool is worse than none. Fields that change nothing here (user, metadata) are not looked at.
 */
#include "serve/request.h"

#include "base/text.h"
#include "model/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETION_TOKENS 16 /* OpenAI's default */
#define LARGEST           1e6

static bool no_memory(struct api_error *error)
{
	return api_fail(error, 500, NULL, NULL, "not enough memory for the request");
}

/* -------------------------------------------------------------------------------------------------------- fields -- */

static bool get_bool(struct json from, const char *name, bool *value, struct api_error *error)
{
	rosa_error why;

	return json_get_bool(from, name, JSON_OPTIONAL, value, &why) == ROSA_OK || api_refuse(error, name, &why);
}

static bool get_size(struct json from, const char *name, size_t least, size_t most, size_t *value,
		     struct api_error *error)
{
	rosa_error why;

	if (json_get_size(from, name, JSON_OPTIONAL, value, &why) != ROSA_OK)
		return api_refuse(error, name, &why);
	if (json_there(json_find(from, name)) && (*value < least || *value > most))
		return api_fail(error, 400, name, NULL, "%s is %zu; give a number from %zu to %zu", name, *value, least,
				most);
	return true;
}

static bool get_float(struct json from, const char *name, double least, double most, float *value,
		      struct api_error *error)
{
	double number = (double)*value;
	rosa_error why;

	if (json_get_number(from, name, JSON_OPTIONAL, &number, &why) != ROSA_OK)
		return api_refuse(error, name, &why);
	if (json_there(json_find(from, name)) && !(number >= least && number <= most))
		return api_fail(error, 400, name, NULL, "%s is %g; give a number from %g to %g", name, number, least,
				most);
	*value = (float)number;
	return true;
}

static bool copy_text(const char *text, size_t size, char **copy, struct api_error *error)
{
	*copy = malloc(size + 1);
	if (!*copy)
		return no_memory(error);
	memcpy(*copy, text, size);
	(*copy)[size] = '\0';
	return true;
}

/* ------------------------------------------------------------------------------------------------------- prompts -- */

static bool take_ids(struct json from, struct tokens *tokens, struct api_error *error)
{
	rosa_error why;

	for (size_t i = 0; i < json_count(from); i++) {
		size_t id = 0;

		if (json_as_size(json_at(from, i), &id, &why) != ROSA_OK)
			return api_refuse(error, "prompt", &why);
		if (id > UINT32_MAX)
			return api_fail(error, 400, "prompt", NULL, "prompt: %zu is no token id", id);
		if (tokens_add(tokens, &(uint32_t){(uint32_t)id}, 1, &why) != ROSA_OK)
			return no_memory(error);
	}
	return true;
}

static bool take_prompt(struct json from, struct prompt *prompt, struct api_error *error)
{
	const char *text;
	rosa_error why;

	if (json_kind(from) == JSON_IS_ARRAY)
		return take_ids(from, &prompt->tokens, error);
	if (json_as_text(from, &text, &prompt->size, &why) != ROSA_OK)
		return api_refuse(error, "prompt", &why);
	return copy_text(text, prompt->size, &prompt->text, error);
}

/* A string, an array of token ids, or an array of either. */
static bool take_prompts(struct json root, struct request *request, struct api_error *error)
{
	const struct json from = json_find(root, "prompt"), first = json_at(from, 0);
	const bool several = json_kind(from) == JSON_IS_ARRAY && json_kind(first) != JSON_IS_NUMBER;
	const size_t count = several ? json_count(from) : 1;

	if (!json_there(from))
		return api_fail(error, 400, "prompt", NULL, "prompt is missing: what is to be continued?");
	if (count < 1 || count > REQUEST_PROMPTS)
		return api_fail(error, 400, "prompt", NULL, "there are %zu prompts; give 1 to %d", count,
				REQUEST_PROMPTS);
	request->prompts = calloc(count, sizeof(*request->prompts));
	if (!request->prompts)
		return no_memory(error);
	for (; request->prompt_count < count; request->prompt_count++) {
		const size_t i = request->prompt_count;

		if (!take_prompt(several ? json_at(from, i) : from, &request->prompts[i], error)) {
			request->prompt_count++; /* so that what it has is released */
			return false;
		}
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------------ messages -- */

/* OpenAI's newer name for instructions, and the name that templates know. */
static const char *role_of(const char *role)
{
	static const char *const known[] = {"system", "user", "assistant"};

	if (strcmp(role, "developer") == 0)
		return "system";
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(role, known[i]) == 0)
			return role;
	return NULL;
}

static bool add_content(const char *more, struct text *content, struct api_error *error)
{
	rosa_error why;

	return text_append(content, "messages", more, strlen(more), false, &why) == ROSA_OK ||
	       api_refuse(error, "messages", &why);
}

/* Appends one part of a content: {"type": "text", "text": ...}. */
static bool add_part(struct json part, struct text *content, struct api_error *error)
{
	const char *type = "", *text = "";
	rosa_error why;

	if (json_get_string(part, "type", JSON_NEEDED, &type, &why) != ROSA_OK)
		return api_refuse(error, "messages", &why);
	if (strcmp(type, "text") != 0)
		return api_fail(error, 400, "messages", NULL, "a content of type %.40s cannot be read here; give text",
				type);
	if (json_get_string(part, "text", JSON_NEEDED, &text, &why) != ROSA_OK)
		return api_refuse(error, "messages", &why);
	return add_content(text, content, error);
}

/* A string, null, or an array of parts. *content is to be released, even after a failure. */
static bool take_content(struct json from, struct text *content, struct api_error *error)
{
	const bool parts = json_kind(from) == JSON_IS_ARRAY;
	const char *text = "";
	rosa_error why;

	for (size_t i = 0; parts && i < json_count(from); i++)
		if (!add_part(json_at(from, i), content, error))
			return false;
	if (!parts && json_there(from) && json_as_string(from, &text, &why) != ROSA_OK)
		return api_refuse(error, "messages", &why);
	return add_content(text, content, error);
}

static bool take_message(struct json from, struct conversation *conversation, struct api_error *error)
{
	const char *given = "", *role;
	struct text content = {0};
	rosa_error why;

	if (json_get_string(from, "role", JSON_NEEDED, &given, &why) != ROSA_OK)
		return api_refuse(error, "messages", &why);
	role = role_of(given);
	if (!role)
		return api_fail(error, 400, "messages", NULL,
				"a message of role %.40s cannot be read here; give system, user or assistant", given);
	bool good = take_content(json_find(from, "content"), &content, error);
	if (good && conversation_add(conversation, role, strlen(role), content.data, content.size, &why) != ROSA_OK)
		good = api_refuse(error, "messages", &why);
	text_free(&content);
	return good;
}

static bool take_messages(struct json root, struct request *request, struct api_error *error)
{
	struct json all;
	rosa_error why;

	if (json_get_array(root, "messages", JSON_NEEDED, &all, &why) != ROSA_OK)
		return api_refuse(error, "messages", &why);
	if (json_count(all) == 0)
		return api_fail(error, 400, "messages", NULL, "messages is empty: what is to be answered?");
	for (size_t i = 0; i < json_count(all); i++)
		if (!take_message(json_at(all, i), &request->conversation, error))
			return false;
	return true;
}

/* ------------------------------------------------------------------------------------------------------- options -- */

static float advised(double advice, double otherwise)
{
	return (float)(advice >= 0 ? advice : otherwise);
}

/* What is drawn from: the request, else the advice of the model's makers, else OpenAI's defaults. A request for the
 * likeliest token (temperature 0) gets it unaltered by penalties that it did not ask for. */
static bool take_sampling(struct json root, const struct generation_config *advice, struct request *request,
			  struct api_error *error)
{
	struct sampler_options *to = &request->sampling;
	int64_t seed = 0, top_k = 0;
	rosa_error why;

	*to = (struct sampler_options)SAMPLER_OPTIONS_INIT;
	to->temperature = advised(advice->temperature, 1);
	if (!get_float(root, "temperature", 0, LARGEST, &to->temperature, error))
		return false;
	to->top_k = to->temperature > 0 && advice->top_k >= 0 ? (size_t)advice->top_k : 0;
	to->top_p = advised(advice->top_p, 1);
	to->min_p = advised(advice->min_p, 0);
	to->repetition = to->temperature > 0 ? advised(advice->repetition, 1) : 1;
	if (!get_float(root, "top_p", 0, 1, &to->top_p, error) || !get_float(root, "min_p", 0, 1, &to->min_p, error) ||
	    !get_float(root, "repetition_penalty", 0.01, 100, &to->repetition, error) ||
	    !get_size(root, "repeat_last_n", 0, ROSA_MAX_STEPS, &to->repeat_last, error))
		return false;
	top_k = (int64_t)to->top_k;
	if (json_get_integer(root, "top_k", JSON_OPTIONAL, &top_k, &why) != ROSA_OK)
		return api_refuse(error, "top_k", &why);
	to->top_k = top_k > 0 ? (size_t)top_k : 0; /* -1 means all, as 0 does */
	if (json_get_integer(root, "seed", JSON_OPTIONAL, &seed, &why) != ROSA_OK)
		return api_refuse(error, "seed", &why);
	request->seeded = json_there(json_find(root, "seed"));
	to->seed = (uint64_t)seed;
	return true;
}

static bool add_stop(struct json from, struct request *request, struct api_error *error)
{
	const char *text = "";
	rosa_error why;

	if (json_as_string(from, &text, &why) != ROSA_OK)
		return api_refuse(error, "stop", &why);
	if (!*text)
		return api_fail(error, 400, "stop", NULL, "a stop string is empty");
	return copy_text(text, strlen(text), &request->stops[request->stop_count++], error);
}

static bool take_stops(struct json root, struct request *request, struct api_error *error)
{
	const struct json from = json_find(root, "stop");

	if (!json_there(from))
		return true;
	if (json_kind(from) != JSON_IS_ARRAY)
		return add_stop(from, request, error);
	if (json_count(from) > REQUEST_STOPS)
		return api_fail(error, 400, "stop", NULL, "there are %zu stop strings; give at most %d",
				json_count(from), REQUEST_STOPS);
	for (size_t i = 0; i < json_count(from); i++)
		if (!add_stop(json_at(from, i), request, error))
			return false;
	return true;
}

/* Completions say how many likely tokens they want; chats say whether, and how many. */
static bool take_scores(struct json root, struct request *request, struct api_error *error)
{
	if (request->kind == REQUEST_COMPLETION) {
		request->scored = json_there(json_find(root, "logprobs"));
		return get_size(root, "logprobs", 0, REQUEST_TOP, &request->top, error);
	}
	if (!get_bool(root, "logprobs", &request->scored, error) ||
	    !get_size(root, "top_logprobs", 0, REQUEST_TOP, &request->top, error))
		return false;
	if (request->top && !request->scored)
		return api_fail(error, 400, "top_logprobs", NULL, "top_logprobs needs logprobs to be true");
	return true;
}

static bool take_stream(struct json root, struct request *request, struct api_error *error)
{
	struct json options;
	rosa_error why;

	if (!get_bool(root, "stream", &request->stream, error))
		return false;
	if (json_get_object(root, "stream_options", JSON_OPTIONAL, &options, &why) != ROSA_OK)
		return api_refuse(error, "stream_options", &why);
	return !json_there(options) || get_bool(options, "include_usage", &request->stream_usage, error);
}

/* What only this server has: an object of its own, so that no name can come to mean something else. */
static bool take_extension(struct json root, struct request *request, struct api_error *error)
{
	static const char *const known[] = {"places", "memory", "progress", NULL};
	const char *const field = "rosatune";
	struct json_walk walk = {0};
	struct json options, value;
	const char *name;
	bool memory = true;
	rosa_error why;

	if (json_get_object(root, field, JSON_OPTIONAL, &options, &why) != ROSA_OK)
		return api_refuse(error, field, &why);
	if (!json_there(options))
		return true;
	while (json_next(options, &walk, &name, &value)) {
		size_t i = 0;

		while (known[i] && strcmp(known[i], name) != 0)
			i++;
		if (!known[i])
			return api_fail(error, 400, field, "unsupported_parameter",
					"rosatune.%.60s is not known; there are places, memory and progress", name);
	}
	if (json_get_bool(options, "places", JSON_OPTIONAL, &request->places, &why) != ROSA_OK ||
	    json_get_bool(options, "memory", JSON_OPTIONAL, &memory, &why) != ROSA_OK ||
	    json_get_bool(options, "progress", JSON_OPTIONAL, &request->progress, &why) != ROSA_OK)
		return api_refuse(error, field, &why);
	request->silent = !memory;
	return true;
}

/* A number that may be given only as the one value that this server obeys. */
static bool only(struct json root, const char *name, double value, struct api_error *error)
{
	double given = value;
	rosa_error why;

	if (json_get_number(root, name, JSON_OPTIONAL, &given, &why) != ROSA_OK)
		return api_refuse(error, name, &why);
	return given == value || api_fail(error, 400, name, "unsupported_value", "%s is %g; this server knows only %g",
					  name, given, value);
}

/* Fields that would change the answer and are not known here. Empty arrays and objects ask for nothing. */
static bool refuse_unknown(struct json root, struct api_error *error)
{
	static const char *const names[] = {"tools", "functions", "logit_bias", "suffix", "audio"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct json field = json_find(root, names[i]);
		const enum json_kind kind = json_kind(field);
		const bool empty = (kind == JSON_IS_ARRAY || kind == JSON_IS_OBJECT) && json_count(field) == 0;

		if (json_there(field) && !empty)
			return api_fail(error, 400, names[i], "unsupported_parameter", "%s is not known to this server",
					names[i]);
	}
	const struct json format = json_find(root, "response_format");
	const char *type = "text";

	if (json_there(format) &&
	    (json_get_string(format, "type", JSON_OPTIONAL, &type, NULL) != ROSA_OK || strcmp(type, "text") != 0))
		return api_fail(error, 400, "response_format", "unsupported_value",
				"response_format: this server answers with text only");
	return only(root, "n", 1, error) && only(root, "best_of", 1, error) &&
	       only(root, "presence_penalty", 0, error) && only(root, "frequency_penalty", 0, error);
}

/* -------------------------------------------------------------------------------------------------------- whole -- */

static bool take_model(struct json root, struct request *request, struct api_error *error)
{
	const char *model = NULL;
	rosa_error why;

	if (json_get_string(root, "model", JSON_OPTIONAL, &model, &why) != ROSA_OK)
		return api_refuse(error, "model", &why);
	return !model || copy_text(model, strlen(model), &request->model, error);
}

/* enable_thinking of Qwen3's template. */
static bool take_think(struct json root, struct request *request, struct api_error *error)
{
	struct json options;
	rosa_error why;

	request->think = true;
	if (json_get_object(root, "chat_template_kwargs", JSON_OPTIONAL, &options, &why) != ROSA_OK)
		return api_refuse(error, "chat_template_kwargs", &why);
	return !json_there(options) || get_bool(options, "enable_thinking", &request->think, error);
}

static bool take_all(struct json root, const struct request_defaults *defaults, struct request *request,
		     struct api_error *error)
{
	if (json_kind(root) != JSON_IS_OBJECT)
		return api_fail(error, 400, NULL, NULL, "the body must be a JSON object");
	if (request->kind == REQUEST_EITHER)
		request->kind = json_there(json_find(root, "messages")) ? REQUEST_CHAT : REQUEST_COMPLETION;
	const bool chat = request->kind == REQUEST_CHAT;

	request->most = chat ? defaults->chat_tokens : COMPLETION_TOKENS;
	if (!take_model(root, request, error) || !refuse_unknown(root, error) ||
	    !get_size(root, "max_tokens", 0, ROSA_MAX_STEPS, &request->most, error) ||
	    !take_sampling(root, &defaults->sampling, request, error) || !take_stops(root, request, error) ||
	    !take_scores(root, request, error) || !take_stream(root, request, error) ||
	    !take_extension(root, request, error))
		return false;
	if (chat)
		return get_size(root, "max_completion_tokens", 0, ROSA_MAX_STEPS, &request->most, error) &&
		       take_think(root, request, error) && take_messages(root, request, error);
	return get_bool(root, "echo", &request->echo, error) && take_prompts(root, request, error);
}

bool request_parse(enum request_kind kind, const char *body, size_t size, const struct request_defaults *defaults,
		   struct request *request, struct api_error *error)
{
	struct json root;
	rosa_error why;

	*request = (struct request){.kind = kind};
	if (json_read(body, size, "the request", &root, &why) != ROSA_OK)
		return api_refuse(error, NULL, &why);
	const bool good = take_all(root, defaults, request, error);
	json_free(&root);
	if (!good)
		request_free(request);
	return good;
}

void request_free(struct request *request)
{
	for (size_t i = 0; i < request->prompt_count; i++) {
		free(request->prompts[i].text);
		tokens_free(&request->prompts[i].tokens);
	}
	for (size_t i = 0; i < request->stop_count; i++)
		free(request->stops[i]);
	free(request->prompts);
	free(request->model);
	conversation_free(&request->conversation);
	*request = (struct request){0};
}
