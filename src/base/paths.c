/* Paths: what opening a model folder takes. */
#include "base/paths.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct path path_of(const char *text)
{
	struct path path;

	snprintf(path.text, sizeof(path.text), "%s", text);
	return path;
}

struct path path_join(const char *folder, const char *name)
{
	const size_t length = strlen(folder);
	struct path path;

	snprintf(path.text, sizeof(path.text), "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
	return path;
}

struct path path_folder(const char *text)
{
	const char *slash = strrchr(text, '/');
	struct path path = path_of(slash ? text : ".");

	if (slash && (size_t)(slash - text) < sizeof(path.text))
		path.text[slash == text ? 1 : slash - text] = '\0';
	return path;
}

struct path path_beside(const char *text, const char *name)
{
	return path_join(path_is_folder(text) ? text : path_folder(text).text, name);
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
