/*
 * Reading and continuing a prompt, one piece at a time.
 *
 * The last token is read only when the one after it is needed, as in a run of `rosatune generate`: a sequence that is
 * kept afterwards has read all tokens but the last. A task that echoes its prompt with scores needs the logits of
 * every token; all others need those of the last alone.
 */
#include "serve/task.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static bool failed(struct serve_task *task, const rosa_error *why)
{
	task->state = SERVE_OVER;
	return api_fail(&task->error, 500, NULL, NULL, "%s", why->message);
}

/* -------------------------------------------------------------------------------------------- making, releasing -- */

bool serve_task_new(const struct served *model, const struct request *request, struct tokens *tokens,
		    struct serve_task **made, struct api_error *error)
{
	struct serve_task *task = calloc(1, sizeof(*task));

	*made = NULL;
	if (!task)
		return api_fail(error, 500, NULL, NULL, "not enough memory for a request");
	task->model = model;
	task->request = request;
	task->tokens = *tokens;
	*tokens = (struct tokens){0};
	task->prompt = task->tokens.count;
	*made = task;
	return true;
}

void serve_task_strip(struct serve_task *task)
{
	answer_strip(&task->answer);
	free(task->logits);
	free(task->unaltered);
	task->logits = task->unaltered = NULL;
}

void serve_task_free(struct serve_task *task)
{
	if (!task)
		return;
	serve_task_strip(task);
	answer_close(&task->answer);
	sequence_free(task->sequence);
	pointer_past_free(task->past);
	tokens_free(&task->tokens);
	scores_free(&task->scores);
	answer_places_free(&task->places);
	free(task);
}

/* ---------------------------------------------------------------------------------------------------------- text -- */

/* Scores a token that comes after so many characters, and whose place had these logits (NULL: unknown). */
static bool score(struct serve_task *task, uint32_t token, size_t offset, const float *logits)
{
	const size_t vocabulary = task->model->config->vocabulary, top = task->request->top;
	rosa_error why;

	return !task->request->scored ||
	       scores_add(&task->scores, token, offset, logits, vocabulary, top < vocabulary ? top : vocabulary,
			  &why) == ROSA_OK ||
	       failed(task, &why);
}

/* A token of the prompt as part of the answer. */
static bool echo_token(struct serve_task *task, size_t place, const float *logits)
{
	const uint32_t token = task->tokens.ids[place];
	rosa_error why;

	return score(task, token, task->answer.characters, logits) &&
	       (answer_echo(&task->answer, token, &why) == ROSA_OK || failed(task, &why));
}

/* The places of the token that was chosen, which is the last and comes after so many characters. */
static bool watch(struct serve_task *task, size_t offset)
{
	rosa_error why;

	return !task->request->places ||
	       answer_places_add(&task->places, &task->step, task->tokens.ids, task->tokens.count, offset, &why) ==
		   ROSA_OK ||
	       failed(task, &why);
}

/* The end: that of the length, if the answer did not end by itself. */
static bool finish(struct serve_task *task)
{
	rosa_error why;

	if (task->answer.end == ANSWER_OPEN && answer_finish(&task->answer, ANSWER_LENGTH, &why) != ROSA_OK)
		return failed(task, &why);
	if (task->request->places)
		task->memory = sequence_memory(task->sequence);
	task->state = SERVE_OVER;
	return true;
}

/* Chooses the next token from logits that are those of the last. */
static bool choose(struct serve_task *task, float *logits)
{
	struct answer *answer = &task->answer;
	const size_t offset = answer->characters;
	rosa_error why;

	if (task->request->scored) /* the sampler changes them */
		memcpy(task->unaltered, logits, task->model->config->vocabulary * sizeof(*logits));
	if (answer_step(answer, logits, &task->tokens, &why) != ROSA_OK)
		return failed(task, &why);
	const uint32_t token = task->tokens.ids[task->tokens.count - 1];

	if (!answer_is_end(answer, token) && (!score(task, token, offset, task->unaltered) || !watch(task, offset)))
		return false;
	return (answer->end == ANSWER_OPEN && answer->made < task->request->most) || finish(task);
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

static bool scores_prompt(const struct serve_task *task)
{
	return task->request->echo && task->request->scored;
}

size_t serve_task_reusable(const struct serve_task *task)
{
	return scores_prompt(task) ? 0 : task->prompt - 1;
}

bool serve_task_silent(const struct serve_task *task)
{
	return task->request->silent && decoder_adapted(task->model->decoder);
}

/* Makes what reading and writing need. */
static rosa_status equip(struct serve_task *task, rosa_error *why)
{
	const struct served *model = task->model;
	const struct request *request = task->request;
	const size_t vocabulary = model->config->vocabulary, rows = scores_prompt(task) ? SCORED_ROWS : 1;
	const struct answer_options options = {
	    .tokenizer = model->tokenizer,
	    .config = model->config,
	    .end = request->kind == REQUEST_CHAT ? chat_end(model->tokenizer, &model->chat) : -1,
	    .stops = (const char *const *)request->stops,
	    .stop_count = request->stop_count,
	    .sampling = request->sampling};
	const rosa_status status = answer_open(&task->answer, &options, why);

	if (status != ROSA_OK)
		return status;
	task->logits = malloc(rows * vocabulary * sizeof(*task->logits));
	task->unaltered = request->scored ? malloc(vocabulary * sizeof(*task->unaltered)) : NULL;
	if (task->logits && (task->unaltered || !request->scored))
		return ROSA_OK;
	return rosa_fail(why, ROSA_ENOMEM, "not enough memory for a request");
}

bool serve_task_begin(struct serve_task *task)
{
	const size_t known = scores_prompt(task) ? 1 : task->prompt; /* those after it are echoed with their scores */
	rosa_error why;

	if (equip(task, &why) != ROSA_OK)
		return failed(task, &why);
	for (size_t i = 0; i < task->prompt; i++)
		sampler_saw(task->answer.sampler, task->tokens.ids[i]);
	for (size_t i = 0; i < known && task->request->echo; i++)
		if (!echo_token(task, i, NULL))
			return false;
	return task->request->most > 0 || (scores_prompt(task) && task->prompt > 1) || finish(task);
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

/* Mixes what the pointer finds into the logits of the last `rows` tokens read, of which the first is at `first`. */
static rosa_status point(struct serve_task *task, size_t first, size_t rows, rosa_error *why)
{
	const size_t pointed = task->past && !task->request->silent ? rows : 0;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < pointed && status == ROSA_OK; i++)
		status = pointer_past_mix(task->past, task->model->pointer, task->tokens.ids, first + i,
					  task->logits + i * task->model->config->vocabulary, &task->step.found,
					  task->request->places && i + 1 == rows ? task->step.shares : NULL, why);
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
	if (rows && task->request->places)
		task->step.reads = sequence_places(task->sequence, task->step.read);
	for (size_t i = 0; i < rows; i++) {
		const size_t next = first + i + 1;
		float *logits = task->logits + i * vocabulary;

		if (next < task->prompt && !echo_token(task, next, logits))
			return false;
		if (next == task->tokens.count)
			return task->request->most > 0 ? choose(task, logits) : finish(task);
	}
	return true;
}
