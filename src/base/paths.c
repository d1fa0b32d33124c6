/* Paths: what opening a model folder takes. */
#include "base/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *path_join(const char *folder, const char *name)
{
	size_t length = strlen(folder), room = length + strlen(name) + 2;
	char *path = malloc(room);

	if (path)
		snprintf(path, room, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
	return path;
}

char *path_folder(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return strdup(".");
	return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static bool is_of_kind(const char *path, mode_t kind)
{
	struct stat about;

	return stat(path, &about) == 0 && (about.st_mode & S_IFMT) == kind;
}

bool path_ends_in(const char *path, const char *end)
{
	size_t size = strlen(path), end_size = strlen(end);

	return size >= end_size && strcmp(path + size - end_size, end) == 0;
}

bool path_exists(const char *path)
{
	struct stat about;

	return stat(path, &about) == 0;
}

bool path_is_file(const char *path)
{
	return is_of_kind(path, S_IFREG);
}

bool path_is_folder(const char *path)
{
	return is_of_kind(path, S_IFDIR);
}
