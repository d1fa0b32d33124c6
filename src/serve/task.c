/*
 * Reading and continuing a prompt, one piece at a time.
 *
 * The last token is read only when the one after it is needed, as in a run of `rosatune generate`: a sequence that is
 * kept afterwards has read all tokens but the last. A task that echoes its prompt with scores needs the logits of
 * every token; all others need those of the last alone.
 */
#include "serve/task.h"

#include "base/array.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static bool failed(struct serve_task *task, const rosa_error *why)
{
	task->state = SERVE_OVER;
	return api_fail(&task->error, 500, NULL, NULL, "%s", why->message);
}

/* -------------------------------------------------------------------------------------------- making, releasing -- */

/* Makes what reading and writing need. */
static rosa_status equip(struct serve_task *task, rosa_error *why)
{
	const struct served *model = task->model;
	const size_t vocabulary = model->config->vocabulary, room = tokenizer_longest(model->tokenizer);
	const size_t rows = task->echo && task->scored ? SCORED_ROWS : 1;
	const rosa_status status = sampler_new(&task->sampling, vocabulary, &task->sampler, why);

	if (status != ROSA_OK)
		return status;
	task->logits = malloc(rows * vocabulary * sizeof(*task->logits));
	task->unaltered = task->scored ? malloc(vocabulary * sizeof(*task->unaltered)) : NULL;
	task->decoded = malloc(room);
	task->passed = malloc(room + stopping_longest(task->stopping));
	if (task->logits && task->decoded && task->passed && (task->unaltered || !task->scored))
		return ROSA_OK;
	return rosa_fail(why, ROSA_ENOMEM, "not enough memory for a request");
}

bool serve_task_new(const struct served *model, const struct request *request, struct tokens *tokens,
		    struct serve_task **made, struct api_error *error)
{
	struct serve_task *task = calloc(1, sizeof(*task));
	rosa_error why;

	*made = NULL;
	if (!task)
		return api_fail(error, 500, NULL, NULL, "not enough memory for a request");
	task->model = model;
	task->tokens = *tokens;
	*tokens = (struct tokens){0};
	task->prompt = task->tokens.count;
	task->most = request->most;
	task->echo = request->echo;
	task->scored = request->scored;
	task->top = request->top < model->config->vocabulary ? request->top : model->config->vocabulary;
	task->watched = request->places;
	task->silent = request->silent;
	task->sampling = request->sampling;
	task->chat_end = request->kind == REQUEST_CHAT ? chat_end(model->tokenizer, &model->chat) : -1;
	if (stopping_new((const char *const *)request->stops, request->stop_count, &task->stopping, &why) != ROSA_OK) {
		serve_task_free(task);
		return api_refuse(error, NULL, &why);
	}
	*made = task;
	return true;
}

void serve_task_strip(struct serve_task *task)
{
	sampler_free(task->sampler);
	free(task->logits);
	free(task->unaltered);
	free(task->decoded);
	free(task->passed);
	task->sampler = NULL;
	task->logits = task->unaltered = NULL;
	task->decoded = task->passed = NULL;
}

void serve_task_free(struct serve_task *task)
{
	if (!task)
		return;
	serve_task_strip(task);
	stopping_free(task->stopping);
	sequence_free(task->sequence);
	pointer_past_free(task->past);
	tokens_free(&task->tokens);
	text_free(&task->text);
	scores_free(&task->scores);
	answer_places_free(&task->places);
	free(task);
}

/* ---------------------------------------------------------------------------------------------------------- text -- */

static bool put(struct serve_task *task, const char *text, size_t size)
{
	rosa_error why;

	return text_append(&task->text, "the answer", text, size, true, &why) == ROSA_OK || failed(task, &why);
}

/* Decodes a token into task->decoded and counts its characters. */
static size_t decode(struct serve_task *task, uint32_t token, bool special)
{
	const size_t size = decode_token(task->model->tokenizer, &task->decoding, token, special, task->decoded);

	task->characters += utf8_characters(task->decoded, size);
	return size;
}

static bool score(struct serve_task *task, uint32_t token, const float *logits)
{
	rosa_error why;

	return !task->scored ||
	       scores_add(&task->scores, token, task->characters, logits, task->model->config->vocabulary, task->top,
			  &why) == ROSA_OK ||
	       failed(task, &why);
}

/* A token of the prompt, whose place had these logits (NULL: unknown), as part of the answer. */
static bool echo_token(struct serve_task *task, size_t place, const float *logits)
{
	const uint32_t token = task->tokens.ids[place];

	return score(task, token, logits) && put(task, task->decoded, decode(task, token, true));
}

static bool put_generated(struct serve_task *task, size_t size)
{
	return put(task, task->passed, stopping_take(task->stopping, task->decoded, size, task->passed));
}

/* The end: what was held back belongs to the answer. */
static bool finish(struct serve_task *task, enum serve_task_end end)
{
	bool good = put_generated(task, decode_finish(&task->decoding, task->decoded));

	task->end = stopping_done(task->stopping) ? SERVE_STOP : end;
	good = good && put(task, task->passed, stopping_finish(task->stopping, task->passed));
	if (task->watched)
		task->memory = sequence_memory(task->sequence);
	task->state = SERVE_OVER;
	return good;
}

/* ------------------------------------------------------------------------------------------------------ choosing -- */

static bool is_end(const struct serve_task *task, uint32_t token)
{
	const struct model_config *config = task->model->config;

	for (size_t i = 0; i < config->eos_count; i++)
		if (config->eos[i] == (int64_t)token)
			return true;
	return task->chat_end == (int64_t)token;
}

static bool append(struct serve_task *task, uint32_t token)
{
	rosa_error why;

	if (tokens_add(&task->tokens, &token, 1, &why) != ROSA_OK)
		return failed(task, &why);
	sampler_saw(task->sampler, token);
	return true;
}

/* The places of the token that was chosen, which is the last. */
static bool watch(struct serve_task *task)
{
	rosa_error why;

	return !task->watched ||
	       answer_places_add(&task->places, &task->step, task->tokens.ids, task->tokens.count, task->characters,
				 &why) == ROSA_OK ||
	       failed(task, &why);
}

/* Chooses the next token from logits that are those of the last. */
static bool choose(struct serve_task *task, float *logits)
{
	const size_t vocabulary = task->model->config->vocabulary;

	if (task->scored)
		memcpy(task->unaltered, logits, vocabulary * sizeof(*logits));
	const uint32_t token = sampler_choose(task->sampler, logits);

	if (!append(task, token))
		return false;
	task->made++;
	if (is_end(task, token))
		return finish(task, SERVE_STOP);
	if (!score(task, token, task->unaltered) || !watch(task) || !put_generated(task, decode(task, token, false)))
		return false;
	if (stopping_done(task->stopping))
		return finish(task, SERVE_STOP);
	return task->made < task->most || finish(task, SERVE_LENGTH);
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

static bool scores_prompt(const struct serve_task *task)
{
	return task->echo && task->scored;
}

size_t serve_task_reusable(const struct serve_task *task)
{
	return scores_prompt(task) ? 0 : task->prompt - 1;
}

bool serve_task_silent(const struct serve_task *task)
{
	return task->silent && decoder_adapted(task->model->decoder);
}

bool serve_task_begin(struct serve_task *task)
{
	const size_t known = scores_prompt(task) ? 1 : task->prompt; /* those after it are echoed with their scores */
	const bool recalls = task->sampling.repetition != 1;
	rosa_error why;

	if (equip(task, &why) != ROSA_OK)
		return failed(task, &why);
	for (size_t i = 0; i < task->prompt && recalls; i++)
		sampler_saw(task->sampler, task->tokens.ids[i]);
	for (size_t i = 0; i < known && task->echo; i++)
		if (!echo_token(task, i, NULL))
			return false;
	return task->most > 0 || (scores_prompt(task) && task->prompt > 1) || finish(task, SERVE_LENGTH);
}

size_t serve_task_due(const struct serve_task *task)
{
	return task->tokens.count - sequence_steps(task->sequence);
}

struct piece serve_task_plan(const struct serve_task *task, size_t most)
{
	const size_t steps = sequence_steps(task->sequence), due = task->tokens.count - steps;
	const bool all = scores_prompt(task) && steps < task->prompt;
	const size_t limit = all && most > SCORED_ROWS ? SCORED_ROWS : most, count = due < limit ? due : limit;
	const enum logits_wanted last = count == due ? LOGITS_LAST : LOGITS_NONE;

	return (struct piece){task->sequence, task->tokens.ids + steps, count, all ? LOGITS_ALL : last, task->logits};
}

/* Mixes what the pointer finds after the token at `place`, the first that it has not read, into its logits. */
static rosa_status point_at(struct serve_task *task, size_t place, bool watched, float *logits, rosa_error *why)
{
	const struct pointer *pointer = task->model->pointer;
	const size_t vocabulary = task->model->config->vocabulary;
	struct pointer_links found;
	rosa_status status = pointer_past_add(task->past, task->tokens.ids + place, 1, &found, why);

	if (status != ROSA_OK)
		return status;
	if (watched) {
		task->step.found = found;
		task->step.links = pointer_shares(pointer, &found, logits, vocabulary, task->step.shares);
	}
	pointer_mix(pointer, &found, pointer_past_seen(task->past), logits, vocabulary);
	return ROSA_OK;
}

/* The same for the last `rows` tokens read, of which the first is at `first`. */
static rosa_status point(struct serve_task *task, size_t first, size_t rows, rosa_error *why)
{
	size_t known;
	rosa_status status;

	if (!task->past || task->silent)
		return ROSA_OK;
	known = pointer_past_steps(task->past);
	status = pointer_past_add(task->past, task->tokens.ids + known, first - known, NULL, why);
	for (size_t i = 0; i < rows && status == ROSA_OK; i++)
		status = point_at(task, first + i, task->watched && i + 1 == rows,
				  task->logits + i * task->model->config->vocabulary, why);
	return status;
}

bool serve_task_take(struct serve_task *task, const struct piece *piece)
{
	const size_t rows = piece->wanted == LOGITS_ALL ? piece->count : piece->wanted == LOGITS_LAST,
		     first = sequence_steps(task->sequence) - rows, vocabulary = task->model->config->vocabulary;
	rosa_error why;

	task->read += piece->count;
	if (rows && point(task, first, rows, &why) != ROSA_OK)
		return failed(task, &why);
	if (rows && task->watched)
		task->step.reads = sequence_places(task->sequence, task->step.read);
	for (size_t i = 0; i < rows; i++) {
		const size_t next = first + i + 1;
		float *logits = task->logits + i * vocabulary;

		if (next < task->prompt && !echo_token(task, next, logits))
			return false;
		if (next == task->tokens.count)
			return task->most > 0 ? choose(task, logits) : finish(task, SERVE_LENGTH);
	}
	return true;
}
