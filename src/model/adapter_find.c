/*
 * Where the adapter is that a path means.
 *
 * Users know the folder that they gave to `rosatune tune`, not the names of the checkpoints in it. A final adapter is
 * older than the newest checkpoint if the run was continued after its end and has not ended again; then the checkpoint
 * counts.
 */
#include "model/adapter_find.h"

#include "base/paths.h"
#include "base/status.h"
#include "model/adapter.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_adapter(const char *folder)
{
	char *config = path_join(folder, ADAPTER_CONFIG);
	const bool there = config && path_is_file(config);

	free(config);
	return there;
}

/* The checkpoint with most steps that has an adapter: *path from malloc, or NULL if there is none. */
static uint64_t newest_checkpoint(const char *run, char **path)
{
	char *folder = path_join(run, RUN_CHECKPOINTS);
	DIR *open = folder ? opendir(folder) : NULL;
	uint64_t newest = 0;

	*path = NULL;
	for (const struct dirent *entry; open && (entry = readdir(open));) {
		uint64_t step;
		int end = 0;
		char *inside;

		if (sscanf(entry->d_name, "step-%" SCNu64 "%n", &step, &end) != 1 || entry->d_name[end] ||
		    (*path && step < newest))
			continue;
		inside = path_join(folder, entry->d_name);
		if (!inside || !has_adapter(inside)) {
			free(inside);
			continue;
		}
		free(*path);
		*path = inside;
		newest = step;
	}
	if (open)
		closedir(open);
	free(folder);
	return newest;
}

/* The steps that an adapter records. UINT64_MAX if it cannot be read, so that it is chosen, and opening it reports why.
 */
static uint64_t steps_of(const char *folder)
{
	char *path = path_join(folder, ADAPTER_CONFIG);
	struct json root = {0};
	size_t steps = 0;
	bool good = path && json_load(path, &root, NULL) == ROSA_OK &&
		    json_get_size(root, "steps", JSON_OPTIONAL, &steps, NULL) == ROSA_OK;

	json_free(&root);
	free(path);
	return good ? steps : UINT64_MAX;
}

rosa_status adapter_find(const char *path, char **found, rosa_error *err)
{
	char *final, *checkpoint;
	uint64_t step;

	*found = NULL;
	if (has_adapter(path)) {
		*found = strdup(path);
		return *found ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory to open it", path);
	}
	final = path_join(path, RUN_FINAL);
	step = newest_checkpoint(path, &checkpoint);
	if (final && has_adapter(final) && (!checkpoint || steps_of(final) >= step)) {
		*found = final;
		final = NULL;
	} else {
		*found = checkpoint;
		checkpoint = NULL;
	}
	free(final);
	free(checkpoint);
	if (*found)
		return ROSA_OK;
	if (!path_exists(path))
		return rosa_fail(err, ROSA_EIO, "%s: No such file or directory", path);
	return rosa_fail(err, ROSA_EIO,
			 "%s: has no " ADAPTER_CONFIG "; name the folder of a run of rosatune tune, or one that "
			 "rosatune.hf.save_adapter wrote",
			 path);
}
