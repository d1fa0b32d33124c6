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
 *
 * With a folder, what is in memory is also written to disk, and what has to leave memory stays there; used again, it is
 * loaded. The file of a text that was taken over stays until the longer text replaces it under the same name, so that
 * at every moment the disk has the conversation as it was or as it is.
 */
#include "serve/sessions.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t in_common(const struct tokens *tokens, const uint32_t *ids, size_t count)
{
	size_t i = 0;

	while (i < tokens->count && i < count && tokens->ids[i] == ids[i])
		i++;
	return i;
}

struct session_choice sessions_choose(const struct sessions *sessions, bool silent, const uint32_t *ids, size_t count)
{
	struct session_choice best = {0, 0};

	for (size_t i = 0; i < sessions->count; i++) {
		const struct kept *kept = &sessions->all[i];
		const size_t steps = in_common(&kept->tokens, ids, count);

		if (kept->silent == silent && steps >= kept->floor && steps > best.steps)
			best = (struct session_choice){i, steps};
	}
	return best;
}

static uint64_t bytes_of(const sequence *sequence, const pointer_past *past, const struct tokens *tokens)
{
	const struct sequence_memory memory = sequence ? sequence_memory(sequence) : (struct sequence_memory){0};

	return memory.attention + memory.retrieval + memory.values + (past ? pointer_past_bytes(past) : 0) +
	       tokens->room * sizeof(*tokens->ids);
}

uint64_t serve_task_bytes(const struct serve_task *task)
{
	return bytes_of(task->sequence, task->past, &task->tokens);
}

/* ------------------------------------------------------------------------------------------------------ dropping -- */

static void release(struct kept *kept)
{
	sequence_free(kept->sequence);
	pointer_past_free(kept->past);
	tokens_free(&kept->tokens);
}

/* From where on a sequence can go back that was saved after `steps` tokens: only what attention sees next is saved. */
static size_t saved_floor(const struct sessions *sessions, size_t steps)
{
	return sessions->window && steps >= sessions->window ? steps : 0;
}

static void remove_entry(struct sessions *sessions, size_t index)
{
	tokens_free(&sessions->all[index].tokens);
	sessions->all[index] = sessions->all[--sessions->count];
}

/* Takes the sequence and its look-up from an entry. What is left is what its file has; without a file, nothing. */
static struct kept take_out(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];
	const struct kept taken = {.sequence = kept->sequence, .past = kept->past};

	sessions->bytes -= kept->bytes;
	sessions->held--;
	kept->sequence = NULL;
	kept->past = NULL;
	kept->bytes = 0;
	kept->followed = true; /* as all that is saved */
	kept->tokens.count = kept->saved;
	kept->floor = saved_floor(sessions, kept->saved);
	if (!kept->number)
		remove_entry(sessions, index);
	return taken;
}

static void evict(struct sessions *sessions, size_t index)
{
	struct kept taken = take_out(sessions, index);

	release(&taken);
}

/* Removes the file of an entry, and the entry if there is nothing else. */
static void drop_file(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];

	session_folder_remove(sessions->folder, kept->number);
	sessions->file_bytes -= kept->file_bytes;
	kept->number = kept->file_bytes = kept->saved = 0;
	if (!kept->sequence)
		remove_entry(sessions, index);
}

static void drop(struct sessions *sessions, size_t index)
{
	const bool filed = sessions->all[index].number != 0;

	if (sessions->all[index].sequence)
		evict(sessions, index);
	if (filed)
		drop_file(sessions, index);
}

/* The oldest of those in memory, or of those with a file. There is one. */
static size_t oldest(const struct sessions *sessions, bool filed)
{
	size_t found = sessions->count;

	for (size_t i = 0; i < sessions->count; i++) {
		const struct kept *kept = &sessions->all[i];

		if ((filed ? kept->number != 0 : kept->sequence != NULL) &&
		    (found == sessions->count || kept->used < sessions->all[found].used))
			found = i;
	}
	return found;
}

static bool to_be_saved(const struct sessions *sessions, const struct kept *kept)
{
	return sessions->folder && kept->sequence && kept->followed && !kept->silent && !kept->unwanted &&
	       kept->saved != kept->tokens.count;
}

/* The oldest leaves memory. */
static void evict_oldest(struct sessions *sessions)
{
	struct kept *kept = &sessions->all[oldest(sessions, false)];

	if (to_be_saved(sessions, kept)) {
		const struct session_write write = sessions_write(sessions, kept, NULL);

		sessions_wrote(sessions, kept, &write);
	}
	evict(sessions, oldest(sessions, false)); /* making room on disk may have moved it */
}

void sessions_shrink(struct sessions *sessions, uint64_t bytes)
{
	while (sessions->held && sessions->bytes > bytes)
		evict_oldest(sessions);
}

void sessions_free(struct sessions *sessions)
{
	for (size_t i = 0; i < sessions->count; i++)
		release(&sessions->all[i]);
	free(sessions->all);
	session_folder_close(sessions->folder);
	*sessions = (struct sessions){0};
}

/* ---------------------------------------------------------------------------------------------------------- disk -- */

static struct kept *new_entry(struct sessions *sessions)
{
	struct kept *grown = realloc(sessions->all, (sessions->count + 1) * sizeof(*grown));

	if (!grown)
		return NULL;
	sessions->all = grown;
	return &grown[sessions->count++];
}

void sessions_fit(struct sessions *sessions)
{
	while (sessions->file_bytes > session_folder_limit(sessions->folder)) {
		const size_t index = oldest(sessions, true);

		sessions->all[index].unwanted = true; /* else it would be written again */
		drop_file(sessions, index);
	}
}

rosa_status sessions_recall(struct sessions *sessions, session_folder *folder, rosa_error *err)
{
	struct session_file *files;
	size_t count;
	rosa_status status;

	sessions->folder = folder;
	status = session_folder_list(folder, &files, &count, err);
	for (size_t i = 0; i < count; i++) {
		struct kept *kept = status == ROSA_OK ? new_entry(sessions) : NULL;

		if (!kept) {
			status = rosa_fail(err, ROSA_ENOMEM, "no memory for the list of kept texts");
			tokens_free(&files[i].tokens);
			continue;
		}
		sessions->clock++;
		*kept = (struct kept){.id = sessions->clock,
				      .tokens = files[i].tokens,
				      .followed = true,
				      .floor = saved_floor(sessions, files[i].steps),
				      .used = sessions->clock,
				      .number = files[i].number,
				      .saved = files[i].steps,
				      .file_bytes = files[i].bytes};
		kept->tokens.count = files[i].steps;
		sessions->file_bytes += files[i].bytes;
	}
	free(files);
	if (status == ROSA_OK)
		sessions_fit(sessions);
	return status;
}

struct kept *sessions_unsaved(const struct sessions *sessions)
{
	struct kept *found = NULL;

	for (size_t i = 0; i < sessions->count; i++) {
		struct kept *kept = &sessions->all[i];

		if (to_be_saved(sessions, kept) && (!found || kept->used < found->used))
			found = kept;
	}
	return found;
}

struct session_write sessions_write(const struct sessions *sessions, const struct kept *kept,
				    const struct file_hooks *hooks)
{
	struct session_write write = {.number = kept->number ? kept->number : session_folder_number(sessions->folder)};
	const struct tokens followed = {kept->tokens.ids, kept->tokens.count + 1, kept->tokens.room};

	write.status = session_folder_save(sessions->folder, write.number, &followed, kept->sequence, hooks,
					   &write.bytes, &write.error);
	return write;
}

void sessions_wrote(struct sessions *sessions, struct kept *kept, const struct session_write *write)
{
	if (write->status == ROSA_ECANCELLED)
		return;
	if (write->status != ROSA_OK) {
		kept->unwanted = true;
		session_folder_tell(sessions->folder, write->error.message);
		return;
	}
	sessions->file_bytes += write->bytes - kept->file_bytes;
	kept->number = write->number;
	kept->file_bytes = write->bytes;
	kept->saved = kept->tokens.count;
	sessions_fit(sessions);
}

/* Brings an entry into memory. One that cannot be is dropped. */
static bool load(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];
	struct session session;
	rosa_error why;
	bool good = session_folder_load(sessions->folder, kept->number, &session, &kept->sequence, &why) == ROSA_OK;

	if (!good)
		session_folder_tell(sessions->folder, why.message);
	if (good && sequence_steps(kept->sequence) != kept->saved) { /* another program has changed it */
		sequence_free(kept->sequence);
		kept->sequence = NULL;
		good = false;
	}
	session_free(&session);
	if (!good) {
		drop_file(sessions, index);
		return false;
	}
	kept->bytes = bytes_of(kept->sequence, NULL, &kept->tokens);
	kept->floor = sequence_floor(kept->sequence);
	sessions->bytes += kept->bytes;
	sessions->held++;
	return true;
}

/* ------------------------------------------------------------------------------------------------------- lending -- */

/* A copy cut at `steps`; where there is no memory for one, the session itself. */
static rosa_status cut(struct sessions *sessions, struct session_choice choice, struct serve_task *task,
		       rosa_error *err)
{
	struct kept *from = &sessions->all[choice.index];

	if (sessions->bytes <= sessions->memory && from->bytes <= sessions->memory - sessions->bytes &&
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

/* The session of most use, in memory. */
static struct session_choice choose_loaded(struct sessions *sessions, const struct serve_task *task)
{
	struct session_choice choice;

	do
		choice =
		    sessions_choose(sessions, serve_task_silent(task), task->tokens.ids, serve_task_reusable(task));
	while (choice.steps && !sessions->all[choice.index].sequence && !load(sessions, choice.index));
	return choice;
}

rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err)
{
	const struct served *model = task->model;
	const bool silent = serve_task_silent(task);
	const struct session_choice choice = choose_loaded(sessions, task);
	struct kept *kept = choice.steps ? &sessions->all[choice.index] : NULL;
	rosa_status status = ROSA_OK;

	if (kept) {
		kept->used = ++sessions->clock;
		if (kept->number)
			session_folder_touch(sessions->folder, kept->number);
	}
	if (!kept) {
		status = sequence_new(model->decoder, &task->sequence, err);
		if (status == ROSA_OK && silent)
			sequence_silence(task->sequence);
	} else if (choice.steps < kept->tokens.count) {
		status = cut(sessions, choice, task, err);
	} else {
		task->file = kept->number;
		const struct kept whole = take_out(sessions, choice.index);

		task->sequence = whole.sequence;
		task->past = whole.past;
	}
	if (status == ROSA_OK && model->pointer && !task->silent && !task->past)
		status = pointer_past_new(model->pointer, model->config->vocabulary, &task->past, err);
	task->cached = status == ROSA_OK ? choice.steps : 0;
	return status;
}

/* ------------------------------------------------------------------------------------------------------- keeping -- */

static bool begins_with(const struct kept *longer, const struct kept *shorter)
{
	return longer->silent == shorter->silent &&
	       in_common(&longer->tokens, shorter->tokens.ids, shorter->tokens.count) == shorter->tokens.count;
}

/* Whether a sequence of `longer` could be cut to what `shorter` is: where there is a folder, also once saved. */
static bool replaces(const struct sessions *sessions, const struct kept *longer, const struct kept *shorter)
{
	const size_t saved = sessions->folder ? saved_floor(sessions, longer->tokens.count) : 0;

	return longer->sequence && longer->floor <= shorter->tokens.count && saved <= shorter->tokens.count &&
	       begins_with(longer, shorter);
}

/* A session that `kept` makes useless goes; its file, until that of `kept` is written, stays in its name. */
static void supersede(struct sessions *sessions, size_t index, struct kept *kept)
{
	struct kept *old = &sessions->all[index];

	if (!kept->number && old->number && old->saved) {
		kept->number = old->number;
		kept->saved = old->saved;
		kept->file_bytes = old->file_bytes;
		old->number = 0;
	}
	if (old->sequence || old->number)
		drop(sessions, index);
	else
		remove_entry(sessions, index);
}

/* Finds a place for a session beside the others, or returns the one that has it already. `file` is that of the session
 * that it went on from, whose time is over unless it is in memory again. */
static const struct kept *make_way(struct sessions *sessions, struct kept *kept, uint64_t file)
{
	for (size_t i = sessions->count; i-- > 0;) {
		struct kept *old = &sessions->all[i];

		if (replaces(sessions, old, kept))
			return old;
		if (!old->tokens.count)
			continue;
		if (replaces(sessions, kept, old) ||
		    (file && old->number == file && !old->sequence && begins_with(kept, old)))
			supersede(sessions, i, kept);
	}
	return NULL;
}

/* Returns the id of the session that has the text then; 0: none. */
static uint64_t add(struct sessions *sessions, struct kept *kept, uint64_t file)
{
	const bool fits = kept->bytes <= sessions->memory && sessions->most;
	const struct kept *other = fits ? make_way(sessions, kept, file) : NULL;
	struct kept *place = fits && !other ? new_entry(sessions) : NULL;

	if (!place) {
		release(kept);
		return other ? other->id : 0;
	}
	kept->id = kept->used = ++sessions->clock;
	*place = *kept;
	sessions->bytes += kept->bytes;
	sessions->held++;
	if (sessions->held > sessions->most)
		evict_oldest(sessions);
	sessions_shrink(sessions, sessions->memory);
	return kept->id;
}

/* The first tokens of a task, as many as its sequence has read, and the one behind them. */
static bool copy_tokens(const struct serve_task *task, struct kept *kept)
{
	struct tokens *copy = &kept->tokens;
	const size_t count = sequence_steps(task->sequence);

	copy->ids = malloc((count + 1) * sizeof(*copy->ids));
	if (!copy->ids)
		return false;
	kept->followed = task->tokens.count > count;
	memcpy(copy->ids, task->tokens.ids, (count + kept->followed) * sizeof(*copy->ids));
	copy->count = count;
	copy->room = count + 1;
	return true;
}

uint64_t sessions_keep(struct sessions *sessions, struct serve_task *task)
{
	struct kept kept = {.sequence = task->sequence,
			    .past = task->past,
			    .silent = serve_task_silent(task),
			    .bytes = serve_task_bytes(task)};
	const bool good = task->sequence && sequence_steps(task->sequence) > 0 && copy_tokens(task, &kept);

	task->sequence = NULL;
	task->past = NULL;
	kept.floor = good ? sequence_floor(kept.sequence) : 0;
	if (good)
		return add(sessions, &kept, task->file);
	release(&kept);
	return 0;
}

void sessions_remember(struct sessions *sessions, struct serve_task *task)
{
	struct kept kept = {.silent = serve_task_silent(task), .bytes = serve_task_bytes(task)};

	if (kept.bytes > sessions->memory / 2 || !sequence_steps(task->sequence) || !copy_tokens(task, &kept))
		return;
	if (sequence_fork(task->sequence, kept.tokens.count, &kept.sequence, NULL) != ROSA_OK) {
		tokens_free(&kept.tokens);
		return;
	}
	kept.floor = sequence_floor(kept.sequence);
	add(sessions, &kept, 0);
}

/* -------------------------------------------------------------------------------------------------- by their ids -- */

struct kept *sessions_find(struct sessions *sessions, uint64_t id, bool held)
{
	for (size_t i = 0; i < sessions->count && id; i++)
		if (sessions->all[i].id == id)
			return !held || sessions->all[i].sequence || load(sessions, i) ? &sessions->all[i] : NULL;
	return NULL;
}

void sessions_erase(struct sessions *sessions, struct kept *kept)
{
	drop(sessions, (size_t)(kept - sessions->all));
}

uint64_t sessions_restore(struct sessions *sessions, struct session *session, sequence *sequence)
{
	struct kept kept = {.sequence = sequence, .tokens = session->tokens, .followed = true};

	session->tokens = (struct tokens){0};
	session_free(session);
	kept.tokens.count = sequence_steps(sequence);
	kept.bytes = bytes_of(sequence, NULL, &kept.tokens);
	kept.floor = sequence_floor(sequence);
	if (kept.tokens.count)
		return add(sessions, &kept, 0);
	release(&kept);
	return 0;
}
