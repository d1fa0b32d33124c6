/*
 * The paths of shards: a path names a shard or a folder of shards.
 *
 * Shards of a folder are sorted by name, and packing numbers them. The order in which a folder lists them depends on
 * the file system.
 */
#include "train/shard_names.h"

#include "base/array.h"
#include "base/paths.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool shard_name(const char *name)
{
	const size_t length = strlen(name);

	return name[0] != '.' && length > 7 && strcmp(name + length - 7, ".tokens") == 0;
}

static bool add(struct shard_names *names, const char *name)
{
	char *copy = strdup(name);

	if (!copy || !ARRAY_RESERVE(names->all, names->room, names->count + 1)) {
		free(copy);
		return false;
	}
	names->all[names->count++] = copy;
	return true;
}

static int by_name(const void *left, const void *right)
{
	return strcmp(*(char *const *)left, *(char *const *)right);
}

rosa_status shard_names_add(struct shard_names *names, const char *path, rosa_error *err)
{
	const size_t before = names->count;
	DIR *folder = NULL;
	bool good = true;

	if (path_is_folder(path)) {
		folder = opendir(path);
		if (!folder)
			return rosa_fail(err, ROSA_EIO, "%s: %s", path, strerror(errno));
		for (struct dirent *entry; good && (errno = 0, entry = readdir(folder));)
			good = !shard_name(entry->d_name) || add(names, path_join(path, entry->d_name).text);
		/* a folder that cannot be read to its end must not pass for a smaller one */
		const int broken = good ? errno : 0;
		closedir(folder);
		if (broken)
			return rosa_fail(err, ROSA_EIO, "%s: %s", path, strerror(broken));
	} else {
		good = add(names, path);
	}
	if (!good)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for its list of shards", path);
	if (names->count == before)
		return rosa_fail(err, ROSA_EINVAL, "%s: there are no *.tokens in it; `rosatune data pack` makes them",
				 path);
	qsort(names->all + before, names->count - before, sizeof(*names->all), by_name);
	return ROSA_OK;
}

void shard_names_free(struct shard_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->all[i]);
	free(names->all);
	memset(names, 0, sizeof(*names));
}
