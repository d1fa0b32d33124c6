/*
 * Replacing whole files.
 *
 * A file is written beside the one it replaces (a rename across file systems is not atomic) and takes its name at the
 * end. Where the system can, the new file has no name at all until then, so that a program that is killed leaves
 * nothing behind; such a file exists as long as it is open, and is closed only when it has its name. Elsewhere (NFS,
 * for one) it has a hidden name, and only a kill leaves it there.
 *
 * Synchronising with the disk is an option. The results of a deterministic program can be made again after a power
 * failure, and waiting for the disk would dominate small jobs; a checkpoint cannot be made again.
 *
 * Small pieces go through a buffer, which is allocated when the first one comes.
 */
#ifdef __linux__
#define _GNU_SOURCE /* O_TMPFILE */
#endif

#include "base/file_wait.h"
#include "base/folders.h"
#include "base/memory.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER      ((size_t)1 << 16)
#define WRITE_BLOCK ((size_t)1 << 22) /* between two looks at the hook */
#define MOST_LINKS  40                /* symbolic links that lead to each other */

#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

/* ------------------------------------------------------------------------------------------------------- targets -- */

/* What is at a path, with links followed. */
struct place {
	char target[PATH_MAX];
	bool there, special; /* special: not a regular file, so it cannot be replaced */
	mode_t mode;
};

/* The folder of a file, as a path that ends in its last slash or is "./". */
static const char *folder_of(const char *path, char folder[PATH_MAX])
{
	const char *slash = strrchr(path, '/');

	if (slash)
		snprintf(folder, PATH_MAX, "%.*s/", (int)(slash - path), path);
	else
		snprintf(folder, PATH_MAX, "./");
	return folder;
}

/* Where a link leads that leads to nothing yet: opening it would make that file, so that file is the one to write. */
static bool follow(char path[PATH_MAX])
{
	char next[PATH_MAX], joined[PATH_MAX + PATH_MAX];
	const ssize_t length = readlink(path, next, sizeof(next) - 1);

	if (length < 0)
		return false;
	next[length] = '\0';
	joined[0] = '\0';
	if (next[0] != '/')
		folder_of(path, joined);
	strcat(joined, next);
	if (strlen(joined) >= PATH_MAX)
		return false;
	strcpy(path, joined);
	return true;
}

static rosa_status look(const char *path, struct place *place, rosa_error *err)
{
	struct stat about;

	if (path[0] == '\0')
		return rosa_fail(err, ROSA_EINVAL, "cannot write to a file with an empty name; give one");
	if (strlen(path) >= sizeof(place->target))
		return rosa_fail(err, ROSA_EIO, "cannot write %.80s...: %s", path, strerror(ENAMETOOLONG));
	strcpy(place->target, path);
	place->there = stat(path, &about) == 0;
	if (!place->there && errno == ELOOP)
		return rosa_fail(err, ROSA_EIO, "cannot write %s: %s", path, strerror(errno));
	place->special = place->there && !S_ISREG(about.st_mode);
	place->mode = place->there ? about.st_mode : 0;
	if (place->there && S_ISDIR(about.st_mode))
		return rosa_fail(err, ROSA_EIO, "cannot write %s: it is a folder; give a file name", path);
	if (place->there && !place->special && !realpath(path, place->target))
		return rosa_fail(err, ROSA_EIO, "cannot write %s: %s", path, strerror(errno));
	for (int i = 0; i < MOST_LINKS && !place->there && follow(place->target); i++)
		;
	return ROSA_OK;
}

rosa_status file_can_create(const char *path, rosa_error *err)
{
	struct place place;
	char folder[PATH_MAX];
	rosa_status status = look(path, &place, err);

	if (status != ROSA_OK || place.special)
		return status;
	if (access(folder_of(place.target, folder), W_OK | X_OK) == 0)
		return ROSA_OK;
	if (folder[1] != '\0')
		folder[strlen(folder) - 1] = '\0';
	return rosa_fail(err, ROSA_EIO, "cannot write %s: folder %s: %s", path, folder, strerror(errno));
}

/* ----------------------------------------------------------------------------------------------------- new files -- */

static const rosa_allocator *allocator_of(const struct file_writer *writer)
{
	static const rosa_allocator plain;

	return writer->options.allocator ? writer->options.allocator : &plain;
}

static char *copy_text(const struct file_writer *writer, const char *text)
{
	const size_t size = strlen(text) + 1;
	char *copy = memory_resize(allocator_of(writer), NULL, size);

	return copy ? memcpy(copy, text, size) : NULL;
}

static int open_named(const char *name, int descriptor)
{
	(void)descriptor;
	return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* Calls `make` with hidden names beside the target until one is free, which is writer->temporary then. Process numbers
 * are used again, and several machines may see the folder, so a name may be taken. */
static int make_hidden(struct file_writer *writer, int (*make)(const char *name, int descriptor))
{
	char folder[PATH_MAX], name[PATH_MAX + 64];
	int made = -1;

	folder_of(writer->target, folder);
	errno = EEXIST;
	for (unsigned attempt = 0; made < 0 && errno == EEXIST; attempt++) {
		snprintf(name, sizeof(name), "%s.rosatune-%ld-%u.tmp", folder, (long)getpid(), attempt);
		made = make(name, writer->descriptor);
	}
	if (made < 0)
		return -1;
	writer->temporary = copy_text(writer, name);
	if (writer->temporary)
		return made;
	unlink(name);
	if (make == open_named)
		close(made);
	errno = ENOMEM;
	return -1;
}

#ifdef O_TMPFILE

#define LINKS "/proc/self/fd"

/* A file without a name in the target's folder, or -1. */
static int open_nameless(const char *target)
{
	char folder[PATH_MAX];

	if (access(LINKS, X_OK) != 0)
		return -1;
	return open(folder_of(target, folder), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
}

static int link_named(const char *name, int descriptor)
{
	char from[64];

	snprintf(from, sizeof(from), LINKS "/%d", descriptor);
	return linkat(AT_FDCWD, from, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

#else

static int open_nameless(const char *target)
{
	(void)target;
	return -1;
}

static int link_named(const char *name, int descriptor)
{
	(void)name, (void)descriptor;
	return -1;
}

#endif

static rosa_status open_temporary(struct file_writer *writer, const struct place *place, rosa_error *err)
{
	const struct file_hooks *hooks = writer->options.hooks;

	writer->held = true; /* until the file has its name or is gone */
	if (hooks && hooks->hold)
		hooks->hold(hooks->context);
	writer->descriptor = open_nameless(writer->target);
	writer->nameless = writer->descriptor >= 0;
	if (!writer->nameless)
		writer->descriptor = make_hidden(writer, open_named);
	if (writer->descriptor < 0)
		return rosa_fail(err, ROSA_EIO, "cannot write %s: %s", writer->path, strerror(errno));
	if (place->there && fchmod(writer->descriptor, place->mode & 0777) != 0)
		return rosa_fail(err, ROSA_EIO, "cannot give %s its permissions: %s", writer->path, strerror(errno));
	return ROSA_OK;
}

static rosa_status open_special(struct file_writer *writer, rosa_error *err)
{
	writer->descriptor = open(writer->path, O_WRONLY | O_CLOEXEC);
	if (writer->descriptor < 0)
		return rosa_fail(err, ROSA_EIO, "cannot write %s: %s", writer->path, strerror(errno));
	file_never_block(writer->descriptor);
	return ROSA_OK;
}

rosa_status file_create(struct file_writer *writer, const char *path, const struct file_options *options,
			rosa_error *err)
{
	struct place place;
	rosa_status status;

	*writer = (struct file_writer)FILE_WRITER_INIT;
	if (options)
		writer->options = *options;
	status = file_can_create(path, err);
	if (status == ROSA_OK)
		status = look(path, &place, err);
	if (status != ROSA_OK)
		return status;
	writer->path = copy_text(writer, path);
	writer->target = place.special ? NULL : copy_text(writer, place.target);
	if (!writer->path || (!writer->target && !place.special))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to write %s", path);
	else
		status = place.special ? open_special(writer, err) : open_temporary(writer, &place, err);
	if (status != ROSA_OK)
		file_discard(writer);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- content -- */

/* From the present place on, or at `offset` if that is not negative. */
static rosa_status put(struct file_writer *writer, const uint8_t *from, size_t size, off_t offset, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	while (size > 0 && status == ROSA_OK) {
		const size_t piece = size < WRITE_BLOCK ? size : WRITE_BLOCK;
		const ssize_t moved = offset < 0 ? write(writer->descriptor, from, piece)
						 : pwrite(writer->descriptor, from, piece, offset);

		if (moved > 0) {
			from += moved;
			size -= (size_t)moved;
			offset += offset < 0 ? 0 : moved;
		}
		status = file_wait(writer->descriptor, POLLOUT, moved < 0 ? errno : 0, &writer->options, writer->path,
				   "writing", err);
	}
	return status;
}

static rosa_status flush(struct file_writer *writer, rosa_error *err)
{
	const size_t used = writer->used;

	writer->used = 0;
	return put(writer, writer->buffer, used, -1, err);
}

rosa_status file_write(struct file_writer *writer, const void *data, size_t size, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (!size)
		return ROSA_OK;
	if (writer->options.sum)
		checksum_add(writer->options.sum, data, size);
	if (size > BUFFER - writer->used)
		status = flush(writer, err);
	if (status != ROSA_OK || size >= BUFFER)
		return status == ROSA_OK ? put(writer, data, size, -1, err) : status;
	if (!writer->buffer)
		writer->buffer = memory_resize(allocator_of(writer), NULL, BUFFER);
	if (!writer->buffer)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to write %s", writer->path);
	memcpy(writer->buffer + writer->used, data, size);
	writer->used += size;
	return ROSA_OK;
}

rosa_status file_write_at(struct file_writer *writer, off_t offset, const void *data, size_t size, rosa_error *err)
{
	rosa_status status = flush(writer, err);

	return status == ROSA_OK ? put(writer, data, size, offset, err) : status;
}

/* ----------------------------------------------------------------------------------------------------------- end -- */

static rosa_status synchronise(const struct file_writer *writer, rosa_error *err)
{
	int result;

	do
		result = fsync(writer->descriptor);
	while (result != 0 && errno == EINTR);
	/* some file systems have nothing to synchronise and say so */
	if (result == 0 || errno == EINVAL || errno == EROFS)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EIO, "error while writing %s: %s", writer->path, strerror(errno));
}

/* Are so many files open that the next ones may find no descriptor? */
static bool descriptors_run_short(int descriptor)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)descriptor >= limit.rlim_cur / 2;
}

rosa_status file_close(struct file_writer *writer, rosa_error *err)
{
	rosa_status status = flush(writer, err);
	int closing = writer->descriptor;

	memory_free(allocator_of(writer), writer->buffer);
	writer->buffer = NULL;
	if (status == ROSA_OK && writer->options.durable && writer->target)
		status = synchronise(writer, err);
	if (status != ROSA_OK)
		return status;
	/* Closing a file without a name would remove it. A copy of its descriptor is closed instead, which reports the
	 * same errors; or, if many files wait for their names, it gets a hidden one. */
	if (writer->nameless && descriptors_run_short(writer->descriptor)) {
		if (make_hidden(writer, link_named) != 0)
			return rosa_fail(err, ROSA_EIO, "cannot keep %s: %s", writer->path, strerror(errno));
		writer->nameless = false;
	} else if (writer->nameless) {
		closing = dup(writer->descriptor);
		if (closing < 0)
			return rosa_fail(err, ROSA_EIO, "cannot finish %s: %s", writer->path, strerror(errno));
	}
	if (!writer->nameless)
		writer->descriptor = -1;
	if (close(closing) != 0 && errno != EINTR)
		return rosa_fail(err, ROSA_EIO, "error while writing %s: %s", writer->path, strerror(errno));
	return ROSA_OK;
}

/* A file without a name gets the one it shall have or, where there is something to replace, a hidden one. */
static bool name_it(struct file_writer *writer)
{
	if (!writer->nameless || link_named(writer->target, writer->descriptor) == 0)
		return true;
	return errno == EEXIST && make_hidden(writer, link_named) == 0;
}

rosa_status file_commit(struct file_writer *writer, rosa_error *err)
{
	char folder[PATH_MAX];
	rosa_status status = ROSA_OK;

	if (!name_it(writer) || (writer->temporary && rename(writer->temporary, writer->target) != 0))
		return rosa_fail(err, ROSA_EIO, "cannot give %s its name: %s", writer->path, strerror(errno));
	memory_free(allocator_of(writer), writer->temporary);
	writer->temporary = NULL;
	if (writer->options.durable && writer->target)
		status = folder_sync(folder_of(writer->target, folder), err);
	file_discard(writer);
	return status;
}

void file_discard(struct file_writer *writer)
{
	const rosa_allocator *allocator = allocator_of(writer);
	const struct file_hooks *hooks = writer->options.hooks;

	if (writer->descriptor >= 0)
		close(writer->descriptor);
	if (writer->temporary)
		unlink(writer->temporary);
	if (writer->held && hooks && hooks->release)
		hooks->release(hooks->context);
	memory_free(allocator, writer->temporary);
	memory_free(allocator, writer->target);
	memory_free(allocator, writer->path);
	memory_free(allocator, writer->buffer);
	*writer = (struct file_writer)FILE_WRITER_INIT;
}

rosa_status file_finish(struct file_writer *writer, rosa_status written, rosa_error *err)
{
	rosa_status status = written == ROSA_OK ? file_close(writer, err) : written;

	if (status == ROSA_OK)
		status = file_commit(writer, err);
	file_discard(writer);
	return status;
}

rosa_status file_save(const char *path, const void *data, size_t size, const struct file_options *options,
		      rosa_error *err)
{
	struct file_writer writer;
	rosa_status status = file_create(&writer, path, options, err);

	if (status == ROSA_OK)
		status = file_write(&writer, data, size, err);
	return file_finish(&writer, status, err);
}
