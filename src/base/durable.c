/*
 * Files that are on the disk once they are closed.
 *
 * A checkpoint must outlive the machine, so its files are synchronised before the folder gets its name, and the name
 * before an older checkpoint is removed. Everything goes through a buffer, which is also where the checksum is taken:
 * it reads words of 8 bytes, and only the last piece may be none.
 */
#include "base/durable.h"

#include "base/checksum.h"
#include "base/paths.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER ((size_t)1 << 20)

rosa_status durable_open(struct durable_file *file, const char *path, rosa_error *err)
{
	*file = (struct durable_file){.checksum = CHECKSUM_START};
	file->path = strdup(path);
	file->buffer = malloc(BUFFER);
	if (!file->path || !file->buffer) {
		durable_abandon(file);
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write it", path);
	}
	file->descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	file->open = file->descriptor >= 0;
	if (!file->open) {
		rosa_fail(err, ROSA_EIO, "cannot write %s: %s", path, strerror(errno));
		durable_abandon(file);
		return ROSA_EIO;
	}
	return ROSA_OK;
}

static rosa_status flush(struct durable_file *file, rosa_error *err)
{
	size_t done = 0;

	while (done < file->used) {
		const ssize_t put = write(file->descriptor, file->buffer + done, file->used - done);

		if (put < 0 && errno != EINTR)
			return rosa_fail(err, ROSA_EIO, "error while writing %s: %s", file->path, strerror(errno));
		done += put > 0 ? (size_t)put : 0;
	}
	file->checksum = checksum_add(file->checksum, file->buffer, file->used);
	file->bytes += file->used;
	file->used = 0;
	return ROSA_OK;
}

rosa_status durable_write(struct durable_file *file, const void *data, size_t size, rosa_error *err)
{
	const uint8_t *from = data;
	rosa_status status = ROSA_OK;

	while (size > 0 && status == ROSA_OK) {
		const size_t room = BUFFER - file->used, piece = size < room ? size : room;

		memcpy(file->buffer + file->used, from, piece);
		file->used += piece;
		from += piece;
		size -= piece;
		if (file->used == BUFFER)
			status = flush(file, err);
	}
	return status;
}

rosa_status durable_close(struct durable_file *file, rosa_error *err)
{
	rosa_status status = flush(file, err);
	int result = 0;

	while (status == ROSA_OK && (result = fsync(file->descriptor)) != 0 && errno == EINTR)
		;
	/* some file systems have nothing to synchronise and say so */
	if (result != 0 && errno != EINVAL && errno != EROFS)
		status = rosa_fail(err, ROSA_EIO, "error while writing %s: %s", file->path, strerror(errno));
	file->open = false;
	if (close(file->descriptor) != 0 && errno != EINTR && status == ROSA_OK)
		status = rosa_fail(err, ROSA_EIO, "error while writing %s: %s", file->path, strerror(errno));
	durable_abandon(file);
	return status;
}

void durable_abandon(struct durable_file *file)
{
	if (file->open)
		close(file->descriptor);
	free(file->buffer);
	free(file->path);
	file->open = false;
	file->buffer = NULL;
	file->path = NULL;
}

rosa_status durable_save(const char *path, const void *data, size_t size, rosa_error *err)
{
	struct durable_file file;
	rosa_status status = durable_open(&file, path, err);

	if (status == ROSA_OK)
		status = durable_write(&file, data, size, err);
	if (status == ROSA_OK)
		return durable_close(&file, err);
	durable_abandon(&file);
	return status;
}

rosa_status durable_sync_folder(const char *path, rosa_error *err)
{
	const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool synced;

	if (folder < 0)
		return rosa_fail(err, ROSA_EIO, "cannot open the folder %s: %s", path, strerror(errno));
	synced = fsync(folder) == 0 || errno == EINVAL || errno == EINTR;
	close(folder);
	return synced ? ROSA_OK
		      : rosa_fail(err, ROSA_EIO, "error while writing the folder %s: %s", path, strerror(errno));
}

void durable_remove(const char *path)
{
	DIR *folder;
	struct dirent *entry;

	if (unlink(path) == 0)
		return;
	folder = opendir(path);
	while (folder && (entry = readdir(folder)) != NULL) {
		char *inner = NULL;

		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			inner = path_join(path, entry->d_name);
		if (inner)
			durable_remove(inner);
		free(inner);
	}
	if (folder)
		closedir(folder);
	rmdir(path);
}
