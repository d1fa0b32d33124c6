/*
 * Turns.
 *
 * One thread owns the decoder. In a turn every task that writes gets one token, and the tasks that still read share a
 * number of rows: a whole chunk if no task writes, else a quarter of it. So a long prompt delays the next token of an
 * answer by a part of a pass, and is itself never stopped. A turn is one call of the decoder. Its results do not
 * depend, bit for bit, on what is computed together, so an answer does not depend on other requests. Tasks start and
 * end between turns.
 *
 * A task gets its slot before its sequence: the text that it continues may have to be loaded from disk, which another
 * thread reads (session_disk.c) while the turns of the others go on.
 *
 * The lock is held while logits become text, since other threads read the text, and never while the decoder computes.
 */
#include "serve/engine.h"

#include "base/array.h"
#include "base/status.h"
#include "base/clock.h"
#include "serve/session_disk.h"

#include <stdlib.h>
#include <string.h>

#define NEWS_SECONDS  0.25
#define READ_SHARE    4 /* of a chunk, while others write */
#define LEAVING_SHARE 4 /* of the memory for texts: beyond it, turns wait for the disk */
#define ENDING        503

struct engine {
	const struct served *model;
	struct engine_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, news;

	/* Under the lock. */
	struct serve_task **waiting; /* in the order of arrival */
	uint64_t submitted;          /* requests so far */
	size_t waiting_count, waiting_room;
	size_t unanswered;   /* requests whose answers are not yet sent */
	size_t slot_actions; /* slot save and restore requests in progress */
	struct engine_report report;
	bool closed, aborted, ended;
	struct serve_task **running; /* [parallel]; the thread works with them without the lock in a turn */
	size_t running_count;
	struct sessions sessions;
	struct session_disk disk;
	uint64_t *last; /* [parallel]: the session of the text that was last read in a slot; 0: none */

	/* The thread's own. */
	struct piece *pieces; /* [parallel] */
	uint64_t asked;       /* sessions.changes when the tasks that wait for the disk were last tried */
};

/* -------------------------------------------------------------------------------------------------------- turns -- */

/* Removes a task from its slot; what it has read is kept unless it failed. A task that the server ends is ended between
 * two turns, so its sequence is as valid as that of a task whose client has gone. */
static void retire(engine *e, struct serve_task *task)
{
	task->state = SERVE_OVER;
	e->report.finished += !task->error.status && !task->cancelled;
	e->report.failed += task->error.status != 0;
	e->report.cancelled += task->cancelled && !task->error.status;
	e->report.prompt_tokens += task->prompt;
	e->report.cached_tokens += task->cached;
	e->report.generated += task->answer.made;
	if (task->error.status && task->error.status != ENDING) {
		sequence_free(task->sequence);
		task->sequence = NULL;
	} else {
		e->last[task->slot] = sessions_keep(&e->sessions, task);
	}
	serve_task_strip(task);
}

static void end_by_server(struct serve_task *task)
{
	api_fail(&task->error, ENDING, NULL, NULL, "the server is ending");
}

/* Removes tasks that are over or whose client has gone. */
static void sweep(engine *e)
{
	size_t left = 0;

	for (size_t i = 0; i < e->running_count; i++) {
		struct serve_task *task = e->running[i];

		if (e->aborted && task->state != SERVE_OVER)
			end_by_server(task);
		if (e->aborted || task->cancelled || task->state == SERVE_OVER)
			retire(e, task);
		else
			e->running[left++] = task;
	}
	e->running_count = left;
}

/* With a window a sequence cannot go back far. A copy is kept where the answer begins: another try at it, or a
 * conversation from which thoughts are dropped, continues from there. */
static void remember(engine *e, struct serve_task *task)
{
	if (e->model->options.window && task->answer.made == 0 && task->state == SERVE_RUNNING &&
	    sequence_steps(task->sequence) + 1 == task->prompt)
		sessions_remember(&e->sessions, task);
}

static struct serve_task *task_in(const engine *e, size_t slot)
{
	for (size_t i = 0; i < e->running_count; i++)
		if (e->running[i]->slot == slot)
			return e->running[i];
	return NULL;
}

/* Gives a task what is known of its prompt, unless that is still on its way from the disk. */
static void begin(engine *e, struct serve_task *task)
{
	rosa_error why;

	if (sessions_lend(&e->sessions, task, &why) != ROSA_OK) {
		task->state = SERVE_OVER;
		api_fail(&task->error, 500, NULL, NULL, "%s", why.message);
	} else if (task->sequence) {
		task->begun = true;
		serve_task_begin(task);
		remember(e, task);
	}
}

static void start(engine *e, struct serve_task *task)
{
	size_t slot = 0;

	if (e->aborted) {
		task->state = SERVE_OVER;
		end_by_server(task);
		return;
	}
	while (task_in(e, slot))
		slot++;
	task->slot = slot;
	e->last[slot] = 0;
	e->running[e->running_count++] = task;
	task->state = SERVE_RUNNING;
	begin(e, task);
}

/* Tries again to start the tasks that wait for the disk. */
static void begin_waiting(engine *e)
{
	e->sessions.hurry = false;
	e->asked = e->sessions.changes;
	for (size_t i = 0; i < e->running_count; i++)
		if (!e->running[i]->begun && e->running[i]->state == SERVE_RUNNING && !e->running[i]->cancelled)
			begin(e, e->running[i]);
}

/* How many tasks of a request are running. */
static size_t running_of(const engine *e, uint64_t number)
{
	size_t count = 0;

	for (size_t i = 0; i < e->running_count; i++)
		count += e->running[i]->number == number;
	return count;
}

/* The next task: of the request with the fewest running tasks, and of several such requests the first. So a request
 * with many prompts does not block the others until it is done. */
static size_t next_waiting(const engine *e)
{
	size_t best = 0, fewest = SIZE_MAX;

	for (size_t i = 0; i < e->waiting_count && fewest; i++) {
		const size_t running = running_of(e, e->waiting[i]->number);

		if (running < fewest)
			best = i;
		fewest = running < fewest ? running : fewest;
	}
	return best;
}

static void admit(engine *e)
{
	while (e->waiting_count && e->running_count < e->options.parallel) {
		const size_t at = next_waiting(e);
		struct serve_task *task = e->waiting[at];

		e->waiting_count--;
		memmove(e->waiting + at, e->waiting + at + 1, (e->waiting_count - at) * sizeof(*e->waiting));
		start(e, task);
	}
}

/* Keeps the sequences in use within the limit on memory. Kept sessions are evicted first; then the largest task ends.
 */
static void bound_memory(engine *e)
{
	struct serve_task *largest = NULL;
	uint64_t bytes = 0, most = 0;

	for (size_t i = 0; i < e->running_count; i++) {
		const uint64_t here = serve_task_bytes(e->running[i]);

		bytes += here;
		if (here >= most)
			largest = e->running[i];
		most = here > most ? here : most;
	}
	e->report.running_bytes = bytes;
	sessions_shrink(&e->sessions, bytes < e->options.memory ? e->options.memory - bytes : 0);
	if (largest && bytes > e->options.memory && largest->state == SERVE_RUNNING) {
		largest->state = SERVE_OVER;
		api_fail(&largest->error, 400, NULL, "context_length_exceeded",
			 "a text of %zu tokens does not fit into the server's memory for texts (%llu MiB)",
			 largest->tokens.count, (unsigned long long)(e->options.memory >> 20));
	}
}

/* Tokens that a task is to read. One that waits for the disk comes after all others. */
static size_t due_of(const struct serve_task *task)
{
	return task->begun ? serve_task_due(task) : SIZE_MAX;
}

/* Who takes part in a turn: the first `count` of the running tasks, and how many of them still read. */
struct turn {
	size_t count, readers;
};

/* Those with the least to read come first. So those that write stand side by side: the decoder makes one product of
 * neighbours whose logits are wanted. */
static struct turn sort_running(engine *e)
{
	struct turn turn = {0, 0};

	for (size_t i = 0; i < e->running_count; i++) {
		struct serve_task *task = e->running[i];
		const size_t due = due_of(task);
		size_t place = i;

		for (; place > 0 && due_of(e->running[place - 1]) > due; place--)
			e->running[place] = e->running[place - 1];
		e->running[place] = task;
		turn.count += task->begun;
		turn.readers += task->begun && due > 1;
	}
	return turn;
}

/* What each task reads in this turn. Half of the rows for readers are divided evenly, so that all of them make
 * progress. The other half goes to those with the least left to read: with equal shares all would end late. */
static void plan(engine *e, struct turn turn)
{
	const size_t chunk = e->model->options.chunk, readers = turn.readers,
		     rows = readers == turn.count ? chunk : chunk / READ_SHARE,
		     even = readers && rows / 2 > readers ? rows / 2 / readers : 1;
	size_t extra = rows > even * readers ? rows - even * readers : 0;

	for (size_t i = 0; i < turn.count; i++) {
		const struct serve_task *task = e->running[i];
		const size_t due = serve_task_due(task), most = due > 1 ? even + extra : 1;
		/* With a window the state where the answer begins is kept, so the prompt's last token is read alone. */
		const bool apart = e->model->options.window && due > 1 && due <= most;

		e->pieces[i] = serve_task_plan(task, apart ? due - 1 : most);
		extra = due > 1 ? most - e->pieces[i].count : extra;
	}
}

/* Runs the decoder, without the lock, and gives the tasks their logits. */
static void take_turn(engine *e, struct turn turn)
{
	rosa_error why;
	const double began = clock_now();

	plan(e, turn);
	pthread_mutex_unlock(&e->lock);
	const rosa_status status = decoder_read(e->model->decoder, turn.count, e->pieces, NULL, NULL, &why);
	const double seconds = clock_now() - began;

	pthread_mutex_lock(&e->lock);
	*(turn.readers ? &e->report.reading_seconds : &e->report.writing_seconds) += seconds;
	e->report.turns++;
	e->report.slots_in_turns += turn.count;
	for (size_t i = 0; i < turn.count; i++) {
		struct serve_task *task = e->running[i];

		if (status == ROSA_OK) {
			serve_task_take(task, &e->pieces[i]);
			remember(e, task);
			continue;
		}
		task->state = SERVE_OVER;
		api_fail(&task->error, 500, NULL, NULL, "%s", why.message);
	}
}

/* Takes a turn, or waits for something to do. */
static void proceed(engine *e)
{
	const struct turn turn = sort_running(e);
	const bool behind = e->sessions.leaving > e->options.memory / LEAVING_SHARE;
	const bool admits = e->waiting_count && e->running_count < e->options.parallel;
	const bool changed = e->asked != e->sessions.changes; /* what a task waits for may be gone */

	session_disk_tell(&e->disk, !e->running_count && !e->waiting_count);
	if (turn.count && !behind)
		take_turn(e, turn);
	else if (!admits && !changed)
		pthread_cond_wait(&e->work, &e->lock);
}

static void *work(void *context)
{
	engine *e = context;

	pthread_mutex_lock(&e->lock);
	while (!e->ended) {
		begin_waiting(e);
		admit(e);
		sweep(e);
		bound_memory(e);
		sweep(e);
		pthread_cond_broadcast(&e->news);
		proceed(e);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

/* --------------------------------------------------------------------------------------------------------- slots -- */

static bool is_idle(const engine *e, size_t slot, struct api_error *error)
{
	return !task_in(e, slot) ||
	       api_fail(error, 409, NULL, "slot_busy", "slot %zu is in use; try again later", slot);
}

static void erase_slot(engine *e, size_t slot, struct slot_result *result)
{
	struct kept *kept = sessions_find(&e->sessions, e->last[slot]);

	result->tokens = kept ? kept->tokens.count : 0;
	e->last[slot] = 0;
	if (kept)
		sessions_erase(&e->sessions, kept, e->last, e->options.parallel);
}

/* Puts a text that was loaded into a slot, if that is still idle. */
static bool fill_slot(engine *e, size_t slot, struct slot_transfer *transfer, struct api_error *error)
{
	if (!is_idle(e, slot, error)) {
		sequence_free(transfer->sequence);
		session_free(&transfer->session);
		return false;
	}
	e->last[slot] = sessions_restore(&e->sessions, &transfer->session, transfer->sequence);
	pthread_cond_signal(&e->work); /* it may have to be written */
	return e->last[slot] ||
	       api_fail(error, 400, NULL, NULL, "the text does not fit into the server's memory for texts");
}

/* Saves or restores by way of the disk's thread. */
static bool use_file(engine *e, const struct slot_request *request, struct slot_result *result, struct api_error *error)
{
	const bool saves = request->action == SLOT_SAVE;
	struct slot_transfer transfer = {
	    .name = request->name, .id = saves ? e->last[request->slot] : 0, .last = &e->last[request->slot]};

	if (!e->sessions.folder)
		return api_fail(error, 501, NULL, NULL, "the server keeps no files: start it with --sessions DIR");
	if (saves && !transfer.id)
		return api_fail(error, 400, NULL, NULL, "slot %zu has no text that can be saved", request->slot);
	e->slot_actions++;
	session_disk_ask(&e->disk, &transfer);
	while (!transfer.done)
		engine_wait(e);
	e->slot_actions--;
	result->tokens = transfer.tokens;
	result->bytes = transfer.bytes;
	*error = transfer.error;
	return !transfer.error.status && (saves || fill_slot(e, request->slot, &transfer, error));
}

bool engine_slot_do(engine *e, const struct slot_request *request, struct slot_result *result, struct api_error *error)
{
	const double began = clock_now();

	*result = (struct slot_result){0};
	pthread_mutex_lock(&e->lock);
	bool good = is_idle(e, request->slot, error);

	if (good && request->action == SLOT_ERASE)
		erase_slot(e, request->slot, result);
	else if (good)
		good = use_file(e, request, result, error);
	pthread_mutex_unlock(&e->lock);
	result->seconds = clock_now() - began;
	return good;
}

/* ------------------------------------------------------------------------------------------------ making, ending -- */

static void release(engine *e)
{
	session_disk_end(&e->disk); /* writes what is not yet written */
	sessions_free(&e->sessions);
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->work);
	pthread_cond_destroy(&e->news);
	free(e->waiting);
	free(e->running);
	free(e->pieces);
	free(e->last);
	free(e);
}

static rosa_status open_folder(engine *e, rosa_error *err)
{
	session_folder *folder;
	rosa_status status;

	if (!e->options.folder)
		return ROSA_OK;
	status = session_folder_open(e->options.folder, e->model->decoder, &folder, err);
	if (status == ROSA_OK)
		status = sessions_recall(&e->sessions, folder, err);
	return status == ROSA_OK ? session_disk_start(&e->disk, &e->sessions, &e->lock, &e->work, &e->news, err)
				 : status;
}

rosa_status engine_new(const struct served *model, const struct engine_options *options, engine **made, rosa_error *err)
{
	engine *e = calloc(1, sizeof(*e));
	rosa_status status;

	*made = NULL;
	if (!e)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for an engine");
	e->model = model;
	e->options = *options;
	e->sessions =
	    (struct sessions){.most = options->sessions, .memory = options->memory, .window = model->options.window};
	pthread_mutex_init(&e->lock, NULL);
	clock_condition(&e->work);
	clock_condition(&e->news);
	e->running = calloc(options->parallel, sizeof(*e->running));
	e->pieces = calloc(options->parallel, sizeof(*e->pieces));
	e->last = calloc(options->parallel, sizeof(*e->last));
	status = open_folder(e, err);
	if (status == ROSA_OK &&
	    (!e->running || !e->pieces || !e->last || pthread_create(&e->thread, NULL, work, e) != 0))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory or no thread for an engine");
	if (status == ROSA_OK)
		*made = e;
	else
		release(e);
	return status;
}

void engine_free(engine *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->ended = true;
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	release(e);
}

/* ------------------------------------------------------------------------------------------------------ requests -- */

void engine_lock(engine *e)
{
	pthread_mutex_lock(&e->lock);
}

void engine_unlock(engine *e)
{
	pthread_mutex_unlock(&e->lock);
}

void engine_wait(engine *e)
{
	clock_wait(&e->news, &e->lock, NEWS_SECONDS);
}

bool engine_submit(engine *e, struct serve_task **tasks, size_t count, struct api_error *error)
{
	bool good = true;

	pthread_mutex_lock(&e->lock);
	if (e->closed)
		good = api_fail(error, ENDING, NULL, NULL, "the server is ending");
	else if (e->report.requests >= e->options.queue)
		good = api_fail(error, 429, NULL, "queue_full", "%zu requests are running or waiting; try again later",
				e->report.requests);
	else if (!ARRAY_RESERVE(e->waiting, e->waiting_room, e->waiting_count + count))
		good = api_fail(error, 500, NULL, NULL, "not enough memory for a request");
	e->report.refused += !good;
	e->report.requests += good;
	e->unanswered += good;
	e->submitted += good;
	for (size_t i = 0; i < count && good; i++) {
		tasks[i]->number = e->submitted;
		e->waiting[e->waiting_count++] = tasks[i];
	}
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	return good;
}

void engine_leave(engine *e, struct serve_task **tasks, size_t count)
{
	pthread_mutex_lock(&e->lock);
	for (size_t i = 0; i < count; i++)
		tasks[i]->cancelled = tasks[i]->cancelled || tasks[i]->state != SERVE_OVER;
	/* Tasks that have not begun are removed here: it may be long before a slot is free. */
	size_t left = 0;

	for (size_t i = 0; i < e->waiting_count; i++) {
		struct serve_task *task = e->waiting[i];

		if (task->cancelled) {
			task->state = SERVE_OVER;
			e->report.cancelled++;
		} else {
			e->waiting[left++] = task;
		}
	}
	e->waiting_count = left;
	pthread_cond_signal(&e->work);
	for (size_t i = 0; i < count;) {
		/* A task that is over may still be in the list of running ones until the next sweep. */
		bool held = tasks[i]->state != SERVE_OVER;

		for (size_t j = 0; j < e->running_count; j++)
			held = held || e->running[j] == tasks[i];
		if (held)
			engine_wait(e);
		else
			i++;
	}
	e->report.requests--;
	pthread_mutex_unlock(&e->lock);
}

void engine_answered(engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->unanswered--;
	pthread_mutex_unlock(&e->lock);
}

void engine_close(engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->closed = true;
	pthread_mutex_unlock(&e->lock);
}

bool engine_busy(engine *e)
{
	pthread_mutex_lock(&e->lock);
	const bool busy = e->unanswered || e->slot_actions;

	pthread_mutex_unlock(&e->lock);
	return busy;
}

void engine_abort(engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->aborted = true;
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
}

void engine_report(engine *e, struct engine_report *report, struct engine_slot *slots)
{
	pthread_mutex_lock(&e->lock);
	*report = e->report;
	report->running = e->running_count;
	report->waiting = e->waiting_count;
	report->sessions = e->sessions.held;
	report->session_bytes = e->sessions.bytes;
	report->file_bytes = e->sessions.file_bytes;
	report->files = 0;
	for (size_t i = 0; i < e->sessions.count; i++)
		report->files += e->sessions.all[i].number != 0;
	for (size_t i = 0; slots && i < e->options.parallel; i++) {
		const struct serve_task *task = task_in(e, i);
		const struct kept *kept = sessions_find(&e->sessions, e->last[i]);

		slots[i] =
		    task ? (struct engine_slot){true, task->prompt, task->cached, task->read, task->answer.made, 0}
			 : (struct engine_slot){.kept = kept ? kept->tokens.count : 0};
	}
	pthread_mutex_unlock(&e->lock);
}

const struct engine_options *engine_options(const engine *e)
{
	return &e->options;
}
