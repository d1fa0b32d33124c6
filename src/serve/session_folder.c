/*
 * Kept texts on disk.
 *
 * Each is a session of `rosatune generate` (model/session.c) in a file of its own, replaced as a whole: whenever the
 * server is killed, a file has its old text or its new one. Nothing else is written down; a server that starts learns
 * what there is from the files, and their order from the times at which they were changed.
 *
 * A file that is damaged or belongs to another model is left in place, since another server may use it. It counts
 * against the limit, and is removed when it is the oldest.
 */
#include "serve/session_folder.h"

#include "base/array.h"
#include "base/folders.h"
#include "base/paths.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK "lock"
#define NAME "kept-%016" PRIx64 ".session"

struct session_folder {
	struct session_folder_options options;
	decoder *decoder;
	int lock;
	uint64_t next;  /* number */
	uint64_t named; /* bytes of files with names of their own */
};

const char *session_folder_name(uint64_t number, char name[SESSION_NAME])
{
	snprintf(name, SESSION_NAME, NAME, number);
	return name;
}

/* The path of the file of a kept text. */
static struct path path_to(const session_folder *folder, uint64_t number)
{
	char name[SESSION_NAME];

	return path_join(folder->options.path, session_folder_name(number, name));
}

static rosa_status no_memory(rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "no memory for the list of kept texts");
}

/* ---------------------------------------------------------------------------------------------- opening, closing -- */

static rosa_status lock(session_folder *folder, rosa_error *err)
{
	folder->lock = open(path_join(folder->options.path, LOCK).text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (folder->lock < 0)
		return rosa_fail(err, ROSA_EIO, "cannot write to the folder %s: %s", folder->options.path,
				 strerror(errno));
	if (flock(folder->lock, LOCK_EX | LOCK_NB) != 0)
		return rosa_fail(err, ROSA_EIO, "the folder %s is in use by another server; give another",
				 folder->options.path);
	return ROSA_OK;
}

rosa_status session_folder_open(const struct session_folder_options *options, decoder *decoder, session_folder **made,
				rosa_error *err)
{
	session_folder *folder = calloc(1, sizeof(*folder));
	const bool there = path_is_folder(options->path);
	rosa_status status;

	*made = NULL;
	if (!folder)
		return no_memory(err);
	*folder = (session_folder){.options = *options, .decoder = decoder, .lock = -1, .next = 1};
	status = folder_make(options->path, err);
	if (status == ROSA_OK && !there)
		chmod(options->path, 0700); /* what people ask a model is nobody else's business */
	if (status == ROSA_OK)
		status = lock(folder, err);
	if (status == ROSA_OK)
		*made = folder;
	else
		session_folder_close(folder);
	return status;
}

void session_folder_close(session_folder *folder)
{
	if (folder && folder->lock >= 0)
		close(folder->lock);
	free(folder);
}

uint64_t session_folder_limit(const session_folder *folder)
{
	return folder->options.limit - (folder->named < folder->options.limit ? folder->named : folder->options.limit);
}

void session_folder_tell(const session_folder *folder, const char *message)
{
	folder->options.say(message);
}

/* ------------------------------------------------------------------------------------------------------- listing -- */

/* 0 stands for no file, and the next number after the last would be 0. */
static bool is_name(const char *name, uint64_t *number)
{
	char again[SESSION_NAME];

	return sscanf(name, "kept-%16" SCNx64 ".session", number) == 1 && *number != 0 && *number != UINT64_MAX &&
	       strcmp(name, session_folder_name(*number, again)) == 0;
}

/* Bytes of a file; 0: there is none. */
static uint64_t size_of(const session_folder *folder, const char *name)
{
	struct stat about;

	if (stat(path_join(folder->options.path, name).text, &about) != 0 || !S_ISREG(about.st_mode))
		return 0;
	return (uint64_t)about.st_size;
}

/* Removes a temporary file of a server that was killed. The folder is locked, so no other server is writing it. */
static void remove_leftover(const session_folder *folder, const char *name)
{
	if (strncmp(name, ".rosatune-", 10) == 0 && path_ends_in(name, ".tmp"))
		unlink(path_join(folder->options.path, name).text);
}

/* What is in the file with this number. */
static struct session_file look(const session_folder *folder, uint64_t number)
{
	const struct path path = path_to(folder, number);
	struct session_file found = {.number = number};
	struct session session;
	struct stat about;
	rosa_error why;

	if (stat(path.text, &about) == 0) {
		found.bytes = (uint64_t)about.st_size;
		found.changed = about.st_mtim;
	}
	if (session_look(path.text, folder->decoder, &session, &found.steps, &why) == ROSA_OK) {
		found.tokens = session.tokens;
		session.tokens = (struct tokens){0};
		session_free(&session);
	} else {
		found.steps = 0; /* a header may say how many were read, and the tokens are wrong */
		session_folder_tell(folder, why.message);
	}
	return found;
}

static int older(const void *a, const void *b)
{
	const struct session_file *x = a, *y = b;
	const struct timespec s = x->changed, t = y->changed;

	if (s.tv_sec != t.tv_sec)
		return s.tv_sec < t.tv_sec ? -1 : 1;
	if (s.tv_nsec != t.tv_nsec)
		return s.tv_nsec < t.tv_nsec ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

/* All files, in any order. */
static rosa_status list(session_folder *folder, DIR *names, struct session_file **all, size_t *count, rosa_error *err)
{
	struct dirent *entry;
	uint64_t number;
	size_t room = 0;

	while ((entry = readdir(names)) != NULL) {
		remove_leftover(folder, entry->d_name);
		if (!is_name(entry->d_name, &number)) {
			folder->named += entry->d_name[0] == '.' ? 0 : size_of(folder, entry->d_name);
			continue;
		}
		if (!ARRAY_RESERVE(*all, room, *count + 1))
			return no_memory(err);
		(*all)[(*count)++] = look(folder, number);
		folder->next = number >= folder->next ? number + 1 : folder->next;
	}
	return ROSA_OK;
}

rosa_status session_folder_list(session_folder *folder, struct session_file **files, size_t *count, rosa_error *err)
{
	DIR *names = opendir(folder->options.path);
	rosa_status status;

	*files = NULL;
	*count = 0;
	if (!names)
		return rosa_fail(err, ROSA_EIO, "cannot read the folder %s: %s", folder->options.path, strerror(errno));
	status = list(folder, names, files, count, err);
	closedir(names);
	if (status == ROSA_OK && *count)
		qsort(*files, *count, sizeof(**files), older);
	if (status == ROSA_OK)
		return ROSA_OK;
	while (*count)
		tokens_free(&(*files)[--*count].tokens);
	free(*files);
	*files = NULL;
	return status;
}

/* --------------------------------------------------------------------------------------------------------- files -- */

uint64_t session_folder_number(session_folder *folder)
{
	return folder->next++;
}

rosa_status session_folder_save(const session_folder *folder, const char *name, const struct tokens *tokens,
				sequence *sequence, const struct file_hooks *hooks, uint64_t *bytes, rosa_error *err)
{
	const struct session session = {.settings = folder->options.settings, .tokens = *tokens};
	const struct file_options options = {.hooks = hooks};
	const rosa_status status = session_save(path_join(folder->options.path, name).text, &session,
						(struct session_state){.sequence = sequence}, &options, err);

	*bytes = size_of(folder, name);
	return status;
}

rosa_status session_folder_load(const session_folder *folder, const char *name, struct session *session,
				sequence **made, uint64_t *bytes, rosa_error *err)
{
	*made = NULL;
	memset(session, 0, sizeof(*session));
	*bytes = size_of(folder, name);
	return session_load(path_join(folder->options.path, name).text, folder->decoder, session, made, err);
}

rosa_status session_folder_admit(const session_folder *folder, const char *name, const sequence *sequence,
				 uint64_t *bytes, rosa_error *err)
{
	const struct sequence_memory memory = sequence_memory(sequence);
	const uint64_t needed = memory.attention + memory.retrieval + memory.values;

	*bytes = size_of(folder, name);
	const uint64_t others = folder->named > *bytes ? folder->named - *bytes : 0; /* people may put files there */

	if (others <= folder->options.limit && needed <= folder->options.limit - others)
		return ROSA_OK;
	return rosa_fail(err, ROSA_ENOMEM,
			 "a text of about %llu MiB does not fit into the folder beside the others with names",
			 (unsigned long long)(needed >> 20));
}

void session_folder_resized(session_folder *folder, uint64_t before, uint64_t after)
{
	folder->named = (folder->named > before ? folder->named - before : 0) + after;
}

void session_folder_remove(const session_folder *folder, uint64_t number)
{
	unlink(path_to(folder, number).text);
}

void session_folder_touch(const session_folder *folder, uint64_t number)
{
	utimensat(AT_FDCWD, path_to(folder, number).text, NULL, 0);
}
