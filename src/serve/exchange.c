/*
 * Turns requests into tasks, and tasks into answers.
 *
 * Whole answers and streams are made from the same text and scores of a task: a stream remembers how much of them it
 * has sent. So what a stream adds up to is the whole answer.
 */
#include "serve/exchange.h"

#include "base/utf8.h"
#include "serve/prompt_encode.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------ from requests -- */

static bool make_tasks(struct exchange *x, struct api_error *error)
{
	const size_t count = x->request.kind == REQUEST_CHAT ? 1 : x->request.prompt_count;

	x->tasks = calloc(count, sizeof(*x->tasks));
	x->sent = calloc(count, sizeof(*x->sent));
	if (!x->tasks || !x->sent)
		return api_fail(error, 500, NULL, NULL, "not enough memory for %zu prompts", count);
	for (; x->count < count; x->count++) {
		struct tokens tokens = {0};
		const bool good = prompt_encode(x->model, &x->request, x->count, &tokens, error) &&
				  serve_task_new(x->model, &x->request, &tokens, &x->tasks[x->count], error);

		tokens_free(&tokens);
		if (!good)
			return false;
	}
	return true;
}

static bool check_model(const struct exchange *x, struct api_error *error)
{
	const char *asked = x->request.model;

	return !asked || strcmp(asked, x->model->name) == 0 ||
	       api_fail(error, 404, "model", "model_not_found", "the model %.100s is not served here; %.100s is", asked,
			x->model->name);
}

static void name_it(struct exchange *x)
{
	static atomic_uint_fast64_t number;
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		random = (uint64_t)time(NULL);
	if (!x->request.seeded)
		x->request.sampling.seed = random;
	x->created = (int64_t)time(NULL);
	snprintf(x->id, sizeof(x->id), "%s-%08llx%llx", x->request.kind == REQUEST_CHAT ? "chatcmpl" : "cmpl",
		 (unsigned long long)(random >> 32), (unsigned long long)atomic_fetch_add(&number, 1));
}

bool exchange_new(const struct served *model, enum request_kind kind, const char *body, size_t size, struct exchange *x,
		  struct api_error *error)
{
	*x = (struct exchange){.model = model};
	if (!request_parse(kind, body, size, &model->defaults, &x->request, error))
		return false;
	name_it(x);
	if (check_model(x, error) && make_tasks(x, error))
		return true;
	exchange_free(x);
	return false;
}

void exchange_free(struct exchange *x)
{
	for (size_t i = 0; i < x->count; i++)
		serve_task_free(x->tasks[i]);
	free(x->tasks);
	free(x->sent);
	request_free(&x->request);
	*x = (struct exchange){0};
}

bool exchange_over(const struct exchange *x)
{
	for (size_t i = 0; i < x->count; i++)
		if (x->tasks[i]->state != SERVE_OVER)
			return false;
	return true;
}

const struct api_error *exchange_error(const struct exchange *x)
{
	for (size_t i = 0; i < x->count; i++)
		if (x->tasks[i]->error.status)
			return &x->tasks[i]->error;
	return NULL;
}

/* -------------------------------------------------------------------------------------------------------- scores -- */

/* A token as a string. Bytes that are no whole characters are spelled out, so that different tokens differ. */
static void put_token(struct json_text *text, const struct served *model, uint32_t id)
{
	size_t size;
	const char *bytes = tokenizer_bytes(model->tokenizer, id, &size);

	if (utf8_valid(bytes, size) == size) {
		json_text_bytes(text, bytes, size);
		return;
	}
	json_text_add(text, "\"bytes:");
	for (size_t i = 0; i < size; i++)
		json_text_add(text, "\\\\x%02x", (unsigned char)bytes[i]);
	json_text_add(text, "\"");
}

static bool same_text(const struct served *model, uint32_t a, uint32_t b)
{
	size_t size, other;
	const char *bytes = tokenizer_bytes(model->tokenizer, a, &size),
		   *more = tokenizer_bytes(model->tokenizer, b, &other);

	return size == other && memcmp(bytes, more, size) == 0;
}

/* The likeliest tokens as an object by their text: of those with the same text the likeliest counts. */
static void put_top(struct json_text *text, const struct served *model, const struct likely_token *top, size_t width)
{
	const char *comma = "";

	json_text_add(text, "{");
	for (size_t i = 0; i < width; i++) {
		size_t j = 0;

		while (j < i && !same_text(model, top[j].id, top[i].id))
			j++;
		if (j < i)
			continue;
		json_text_add(text, "%s", comma);
		put_token(text, model, top[i].id);
		json_text_add(text, ": ");
		json_text_number(text, top[i].logprob);
		comma = ", ";
	}
	json_text_add(text, "}");
}

static const struct likely_token *top_of(const struct scores *scores, size_t i)
{
	return scores->width ? scores->top + i * scores->width : NULL;
}

/* Of a completion: arrays side by side. */
static void put_arrays(struct json_text *text, const struct served *model, const struct scores *scores, size_t from)
{
	enum { TOKEN, LOGPROB, TOP, OFFSET, COLUMNS };
	static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};

	for (int column = 0; column < COLUMNS; column++) {
		json_text_add(text, "%s\"%s\": [", column ? "], " : "{", names[column]);
		for (size_t i = from; i < scores->count; i++) {
			json_text_add(text, "%s", i > from ? ", " : "");
			if (column == TOKEN)
				put_token(text, model, scores->all[i].id);
			else if (column == OFFSET)
				json_text_add(text, "%zu", scores->all[i].offset);
			else if (!scores->all[i].known)
				json_text_add(text, "null");
			else if (column == LOGPROB)
				json_text_number(text, scores->all[i].logprob);
			else
				put_top(text, model, top_of(scores, i), scores->width);
		}
	}
	json_text_add(text, "]}");
}

static void put_scored(struct json_text *text, const struct served *model, uint32_t id, double logprob)
{
	size_t size;
	const unsigned char *bytes = (const unsigned char *)tokenizer_bytes(model->tokenizer, id, &size);

	json_text_add(text, "{\"token\": ");
	put_token(text, model, id);
	json_text_add(text, ", \"logprob\": ");
	json_text_number(text, logprob);
	json_text_add(text, ", \"bytes\": [");
	for (size_t i = 0; i < size; i++)
		json_text_add(text, "%s%u", i ? ", " : "", bytes[i]);
	json_text_add(text, "]");
}

/* Of a chat: an object for each token. */
static void put_objects(struct json_text *text, const struct served *model, const struct scores *scores, size_t from)
{
	json_text_add(text, "{\"content\": [");
	for (size_t i = from; i < scores->count; i++) {
		const struct likely_token *top = top_of(scores, i);

		json_text_add(text, "%s", i > from ? ", " : "");
		put_scored(text, model, scores->all[i].id, scores->all[i].logprob);
		json_text_add(text, ", \"top_logprobs\": [");
		for (size_t j = 0; j < scores->width; j++) {
			json_text_add(text, "%s", j ? ", " : "");
			put_scored(text, model, top[j].id, top[j].logprob);
			json_text_add(text, "}");
		}
		json_text_add(text, "]}");
	}
	json_text_add(text, "]}");
}

static void put_scores(struct json_text *text, const struct exchange *x, const struct serve_task *task, size_t from)
{
	if (!x->request.scored)
		json_text_add(text, "null");
	else
		(x->request.kind == REQUEST_CHAT ? put_objects : put_arrays)(text, x->model, &task->scores, from);
}

/* -------------------------------------------------------------------------------------------------------- places -- */

/* What a choice says of places, if that was asked for: of the tokens from number `from` on, and of the memory that the
 * text takes, once that is known. */
static void put_places(struct json_text *text, const struct exchange *x, const struct serve_task *task, size_t from)
{
	const struct sequence_memory *memory = &task->memory;

	if (!x->request.places)
		return;
	json_text_add(text, ", \"rosatune\": {\"tokens\": ");
	answer_places_put(&task->places, from, text);
	if (task->state == SERVE_OVER)
		json_text_add(text, ", \"bytes\": {\"attention\": %llu, \"retrieval\": %llu, \"values\": %llu}",
			      (unsigned long long)memory->attention, (unsigned long long)memory->retrieval,
			      (unsigned long long)memory->values);
	json_text_add(text, "}");
}

/* ------------------------------------------------------------------------------------------------------- answers -- */

static void put_head(struct json_text *text, const struct exchange *x, const char *object)
{
	json_text_add(text, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", x->id, object,
		      (long long)x->created);
	json_text_string(text, x->model->name);
}

static void put_usage(struct json_text *text, const struct exchange *x)
{
	size_t prompt = 0, cached = 0, made = 0;

	for (size_t i = 0; i < x->count; i++) {
		prompt += x->tasks[i]->prompt;
		cached += x->tasks[i]->cached;
		made += x->tasks[i]->answer.made;
	}
	json_text_add(text,
		      "{\"prompt_tokens\": %zu, \"completion_tokens\": %zu, \"total_tokens\": %zu, "
		      "\"prompt_tokens_details\": {\"cached_tokens\": %zu}}",
		      prompt, made, prompt + made, cached);
}

static const char *reason(const struct serve_task *task)
{
	return task->answer.end == ANSWER_END || task->answer.end == ANSWER_STOP ? "\"stop\"" : "\"length\"";
}

void exchange_whole(const struct exchange *x, struct json_text *text)
{
	const bool chat = x->request.kind == REQUEST_CHAT;

	put_head(text, x, chat ? "chat.completion" : "text_completion");
	json_text_add(text, ", \"choices\": [");
	for (size_t i = 0; i < x->count; i++) {
		const struct serve_task *task = x->tasks[i];

		json_text_add(text, "%s{\"index\": %zu, ", i ? ", " : "", i);
		json_text_add(text, chat ? "\"message\": {\"role\": \"assistant\", \"content\": " : "\"text\": ");
		json_text_bytes(text, task->answer.text.data ? task->answer.text.data : "", task->answer.text.size);
		json_text_add(text, chat ? "}, \"logprobs\": " : ", \"logprobs\": ");
		put_scores(text, x, task, 0);
		put_places(text, x, task, 0);
		json_text_add(text, ", \"finish_reason\": %s}", reason(task));
	}
	json_text_add(text, "], \"usage\": ");
	put_usage(text, x);
	json_text_add(text, "}");
}

/* ------------------------------------------------------------------------------------------------------- streams -- */

static void open_event(struct json_text *text, const struct exchange *x)
{
	json_text_add(text, "data: ");
	put_head(text, x, x->request.kind == REQUEST_CHAT ? "chat.completion.chunk" : "text_completion");
	json_text_add(text, ", \"choices\": [");
}

static void close_event(struct json_text *text)
{
	json_text_add(text, "]}\n\n");
}

/* What one choice says in an event: more text, or the end. */
static void put_choice(struct json_text *text, const struct exchange *x, size_t i, bool ends)
{
	const bool chat = x->request.kind == REQUEST_CHAT;
	const struct serve_task *task = x->tasks[i];
	const struct sent *sent = &x->sent[i];
	const char *more = task->answer.text.data ? task->answer.text.data + sent->text : "";

	json_text_add(text, "{\"index\": %zu, ", i);
	if (!chat) {
		json_text_add(text, "\"text\": ");
		json_text_bytes(text, more, task->answer.text.size - sent->text);
	} else if (ends) {
		json_text_add(text, "\"delta\": {}");
	} else {
		json_text_add(text, "\"delta\": {%s\"content\": ", sent->opened ? "" : "\"role\": \"assistant\", ");
		json_text_bytes(text, more, task->answer.text.size - sent->text);
		json_text_add(text, "}");
	}
	json_text_add(text, ", \"logprobs\": ");
	if (ends)
		json_text_add(text, "null");
	else
		put_scores(text, x, task, sent->scores);
	put_places(text, x, task, sent->places);
	json_text_add(text, ", \"finish_reason\": %s}", ends ? reason(task) : "null");
}

/* How much of a prompt has been read: at least once, and whenever it is more while nothing has been written yet. */
static void stream_progress(const struct exchange *x, size_t i, struct json_text *text)
{
	const struct serve_task *task = x->tasks[i];
	struct sent *sent = &x->sent[i];

	if (!x->request.progress || !task->begun || (sent->read && (task->answer.made || sent->read == task->read + 1)))
		return;
	open_event(text, x);
	json_text_add(text,
		      "], \"rosatune\": {\"index\": %zu, \"prompt_tokens\": %zu, \"cached_tokens\": %zu, "
		      "\"tokens_read\": %zu}}\n\n",
		      i, task->prompt, task->cached, task->read);
	sent->read = task->read + 1;
}

static void stream_choice(struct exchange *x, size_t i, struct json_text *text)
{
	const struct serve_task *task = x->tasks[i];
	struct sent *sent = &x->sent[i];
	const bool first = x->request.kind == REQUEST_CHAT && !sent->opened;

	stream_progress(x, i, text);
	if (first || task->answer.text.size > sent->text || task->scores.count > sent->scores ||
	    task->places.count > sent->places) {
		open_event(text, x);
		put_choice(text, x, i, false);
		close_event(text);
		*sent = (struct sent){
		    task->answer.text.size, task->scores.count, task->places.count, sent->read, true, sent->ended};
	}
	if (task->state == SERVE_OVER && !task->error.status && !sent->ended) {
		open_event(text, x);
		put_choice(text, x, i, true);
		close_event(text);
		sent->ended = true;
	}
}

static void close_stream(struct exchange *x, struct json_text *text)
{
	const struct api_error *error = exchange_error(x);

	if (error) {
		json_text_add(text, "data: ");
		answer_error(text, error);
		json_text_add(text, "\n\n");
	} else if (x->request.stream_usage) {
		open_event(text, x);
		json_text_add(text, "], \"usage\": ");
		put_usage(text, x);
		json_text_add(text, "}\n\n");
	}
	json_text_add(text, "data: [DONE]\n\n");
	x->closed = true;
}

void exchange_stream(struct exchange *x, struct json_text *text)
{
	if (x->closed)
		return;
	for (size_t i = 0; i < x->count; i++)
		stream_choice(x, i, text);
	if (exchange_over(x))
		close_stream(x, text);
}

void answer_error(struct json_text *text, const struct api_error *error)
{
	json_text_add(text, "{\"error\": {\"message\": ");
	json_text_string(text, error->message);
	json_text_add(text, ", \"type\": \"%s\", \"param\": ", api_error_type(error->status));
	json_text_string(text, error->param);
	json_text_add(text, ", \"code\": ");
	json_text_string(text, error->code);
	json_text_add(text, "}}");
}
