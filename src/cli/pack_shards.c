/*
 * Shards on the disk.
 *
 * A folder with the first three of ten shards looks like a smaller corpus, and a model would be trained on it without
 * anybody noticing. So shards keep their temporary names until the last one is written and closed; what happens then
 * is naming only. A packing that fails or is interrupted leaves nothing, not even a folder that it made. One that is
 * killed leaves an empty folder at most, or, where files cannot do without a name (file.c), hidden ones, which no
 * reader looks at. Files without a name stay open, so there may be many: as many are asked for as the system allows.
 */
#include "cli/pack_shards.h"

#include "base/paths.h"
#include "train/shard_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------------------------- the folder --
 */

/* Calls `what` with the path of every shard in the folder until it returns false. */
static bool each_shard(struct pack_shards *shards, bool (*what)(struct pack_shards *, const char *, rosa_error *),
		       rosa_error *why)
{
	DIR *folder = opendir(shards->out);
	bool good = true;

	if (!folder)
		return refuse(why, "cannot open %s: %s", shards->out, strerror(errno));
	for (struct dirent *entry; good && (errno = 0, entry = readdir(folder));) {
		if (!shard_name(entry->d_name))
			continue;
		char *path = path_join(shards->out, entry->d_name);
		good = path ? what(shards, path, why) : refuse(why, "not enough memory");
		free(path);
	}
	if (good && errno) /* the folder could not be read to its end */
		good = refuse(why, "cannot read %s: %s", shards->out, strerror(errno));
	closedir(folder);
	return good;
}

static bool refuse_old(struct pack_shards *shards, const char *path, rosa_error *why)
{
	return refuse(why, "%s has shards already (%s); give another folder, or --replace", shards->out, path);
}

static bool remove_old(struct pack_shards *shards, const char *path, rosa_error *why)
{
	for (size_t i = 0; i < shards->count; i++) {
		if (strcmp(shards->all[i].path, path) == 0)
			return true;
	}
	return unlink(path) == 0 || refuse(why, "cannot remove the older %s: %s", path, strerror(errno));
}

/* Whether --out is one shard, and not a folder of them. */
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

bool pack_shards_begin(struct pack_shards *shards, const char *out, bool replace, uint64_t most, rosa_error *why)
{
	memset(shards, 0, sizeof(*shards));
	shards->out = out;
	shards->replace = replace;
	shards->single = names_shard(out);
	allow_many_files();
	shards->most = shards->single ? UINT64_MAX : most;
	if (shards->single)
		return file_can_create(out, why);
	shards->made_folder = mkdir(out, 0777) == 0;
	if (!shards->made_folder && errno != EEXIST)
		return refuse(why, "cannot make the folder %s: %s", out, strerror(errno));
	return replace || each_shard(shards, refuse_old, why);
}

/* ---------------------------------------------------------------------------------------------------- one by one -- */

/* A tokens_sink; the context is the shard. The reason is short enough for the library's message, or it is cut. */
static rosa_status sink(void *context, const void *data, size_t size, rosa_error *err)
{
	struct pack_shard *shard = context;
	rosa_error why;

	if (file_write(&shard->file, data, size, &why))
		return ROSA_OK;
	err->status = ROSA_EIO;
	snprintf(err->message, sizeof(err->message), "%.*s", (int)sizeof(err->message) - 1, why.message);
	return ROSA_EIO;
}

static char *shard_path(const struct pack_shards *shards)
{
	char name[40];

	if (shards->single)
		return strdup(shards->out);
	snprintf(name, sizeof(name), "shard-%05zu.tokens", shards->count);
	return path_join(shards->out, name);
}

/* Room for one more; the writer keeps a pointer to the last shard, so only between two. */
static struct pack_shard *new_shard(struct pack_shards *shards, rosa_error *why)
{
	if (shards->count == shards->room) {
		size_t room = 2 * shards->room + 16;
		struct pack_shard *larger = realloc(shards->all, room * sizeof(*larger));
		if (!larger) {
			refuse(why, "not enough memory for %zu shards", room);
			return NULL;
		}
		shards->all = larger;
		shards->room = room;
	}
	struct pack_shard *shard = &shards->all[shards->count];
	*shard = (struct pack_shard){shard_path(shards), FILE_WRITER_INIT};
	if (!shard->path) {
		refuse(why, "not enough memory");
		return NULL;
	}
	shards->count++;
	return shard;
}

static bool open_shard(struct pack_shards *shards, rosa_error *why)
{
	struct pack_shard *shard = new_shard(shards, why);

	if (!shard || !file_create(&shard->file, shard->path, why))
		return false;
	if (!shard->file.target)
		return refuse(why, "%s is not a regular file; shards need one", shard->path);
	shards->open = true;
	if (tokens_writer_begin(&shards->writer, sink, shard, shards->vocabulary, shards->tokenizer, shards->answers,
				why) != ROSA_OK)
		return false;
	return true;
}

/* The header, which is only known now, goes to the beginning. */
static bool put_header(struct pack_shard *shard, const struct tokens_header *header, rosa_error *why)
{
	const char *from = (const char *)header;

	for (size_t done = 0; done < sizeof(*header);) {
		ssize_t put = pwrite(shard->file.descriptor, from + done, sizeof(*header) - done, (off_t)done);
		if (put < 0 && errno != EINTR)
			return refuse(why, "error while writing %s: %s", shard->path, strerror(errno));
		done += put > 0 ? (size_t)put : 0;
	}
	return true;
}

static bool close_shard(struct pack_shards *shards, rosa_error *why)
{
	struct pack_shard *shard = &shards->all[shards->count - 1];
	rosa_error error;
	bool good = tokens_writer_finish(&shards->writer, &error) == ROSA_OK || refuse(why, "%s", error.message);

	good = good && put_header(shard, &shards->writer.header, why) && file_close(&shard->file, why);
	tokens_writer_free(&shards->writer);
	shards->open = false;
	return good;
}

/* --------------------------------------------------------------------------------------------------------- tokens --
 */

bool pack_shards_add(struct pack_shards *shards, const uint32_t *tokens, const uint8_t *counts, size_t count,
		     bool whole, rosa_error *why)
{
	for (size_t done = 0, piece; done < count; done += piece) {
		uint64_t left = shards->open ? shards->most - shards->writer.header.tokens : 0;
		if (shards->open && (left == 0 || (whole && left < count))) {
			if (!close_shard(shards, why))
				return false;
		}
		if (!shards->open && !open_shard(shards, why))
			return false;
		left = shards->most - shards->writer.header.tokens;
		piece = left < count - done ? (size_t)left : count - done;
		if (tokens_writer_add(&shards->writer, tokens + done, counts ? counts + done : NULL, piece, why) !=
		    ROSA_OK)
			return false;
		shards->tokens += piece;
	}
	return true;
}

void pack_shards_end_document(struct pack_shards *shards)
{
	if (shards->open)
		tokens_writer_end_document(&shards->writer);
}

/* ------------------------------------------------------------------------------------------------------------- end --
 */

bool pack_shards_commit(struct pack_shards *shards, rosa_error *why)
{
	if (shards->open && !close_shard(shards, why))
		return false;
	for (size_t i = 0; i < shards->count; i++) {
		if (!file_commit(&shards->all[i].file, why))
			return false;
	}
	shards->made_folder = false;
	return shards->single || !shards->replace || each_shard(shards, remove_old, why);
}

void pack_shards_free(struct pack_shards *shards)
{
	tokens_writer_free(&shards->writer);
	for (size_t i = 0; i < shards->count; i++) {
		file_discard(&shards->all[i].file);
		free(shards->all[i].path);
	}
	free(shards->all);
	if (shards->made_folder)
		rmdir(shards->out);
	memset(shards, 0, sizeof(*shards));
}
