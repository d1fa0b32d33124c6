/* Folders. Links within a folder that is removed are removed themselves, not followed. */
#include "base/folders.h"

#include "base/paths.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

rosa_status folder_make(const char *path, rosa_error *err)
{
	char *copy = strdup(path);
	rosa_status status = ROSA_OK;

	if (!copy)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to make the folder %s", path);
	for (char *at = copy + (*copy != '\0'); status == ROSA_OK; at++) {
		const char here = *at;

		if (here != '/' && here != '\0')
			continue;
		*at = '\0';
		if (mkdir(copy, 0777) != 0 && !(errno == EEXIST && path_is_folder(copy)))
			status = rosa_fail(err, ROSA_EIO, "cannot make the folder %s: %s", copy,
					   errno == EEXIST ? "there is a file of that name" : strerror(errno));
		*at = here;
		if (here == '\0')
			break;
	}
	free(copy);
	return status;
}

rosa_status folder_sync(const char *path, rosa_error *err)
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

void folder_remove(const char *path)
{
	DIR *folder;
	struct dirent *entry;

	if (unlink(path) == 0)
		return;
	folder = opendir(path);
	while (folder && (entry = readdir(folder)) != NULL) {
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			folder_remove(path_join(path, entry->d_name).text);
	}
	if (folder)
		closedir(folder);
	rmdir(path);
}
