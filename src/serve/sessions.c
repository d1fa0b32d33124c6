/*
 * The prompt cache: sessions, that is, decoder states of texts that were read.
 *
 * A prompt is compared with the tokens of every session. If it continues all of them, as the next turn of a
 * conversation does, its task takes the session over without a copy, and returns it with the answer. If it differs
 * earlier, as a second conversation with the same instructions or another try at an answer does, the task gets a copy
 * truncated at that place, and the session stays. A sequence with a window cannot be rewound far, so for models with
 * one a copy is also kept where the answer begins (sessions_remember).
 *
 * A session is dropped when a longer one contains it, that is, when it could be made by truncating the longer one. When
 * memory runs short, the least recently used sessions are dropped first.
 *
 * With a folder, every session is also written to disk. One that is evicted from memory is loaded again when a prompt
 * needs it. The file of a session that was taken over is kept until the longer text replaces it under the same name, so
 * that at every moment the disk has the conversation before the current turn or after it.
 *
 * Files are written and read by a separate thread (session_disk.c). While that thread works on a session, the session
 * is `busy`: copies may be made from it, since that does not change it, but a task that wants to take it over waits. A
 * session selected for eviction that has not been written yet is marked `leaving`: it stays in memory, outside the
 * limit, until it has been written.
 */
#include "serve/sessions.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_SHARE 32 /* a file is loaded only if at least 1/32 of its tokens can be used */

bool sessions_failed(const struct sessions *sessions, const struct kept *kept)
{
	return kept->failed && kept->failed == sessions->clock;
}

/* Whether a session may serve a prompt: one in memory or, with `on_disk`, one that is on disk only. */
static bool is_candidate(const struct sessions *sessions, const struct kept *kept, bool silent, bool on_disk)
{
	return kept->silent == silent && !kept->doomed && !kept->sequence == on_disk &&
	       !sessions_failed(sessions, kept);
}

/* Texts in memory come first. All chats begin with the same few tokens, and a file is loaded whole: one of a hundred
 * thousand tokens takes longer to load than those few take to be read, and evicts other texts from memory. So a file
 * must save a minimum share of its tokens, counted beyond what a session in memory saves. */
struct session_choice sessions_choose(const struct sessions *sessions, bool silent, const uint32_t *ids, size_t count)
{
	struct session_choice best = {0, 0};

	for (int on_disk = 0; on_disk <= 1; on_disk++) {
		const size_t known = best.steps;

		for (size_t i = 0; i < sessions->count; i++) {
			const struct kept *kept = &sessions->all[i];

			if (!is_candidate(sessions, kept, silent, on_disk))
				continue;
			const size_t steps = tokens_common(&kept->tokens, ids, count);

			if (steps >= kept->floor && steps > best.steps &&
			    (!on_disk || steps - known >= kept->saved / LOAD_SHARE))
				best = (struct session_choice){i, steps};
		}
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

/* The floor (struct kept) of a sequence that was saved after `steps` tokens: only what attention still sees is saved.
 */
static size_t saved_floor(const struct sessions *sessions, size_t steps)
{
	return sessions->window && steps >= sessions->window ? steps : 0;
}

static void remove_entry(struct sessions *sessions, size_t index)
{
	tokens_free(&sessions->all[index].tokens);
	sessions->all[index] = sessions->all[--sessions->count];
	sessions->changes++;
}

static void count_in(struct sessions *sessions, const struct kept *kept)
{
	sessions->bytes += kept->bytes;
	sessions->held++;
	sessions->changes++;
}

static void count_out(struct sessions *sessions, const struct kept *kept)
{
	if (kept->leaving) {
		sessions->leaving -= kept->bytes;
	} else {
		sessions->bytes -= kept->bytes;
		sessions->held--;
	}
}

/* Takes the sequence and its look-up out of an entry. The entry stays if it has a file, and then describes that file.
 */
static struct kept take_out(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];
	const struct kept taken = {.sequence = kept->sequence, .past = kept->past};

	count_out(sessions, kept);
	sessions->changes++;
	kept->sequence = NULL;
	kept->past = NULL;
	kept->bytes = 0;
	kept->leaving = false;
	/* The file holds one token more than were read. `tokens` has it too, unless the file was inherited from a
	 * session of the same length (supersede). */
	kept->followed = kept->followed || kept->saved < kept->tokens.count;
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
	sessions->changes++;
	if (!kept->sequence)
		remove_entry(sessions, index);
}

/* Drops an entry: at once or, if it is busy, when the disk is done with it. */
static void drop(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];
	const bool filed = kept->number != 0, held = kept->sequence != NULL;

	kept->doomed = kept->busy;
	sessions->hurry = sessions->hurry || kept->busy;
	sessions->changes++;
	if (kept->busy)
		return;
	if (held)
		evict(sessions, index);
	if (filed)
		drop_file(sessions, index);
	if (!held && !filed)
		remove_entry(sessions, index);
}

bool sessions_can_save(const struct kept *kept)
{
	return kept->followed && !kept->silent && kept->tokens.count;
}

static bool is_held(const struct kept *kept)
{
	return kept->sequence && !kept->leaving;
}

/* Whether it has a file that may be removed now. */
static bool is_filed(const struct kept *kept)
{
	return kept->number && !kept->busy;
}

static bool is_wanted(const struct kept *kept)
{
	return kept->wanted && !kept->busy && !kept->sequence;
}

static bool is_unsaved(const struct kept *kept)
{
	return kept->sequence && sessions_can_save(kept) && !kept->unwanted && !kept->doomed &&
	       kept->saved != kept->tokens.count;
}

static bool is_unsaved_and_leaves(const struct kept *kept)
{
	return kept->leaving && is_unsaved(kept);
}

/* The oldest of a kind; NULL: there is none. */
static struct kept *oldest(const struct sessions *sessions, bool (*is)(const struct kept *kept))
{
	struct kept *found = NULL;

	for (size_t i = 0; i < sessions->count; i++) {
		struct kept *kept = &sessions->all[i];

		if (is(kept) && (!found || kept->used < found->used))
			found = kept;
	}
	return found;
}

static size_t index_of(const struct sessions *sessions, const struct kept *kept)
{
	return (size_t)(kept - sessions->all);
}

/* Evicts the oldest session that is held: at once or, if it is busy or not saved yet, when it has been written. */
static void evict_oldest(struct sessions *sessions)
{
	struct kept *kept = oldest(sessions, is_held);

	if (!kept->busy && !is_unsaved(kept)) {
		evict(sessions, index_of(sessions, kept));
		return;
	}
	count_out(sessions, kept);
	kept->leaving = true;
	sessions->leaving += kept->bytes;
}

void sessions_shrink(struct sessions *sessions, uint64_t bytes)
{
	while (sessions->held && (sessions->bytes > bytes || sessions->held > sessions->most))
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

/* Removes a session from the folder for good. */
static void unfile(struct sessions *sessions, size_t index)
{
	struct kept *kept = &sessions->all[index];

	kept->unwanted = true; /* else it would be written again */
	if (kept->leaving)
		evict(sessions, index);
	drop_file(sessions, index);
}

/* Drops the oldest files until all are within the limit. */
static void sessions_fit(struct sessions *sessions)
{
	const uint64_t limit = session_folder_limit(sessions->folder);
	struct kept *kept;

	/* First a file that exceeds the limit by itself: by age, all older files would be removed before it for
	 * nothing. */
	for (size_t i = sessions->count; i-- > 0;)
		if (is_filed(&sessions->all[i]) && sessions->all[i].file_bytes > limit)
			unfile(sessions, i);
	while (sessions->file_bytes > limit && (kept = oldest(sessions, is_filed)) != NULL)
		unfile(sessions, index_of(sessions, kept));
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

bool sessions_unsaved(const struct sessions *sessions)
{
	return oldest(sessions, is_unsaved) != NULL;
}

struct session_job sessions_save_job(struct sessions *sessions, struct kept *kept, const char *name)
{
	struct session_job job = {.saves = true, .id = kept->id, .sequence = kept->sequence, .tokens = kept->tokens};

	job.tokens.count++;
	if (name)
		snprintf(job.name, sizeof(job.name), "%s", name); /* slot_request.c has checked it */
	else
		job.number = kept->number ? kept->number : session_folder_number(sessions->folder);
	kept->busy = true;
	return job;
}

bool sessions_next_job(struct sessions *sessions, enum session_work most, struct session_job *job)
{
	struct kept *kept = oldest(sessions, is_wanted);

	if (kept) {
		*job = (struct session_job){.id = kept->id, .number = kept->number};
		kept->busy = true;
		return true;
	}
	if (most >= WORK_LEAVING)
		kept = oldest(sessions, is_unsaved_and_leaves);
	if (!kept && most >= WORK_ALL)
		kept = oldest(sessions, is_unsaved);
	if (kept)
		*job = sessions_save_job(sessions, kept, NULL);
	return kept != NULL;
}

void session_job_do(const session_folder *folder, struct session_job *job, const struct file_hooks *hooks)
{
	if (job->number)
		session_folder_name(job->number, job->name);
	if (job->saves)
		job->status = session_folder_save(folder, job->name, &job->tokens, job->sequence, hooks, &job->bytes,
						  &job->error);
	else
		job->status =
		    session_folder_load(folder, job->name, &job->session, &job->sequence, &job->bytes, &job->error);
}

/* Records the result of writing an entry's own file. */
static void wrote(struct sessions *sessions, struct kept *kept, const struct session_job *job)
{
	if (job->status == ROSA_ECANCELLED)
		return;
	if (job->status != ROSA_OK) {
		kept->unwanted = true;
		session_folder_tell(sessions->folder, job->error.message);
		return;
	}
	sessions->file_bytes += job->bytes - kept->file_bytes;
	kept->number = job->number;
	kept->file_bytes = job->bytes;
	kept->saved = kept->tokens.count;
}

/* Records the result of loading an entry. A file that is damaged, missing or changed by another program is treated as
 * one that was unusable at the start. A lack of memory or of file descriptors may pass: then the entry is not a
 * candidate until some other session is used, and the task that waits for it continues without it. */
static void loaded(struct sessions *sessions, struct kept *kept, struct session_job *job)
{
	const bool later = job->status != ROSA_OK && job->status != ROSA_EFORMAT && job->bytes;

	kept->wanted = false;
	if (job->status != ROSA_OK)
		session_folder_tell(sessions->folder, job->error.message);
	if (job->status == ROSA_OK && sequence_steps(job->sequence) == kept->saved) {
		kept->sequence = job->sequence;
		kept->bytes = bytes_of(kept->sequence, NULL, &kept->tokens);
		kept->floor = sequence_floor(kept->sequence);
		kept->used = ++sessions->clock;
		count_in(sessions, kept);
	} else {
		sequence_free(job->sequence);
		if (later)
			kept->failed = ++sessions->clock;
		else
			kept->tokens.count = kept->saved = 0;
		sessions->changes++;
	}
	session_free(&job->session);
}

void sessions_job_done(struct sessions *sessions, struct session_job *job)
{
	struct kept *kept = sessions_find(sessions, job->id);

	if (!kept)
		return;
	kept->busy = false;
	if (job->saves && job->number)
		wrote(sessions, kept, job);
	else if (!job->saves)
		loaded(sessions, kept, job);
	if (kept->doomed)
		drop(sessions, index_of(sessions, kept));
	else if (kept->leaving && !is_unsaved(kept))
		evict(sessions, index_of(sessions, kept));
	if (job->saves)
		sessions_fit(sessions);
}

/* ------------------------------------------------------------------------------------------------------- lending -- */

/* Gives the task a copy cut at `steps` or, if there is no memory for a copy, the session itself. */
static rosa_status cut(struct sessions *sessions, struct session_choice choice, struct serve_task *task,
		       rosa_error *err)
{
	struct kept *from = &sessions->all[choice.index];

	if (sessions->bytes <= sessions->memory && from->bytes <= sessions->memory - sessions->bytes &&
	    sequence_fork(from->sequence, choice.steps, &task->sequence, NULL) == ROSA_OK)
		return ROSA_OK;
	if (from->busy) {
		sessions->hurry = true;
		return ROSA_OK;
	}
	struct kept whole = take_out(sessions, choice.index);
	const rosa_status status = sequence_rewind(whole.sequence, choice.steps, err);

	if (status == ROSA_OK) {
		task->sequence = whole.sequence;
		whole.sequence = NULL;
	}
	release(&whole);
	return status;
}

/* Gives the task the whole session, unless it is busy. */
static void take_over(struct sessions *sessions, size_t index, struct serve_task *task)
{
	struct kept *kept = &sessions->all[index];

	if (kept->busy) {
		sessions->hurry = true;
		return;
	}
	task->file = kept->number;
	const struct kept whole = take_out(sessions, index);

	task->sequence = whole.sequence;
	task->past = whole.past;
}

/* Gives the task a sequence from a session, unless it must be loaded or written first. */
static rosa_status lend(struct sessions *sessions, struct session_choice choice, struct serve_task *task,
			rosa_error *err)
{
	struct kept *kept = &sessions->all[choice.index];

	if (!kept->sequence) {
		kept->wanted = sessions->hurry = true;
		return ROSA_OK;
	}
	kept->used = ++sessions->clock;
	if (kept->number)
		session_folder_touch(sessions->folder, kept->number);
	if (choice.steps < kept->tokens.count)
		return cut(sessions, choice, task, err);
	take_over(sessions, choice.index, task);
	return ROSA_OK;
}

rosa_status sessions_lend(struct sessions *sessions, struct serve_task *task, rosa_error *err)
{
	const struct served *model = task->model;
	const bool silent = serve_task_silent(task);
	const struct session_choice choice =
	    sessions_choose(sessions, silent, task->tokens.ids, serve_task_reusable(task));
	rosa_status status;

	if (choice.steps) {
		status = lend(sessions, choice, task, err);
	} else {
		status = sequence_new(model->decoder, &task->sequence, err);
		if (status == ROSA_OK && silent)
			sequence_silence(task->sequence);
	}
	if (status != ROSA_OK || !task->sequence)
		return status;
	task->cached = choice.steps;
	if (!model->pointer || task->request->silent || task->past)
		return ROSA_OK;
	return pointer_past_new(model->pointer, model->config->vocabulary, &task->past, err);
}

/* ------------------------------------------------------------------------------------------------------- keeping -- */

static bool begins_with(const struct kept *longer, const struct kept *shorter)
{
	return longer->silent == shorter->silent &&
	       tokens_common(&longer->tokens, shorter->tokens.ids, shorter->tokens.count) == shorter->tokens.count;
}

/* Whether `shorter` could be made by cutting `longer`: as it is now and, with a folder, also after it was saved. */
static bool replaces(const struct sessions *sessions, const struct kept *longer, const struct kept *shorter)
{
	const size_t saved = sessions->folder ? saved_floor(sessions, longer->tokens.count) : 0;

	return longer->sequence && !longer->doomed && longer->floor <= shorter->tokens.count &&
	       saved <= shorter->tokens.count && begins_with(longer, shorter);
}

/* Drops a session that `kept` replaces. `kept` inherits its file, which stays until the new text is written over it. */
static void supersede(struct sessions *sessions, size_t index, struct kept *kept)
{
	struct kept *old = &sessions->all[index];

	if (!kept->number && old->number && old->saved && !old->busy) {
		kept->number = old->number;
		kept->saved = old->saved;
		kept->file_bytes = old->file_bytes;
		old->number = 0;
	}
	drop(sessions, index);
}

/* Drops the sessions that `kept` replaces. Returns NULL or, if another session already contains `kept`, that one.
 * `file` is the file of the session that `kept` continues: its entry is dropped too, unless it is in memory again or a
 * task waits for it. */
static const struct kept *make_way(struct sessions *sessions, struct kept *kept, uint64_t file)
{
	/* First, since `kept` may inherit a file below, which would be lost if `kept` were released after that. */
	for (size_t i = 0; i < sessions->count; i++)
		if (replaces(sessions, &sessions->all[i], kept))
			return &sessions->all[i];
	for (size_t i = sessions->count; i-- > 0;) {
		const struct kept *old = &sessions->all[i];
		const bool ends = file && old->number == file && !old->sequence && !old->busy && !old->wanted;

		if (old->tokens.count && (replaces(sessions, kept, old) || (ends && begins_with(kept, old))))
			supersede(sessions, i, kept);
	}
	return NULL;
}

/* Returns the id of the session that now contains the text; 0: none. */
static uint64_t add(struct sessions *sessions, struct kept *kept, uint64_t file)
{
	const bool fits = kept->bytes <= sessions->memory && sessions->most;
	const struct kept *other = fits ? make_way(sessions, kept, file) : NULL;
	struct kept *place = fits && !other ? new_entry(sessions) : NULL;

	if (!place) {
		release(kept);
		return other ? other->id : 0;
	}
	/* Pending values are computed by the decoder, so this cannot be left to the thread that writes. */
	kept->unwanted = !sessions->folder || sequence_settle(kept->sequence, NULL) != ROSA_OK;
	kept->id = kept->used = ++sessions->clock;
	*place = *kept;
	count_in(sessions, kept);
	sessions_shrink(sessions, sessions->memory);
	return kept->id;
}

/* Copies the tokens that the task's sequence has read, and the one after them if there is one. */
static bool copy_tokens(const struct serve_task *task, struct kept *kept)
{
	const size_t count = sequence_steps(task->sequence);

	kept->followed = task->tokens.count > count;
	if (tokens_add(&kept->tokens, task->tokens.ids, count + kept->followed, NULL) != ROSA_OK)
		return false;
	kept->tokens.count = count;
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

struct kept *sessions_find(const struct sessions *sessions, uint64_t id)
{
	for (size_t i = 0; i < sessions->count && id; i++)
		if (sessions->all[i].id == id)
			return &sessions->all[i];
	return NULL;
}

static bool is_among(uint64_t id, const uint64_t *ids, size_t count)
{
	while (count > 0 && ids[count - 1] != id)
		count--;
	return count > 0;
}

/* Whether a session that is a beginning of `gone` is kept when `gone` is erased: if it is spared, or if it also begins
 * another session that is kept. */
static bool stays(const struct sessions *sessions, const struct kept *beginning, const struct kept *gone,
		  const uint64_t *spared, size_t count)
{
	for (size_t i = 0; i < sessions->count; i++) {
		const struct kept *other = &sessions->all[i];

		if (other != gone && !other->doomed && begins_with(other, beginning) &&
		    (!begins_with(gone, other) || is_among(other->id, spared, count)))
			return true;
	}
	return false;
}

void sessions_erase(struct sessions *sessions, struct kept *kept, const uint64_t *spared, size_t count)
{
	for (size_t i = 0; i < sessions->count; i++) {
		struct kept *old = &sessions->all[i];

		old->doomed =
		    old->doomed || old == kept ||
		    (old->tokens.count && begins_with(kept, old) && !stays(sessions, old, kept, spared, count));
	}
	for (size_t i = sessions->count; i-- > 0;)
		if (sessions->all[i].doomed)
			drop(sessions, i);
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
