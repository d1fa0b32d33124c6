/*
 * Files of kept texts, written and read beside the turns of the engine.
 *
 * Errands come first, then sessions that a task waits for, then those that are to be evicted. Other sessions are
 * written while the engine is idle; if it never is, one of them every ten seconds. Writing is interrupted when a task
 * needs the session or the disk, and starts again later, unless the session has waited for ten seconds: otherwise a
 * conversation whose turns follow each other quickly would never reach the disk.
 */
#include "serve/session_disk.h"

#include "base/status.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define SAVE_SECONDS 10.0 /* how long a session waits for an idle moment before it is written anyway */
#define LOOK_SECONDS 1.0  /* between two checks of that */

/* Whether writing has to stop. */
static int stopped(void *context)
{
	struct session_disk *disk = context;

	pthread_mutex_lock(disk->lock);
	const bool yes = (disk->sessions->hurry || disk->transfers) && !disk->pressing && !disk->ended;

	pthread_mutex_unlock(disk->lock);
	return yes;
}

/* ------------------------------------------------------------------------------------------------------- transfers --
 */

static void finish(struct session_disk *disk, struct slot_transfer *transfer)
{
	disk->transfers = transfer->next;
	transfer->done = true;
	pthread_cond_broadcast(disk->news);
}

static void refuse(struct session_disk *disk, struct slot_transfer *transfer, unsigned status, const char *code,
		   const char *why)
{
	api_fail(&transfer->error, status, NULL, code, "%s", why);
	finish(disk, transfer);
}

/* The work for the first transfer. False: there is none yet, or the transfer is over. */
static bool begin_transfer(struct session_disk *disk, struct session_job *job)
{
	struct slot_transfer *transfer = disk->transfers;
	struct kept *kept = sessions_find(disk->sessions, transfer->id);
	rosa_error why;

	if (!transfer->id) {
		*job = (struct session_job){0};
		memcpy(job->name, transfer->name, strlen(transfer->name) + 1);
		return true;
	}
	if (*transfer->last != transfer->id) { /* other transfers may have been done before this one */
		refuse(disk, transfer, 409, "slot_busy", "the slot has been used meanwhile; try again later");
		return false;
	}
	if (!kept || kept->doomed || !sessions_can_save(kept)) {
		refuse(disk, transfer, 400, NULL, "the slot has no text that can be saved");
		return false;
	}
	if (!kept->sequence && sessions_failed(disk->sessions, kept)) {
		kept->failed = 0; /* the next transfer tries again */
		refuse(disk, transfer, 500, NULL, "the slot's text could not be loaded; try again later");
		return false;
	}
	if (!kept->sequence) { /* load it first; the transfer is tried again then */
		kept->wanted = true;
		return false;
	}
	uint64_t bytes;

	if (session_folder_admit(disk->sessions->folder, transfer->name, kept->sequence, &bytes, &why) != ROSA_OK) {
		refuse(disk, transfer, 507, NULL, why.message);
		return false;
	}
	*job = sessions_save_job(disk->sessions, kept, transfer->name);
	job->bytes = bytes;
	return true;
}

static void end_transfer(struct session_disk *disk, const struct session_job *job, uint64_t before)
{
	struct slot_transfer *transfer = disk->transfers;

	transfer->bytes = job->bytes;
	if (job->saves) {
		session_folder_resized(disk->sessions->folder, before, job->bytes);
		transfer->tokens = job->tokens.count - 1;
	} else if (job->status == ROSA_OK) {
		transfer->session = job->session;
		transfer->sequence = job->sequence;
		transfer->tokens = sequence_steps(job->sequence);
	}
	if (job->status != ROSA_OK)
		api_fail(&transfer->error, job->saves || job->status == ROSA_ENOMEM ? 500 : 400,
			 job->saves ? NULL : "filename", NULL, "%s", job->error.message);
	finish(disk, transfer);
}

/* ---------------------------------------------------------------------------------------------------- the thread -- */

static bool next_job(struct session_disk *disk, struct session_job *job)
{
	const double now = clock_now();
	enum session_work most = WORK_LEAVING;

	if (!sessions_unsaved(disk->sessions))
		disk->saved = now;
	disk->pressing = now - disk->saved > SAVE_SECONDS;
	while (disk->transfers) {
		struct slot_transfer *transfer = disk->transfers;

		if (begin_transfer(disk, job))
			return true;
		if (disk->transfers == transfer)
			break;
	}
	if (disk->time || disk->pressing || disk->ended)
		most = WORK_ALL;
	if (disk->sessions->hurry && !disk->ended) /* what a waiting task needs comes first */
		most = WORK_WANTED;
	return sessions_next_job(disk->sessions, most, job);
}

/* Without the lock while it takes time. */
static void do_job(struct session_disk *disk, struct session_job *job)
{
	const struct file_hooks hooks = {.cancelled = stopped, .context = disk};
	const bool transfer = !job->number;
	const uint64_t before = job->bytes;

	pthread_mutex_unlock(disk->lock);
	session_job_do(disk->sessions->folder, job, transfer ? NULL : &hooks);
	pthread_mutex_lock(disk->lock);
	if (transfer)
		end_transfer(disk, job, before);
	sessions_job_done(disk->sessions, job);
	if (job->saves && job->status != ROSA_ECANCELLED)
		disk->saved = clock_now();
	pthread_cond_signal(disk->work);
}

static void *run(void *context)
{
	struct session_disk *disk = context;
	struct session_job job;

	pthread_mutex_lock(disk->lock);
	for (;;) {
		if (next_job(disk, &job))
			do_job(disk, &job);
		else if (disk->ended)
			break;
		else if (sessions_unsaved(disk->sessions))
			clock_wait(&disk->mine, disk->lock, LOOK_SECONDS);
		else
			pthread_cond_wait(&disk->mine, disk->lock);
	}
	pthread_mutex_unlock(disk->lock);
	return NULL;
}

rosa_status session_disk_start(struct session_disk *disk, struct sessions *sessions, pthread_mutex_t *lock,
			       pthread_cond_t *work, pthread_cond_t *news, rosa_error *err)
{
	*disk = (struct session_disk){.sessions = sessions,
				      .lock = lock,
				      .work = work,
				      .news = news,
				      .saved = clock_now(),
				      .started = true}; /* before the thread is there, which looks at its neighbours */
	clock_condition(&disk->mine);
	if (pthread_create(&disk->thread, NULL, run, disk) == 0)
		return ROSA_OK;
	disk->started = false;
	pthread_cond_destroy(&disk->mine);
	return rosa_fail(err, ROSA_ENOMEM, "no thread for the files of kept texts");
}

void session_disk_end(struct session_disk *disk)
{
	if (!disk->started)
		return;
	pthread_mutex_lock(disk->lock);
	disk->ended = true;
	pthread_cond_signal(&disk->mine);
	pthread_mutex_unlock(disk->lock);
	pthread_join(disk->thread, NULL);
	pthread_cond_destroy(&disk->mine);
}

void session_disk_tell(struct session_disk *disk, bool time)
{
	const bool news = disk->started && (time || disk->sessions->hurry || disk->sessions->leaving);

	disk->time = time;
	if (news)
		pthread_cond_signal(&disk->mine);
}

void session_disk_ask(struct session_disk *disk, struct slot_transfer *transfer)
{
	struct slot_transfer **end = &disk->transfers;

	while (*end)
		end = &(*end)->next;
	*end = transfer;
	pthread_cond_signal(&disk->mine);
}
