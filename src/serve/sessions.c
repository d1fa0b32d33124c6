/*
 * Kept sessions.
 *
 * A prompt is compared with the tokens of every session. Where it goes on from all of them, as the next turn of a
 * conversation does, the session is taken over: nothing is copied, and it comes back with the answer. Where it leaves
 * them earlier, as a second conversation with the same instructions or another try at an answer does, a copy is cut at
 * that place and the session stays. A sequence with a window cannot go back far, so for models with one a copy is kept
 * where the answer begins as well (sessions_remember).
 *
 * A session that another one could be cut to is of no use and is not kept. Beyond that the oldest go first.
 */
#include "serve/sessions.h"

#include <stdlib.h>
#include <string.h>

static size_t in_common(const struct tokens *tokens, const uint32_t *ids, size_t count)
{
	size_t i = 0;

	while (i < tokens->count && i < count && tokens->ids[i] == ids[i])
		i++;
	return i;
}

struct session_choice sessions_choose(const struct sessions *sessions, const uint32_t *ids, size_t count)
{
	struct session_choice best = {0, 0};

	for (size_t i = 0; i < sessions->count; i++) {
		const struct kept *kept = &sessions->all[i];
		const size_t steps = in_common(&kept->tokens, ids, count);

		if (steps >= kept->floor && steps > best.steps)
			best = (struct session_choice){i, steps};
	}
	return best;
}

uint64_t serve_task_bytes(const struct serve_task *task)
{
	const struct sequence_memory memory =
	    task->sequence ? sequence_memory(task->sequence) : (struct sequence_memory){0};

	return memory.attention + memory.retrieval + memory.values + (task->past ? pointer_past_bytes(task->past) : 0) +
	       task->tokens.room * sizeof(*task->tokens.ids);
}

/* ------------------------------------------------------------------------------------------------------ dropping -- */

static void release(struct kept *kept)
{
	sequence_free(kept->sequence);
	pointer_past_free(kept->past);
	tokens_free(&kept->tokens);
}

/* Takes a session out of the list; what it has is the caller's. */
static struct kept take_out(struct sessions *sessions, size_t index)
{
	const struct kept kept = sessions->all[index];

	sessions->bytes -= kept.bytes;
	sessions->all[index] = sessions->all[--sessions->count];
	return kept;
}

static void drop(struct sessions *sessions, size_t index)
{
	struct kept kept = take_out(sessions, index);

	release(&kept);
}

static void drop_oldest(struct sessions *sessions)
{
	size_t oldest = 0;

	for (size_t i = 1; i < sessions->count; i++)
		if (sessions->all[i].used < sessions->all[oldest].used)
			oldest = i;
	drop(sessions, oldest);
}

void sessions_shrink(struct sessions *sessions, uint64_t bytes)
{
	while (sessions->count && sessions->bytes > bytes)
		drop_oldest(sessions);
}

void sessions_free(struct sessions *sessions)
{
	while (sessions->count)
		drop(sessions, sessions->count - 1);
	free(sessions->all);
	*sessions = (struct sessions){0};
}

/* ------------------------------------------------------------------------------------------------------- lending -- */

/* A copy cut at `steps`; where there is no memory for one, the session itself. */
static rosa_status cut(struct sessions *sessions, struct session_choice choice, struct serve_task *task,
		       rosa_error *err)
{
	struct kept *from = &sessions->all[choice.index];

	from->used = ++sessions->clock;
	if (from->bytes <= sessions->memory - sessions->bytes &&
	    sequence_fork(from->sequence, choice.steps, &task->sequence, NULL) == ROSA_OK)
		return ROSA_OK;
	struct kept whole = take_out(sessions, choice.index);
	const rosa_status status = sequence_rewind(whole.sequence, choice.steps, err);

	if (status == ROSA_OK) {
		task->sequence = whole.sequence;
		whole.sequence = NULL;
	}
	release(&whole);
	return status;
}

rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err)
{
	const struct served *model = task->model;
	const struct session_choice choice = sessions_choose(sessions, task->tokens.ids, serve_task_reusable(task));
	rosa_status status = ROSA_OK;

	if (!choice.steps) {
		status = sequence_new(model->decoder, &task->sequence, err);
	} else if (choice.steps < sessions->all[choice.index].tokens.count) {
		status = cut(sessions, choice, task, err);
	} else {
		struct kept whole = take_out(sessions, choice.index);

		task->sequence = whole.sequence;
		task->past = whole.past;
		tokens_free(&whole.tokens);
	}
	if (status == ROSA_OK && model->pointer && !task->past)
		status = pointer_past_new(model->pointer, model->config->vocabulary, &task->past, err);
	task->cached = status == ROSA_OK ? choice.steps : 0;
	return status;
}

/* ------------------------------------------------------------------------------------------------------- keeping -- */

/* Whether a sequence of `longer` could be cut to what `shorter` is. */
static bool replaces(const struct kept *longer, const struct kept *shorter)
{
	return longer->floor <= shorter->tokens.count &&
	       in_common(&longer->tokens, shorter->tokens.ids, shorter->tokens.count) == shorter->tokens.count;
}

static void add(struct sessions *sessions, struct kept *kept)
{
	struct kept *grown;

	for (size_t i = sessions->count; i-- > 0;) {
		if (replaces(&sessions->all[i], kept)) {
			release(kept);
			return;
		}
		if (replaces(kept, &sessions->all[i]))
			drop(sessions, i);
	}
	grown = kept->bytes <= sessions->memory && sessions->most
		    ? realloc(sessions->all, (sessions->count + 1) * sizeof(*grown))
		    : NULL;
	if (!grown) {
		release(kept);
		return;
	}
	sessions->all = grown;
	kept->used = ++sessions->clock;
	sessions->all[sessions->count++] = *kept;
	sessions->bytes += kept->bytes;
	if (sessions->count > sessions->most)
		drop_oldest(sessions);
	sessions_shrink(sessions, sessions->memory);
}

/* The first tokens of a task, as many as its sequence has read. */
static bool copy_tokens(const struct serve_task *task, struct tokens *copy)
{
	const size_t count = sequence_steps(task->sequence);

	copy->ids = malloc((count + 1) * sizeof(*copy->ids));
	if (!copy->ids)
		return false;
	memcpy(copy->ids, task->tokens.ids, count * sizeof(*copy->ids));
	copy->count = count;
	copy->room = count + 1;
	return true;
}

void sessions_keep(struct sessions *sessions, struct serve_task *task)
{
	struct kept kept = {.sequence = task->sequence, .past = task->past, .bytes = serve_task_bytes(task)};
	const bool good = task->sequence && sequence_steps(task->sequence) > 0 && copy_tokens(task, &kept.tokens);

	task->sequence = NULL;
	task->past = NULL;
	kept.floor = good ? sequence_floor(kept.sequence) : 0;
	if (good)
		add(sessions, &kept);
	else
		release(&kept);
}

void sessions_remember(struct sessions *sessions, struct serve_task *task)
{
	struct kept kept = {.bytes = serve_task_bytes(task)};

	if (kept.bytes > sessions->memory / 2 || !sequence_steps(task->sequence) || !copy_tokens(task, &kept.tokens))
		return;
	if (sequence_fork(task->sequence, kept.tokens.count, &kept.sequence, NULL) != ROSA_OK) {
		tokens_free(&kept.tokens);
		return;
	}
	kept.floor = sequence_floor(kept.sequence);
	add(sessions, &kept);
}
