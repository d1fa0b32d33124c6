/*
 * Shards on the disk.
 *
 * A folder with the first three of ten shards looks like a smaller corpus, and a model would be trained on it
 * unnoticed. So no shard gets its name before the last one is written and closed. A packing that fails or is
 * interrupted leaves nothing, not even a folder that it made. One that is killed leaves empty folders at most or, where
 * files need a name (base/file_write.c), hidden files, which no reader looks at. Files without a name stay open until
 * the end, so there may be many: the limit on open files is raised as far as the system allows.
 */
#include "train/pack_shards.h"

#include "base/array.h"
#include "base/folders.h"
#include "base/paths.h"
#include "base/status.h"
#include "train/shard_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static rosa_status no_memory(rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "not enough memory for the names of shards");
}

/* ------------------------------------------------------------------------------------------------------- folders -- */

/* Cuts the last name off a path. False: there is none left. */
static bool cut_name(char *path)
{
	size_t length = strlen(path);

	while (length > 0 && path[length - 1] != '/')
		length--;
	while (length > 0 && path[length - 1] == '/')
		length--;
	path[length] = '\0';
	return length > 0;
}

/* How many bytes of a path name a folder, or whatever else, that is there. */
static size_t existing_part(struct path path)
{
	struct stat about;

	while (*path.text && lstat(path.text, &about) != 0 && cut_name(path.text))
		;
	return strlen(path.text);
}

static rosa_status make_folder(struct pack_shards *shards, rosa_error *err)
{
	shards->folder = shards->single ? path_folder(shards->out) : path_of(shards->out);
	shards->existed = existing_part(shards->folder);
	return folder_make(shards->folder.text, err);
}

/* Removes the folders that were made, as far as they are empty. */
static void remove_folders(struct pack_shards *shards)
{
	while (strlen(shards->folder.text) > shards->existed) {
		rmdir(shards->folder.text);
		cut_name(shards->folder.text);
	}
}

/* Calls `what` with the path of every shard in the folder until it fails. */
static rosa_status each_shard(struct pack_shards *shards,
			      rosa_status (*what)(struct pack_shards *, const char *, rosa_error *), rosa_error *err)
{
	DIR *folder = opendir(shards->out);
	rosa_status status = ROSA_OK;

	if (!folder)
		return rosa_fail(err, ROSA_EIO, "cannot open %s: %s", shards->out, strerror(errno));
	for (struct dirent *entry; status == ROSA_OK && (errno = 0, entry = readdir(folder));) {
		if (shard_name(entry->d_name))
			status = what(shards, path_join(shards->out, entry->d_name).text, err);
	}
	if (status == ROSA_OK && errno) /* the folder could not be read to its end */
		status = rosa_fail(err, ROSA_EIO, "cannot read %s: %s", shards->out, strerror(errno));
	closedir(folder);
	return status;
}

static rosa_status refuse_old(struct pack_shards *shards, const char *path, rosa_error *err)
{
	return rosa_fail(err, ROSA_EINVAL,
			 "%s has shards already (%s); give another folder, or replace them with --force", shards->out,
			 path);
}

static rosa_status remove_old(struct pack_shards *shards, const char *path, rosa_error *err)
{
	for (size_t i = 0; i < shards->count; i++) {
		if (strcmp(shards->all[i].path, path) == 0)
			return ROSA_OK;
	}
	if (unlink(path) == 0)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EIO, "cannot remove the older %s: %s", path, strerror(errno));
}

/* Whether the output is one shard, and not a folder of them. */
static bool names_shard(const char *out)
{
	const char *slash = strrchr(out, '/');

	return shard_name(slash ? slash + 1 : out);
}

static void allow_many_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

rosa_status pack_shards_begin(struct pack_shards *shards, const char *out, bool replace, uint64_t most,
			      const struct file_hooks *hooks, rosa_error *err)
{
	struct stat about;
	rosa_status status;

	memset(shards, 0, sizeof(*shards));
	shards->out = out;
	shards->replace = replace;
	shards->hooks = hooks;
	shards->single = names_shard(out);
	shards->most = shards->single ? UINT64_MAX : most;
	if (shards->single && !replace && stat(out, &about) == 0 && S_ISREG(about.st_mode))
		return rosa_fail(err, ROSA_EINVAL, "%s exists already; give another name, or replace it with --force",
				 out);
	allow_many_files();
	status = make_folder(shards, err);
	if (status == ROSA_OK && shards->single)
		status = file_can_create(out, err);
	else if (status == ROSA_OK && !replace)
		status = each_shard(shards, refuse_old, err);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- shards -- */

/* A tokens_sink; the context is the shard. */
static rosa_status sink(void *context, const void *data, size_t size, rosa_error *err)
{
	struct pack_shard *shard = context;

	return file_write(&shard->file, data, size, err);
}

static char *shard_path(const struct pack_shards *shards)
{
	char name[40];

	if (shards->single)
		return strdup(shards->out);
	snprintf(name, sizeof(name), "shard-%05zu.tokens", shards->count);
	return strdup(path_join(shards->out, name).text);
}

/* One more shard. The writer points to the last one, so this is called only while none is open. */
static struct pack_shard *new_shard(struct pack_shards *shards)
{
	struct pack_shard *shard;

	if (!ARRAY_RESERVE(shards->all, shards->room, shards->count + 1))
		return NULL;
	shard = &shards->all[shards->count];
	*shard = (struct pack_shard){shard_path(shards), FILE_WRITER_INIT};
	shards->count += shard->path != NULL;
	return shard->path ? shard : NULL;
}

static rosa_status open_shard(struct pack_shards *shards, rosa_error *err)
{
	const struct file_options options = {.hooks = shards->hooks};
	struct pack_shard *shard = new_shard(shards);
	rosa_status status = shard ? file_create(&shard->file, shard->path, &options, err) : no_memory(err);

	if (status != ROSA_OK)
		return status;
	if (!shard->file.target)
		return rosa_fail(err, ROSA_EINVAL, "%s is not a regular file; shards need one", shard->path);
	shards->open = true;
	return tokens_writer_begin(&shards->writer, sink, shard, shards->vocabulary, shards->tokenizer, shards->answers,
				   err);
}

static rosa_status close_shard(struct pack_shards *shards, rosa_error *err)
{
	struct file_writer *file = &shards->all[shards->count - 1].file;
	rosa_status status = tokens_writer_finish(&shards->writer, err);

	/* the header, which is complete only now, belongs at the beginning */
	if (status == ROSA_OK)
		status = file_write_at(file, 0, &shards->writer.header, sizeof(shards->writer.header), err);
	if (status == ROSA_OK)
		status = file_close(file, err);
	tokens_writer_free(&shards->writer);
	shards->open = false;
	return status;
}

rosa_status pack_shards_add(struct pack_shards *shards, const uint32_t *tokens, const uint8_t *counts, size_t count,
			    bool whole, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t done = 0, piece; done < count && status == ROSA_OK; done += piece) {
		uint64_t left = shards->open ? shards->most - shards->writer.header.tokens : 0;

		if (shards->open && (left == 0 || (whole && left < count)))
			status = close_shard(shards, err);
		if (status == ROSA_OK && !shards->open)
			status = open_shard(shards, err);
		if (status != ROSA_OK)
			break;
		left = shards->most - shards->writer.header.tokens;
		piece = left < count - done ? (size_t)left : count - done;
		status = tokens_writer_add(&shards->writer, tokens + done, counts ? counts + done : NULL, piece, err);
		shards->tokens += piece;
	}
	return status;
}

void pack_shards_end_document(struct pack_shards *shards)
{
	if (shards->open)
		tokens_writer_end_document(&shards->writer);
}

rosa_status pack_shards_commit(struct pack_shards *shards, rosa_error *err)
{
	rosa_status status = shards->open ? close_shard(shards, err) : ROSA_OK;

	for (size_t i = 0; i < shards->count && status == ROSA_OK; i++)
		status = file_commit(&shards->all[i].file, err);
	if (status != ROSA_OK)
		return status;
	shards->existed = strlen(shards->folder.text); /* it stays */
	return shards->single || !shards->replace ? ROSA_OK : each_shard(shards, remove_old, err);
}

void pack_shards_free(struct pack_shards *shards)
{
	tokens_writer_free(&shards->writer);
	for (size_t i = 0; i < shards->count; i++) {
		file_discard(&shards->all[i].file);
		free(shards->all[i].path);
	}
	free(shards->all);
	remove_folders(shards);
	memset(shards, 0, sizeof(*shards));
}
