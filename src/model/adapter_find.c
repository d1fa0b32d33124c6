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
	return path_is_file(path_join(folder, ADAPTER_CONFIG).text);
}

/* The checkpoint with most steps that has an adapter, and these steps. False: there is none. */
static bool newest_checkpoint(const char *run, struct path *newest, uint64_t *steps)
{
	const struct path folder = path_join(run, RUN_CHECKPOINTS);
	DIR *open = opendir(folder.text);
	bool found = false;

	for (const struct dirent *entry; open && (entry = readdir(open));) {
		const struct path inside = path_join(folder.text, entry->d_name);
		uint64_t step;
		int end = 0;

		if (sscanf(entry->d_name, "step-%" SCNu64 "%n", &step, &end) != 1 || entry->d_name[end] ||
		    (found && step < *steps) || !has_adapter(inside.text))
			continue;
		*newest = inside;
		*steps = step;
		found = true;
	}
	if (open)
		closedir(open);
	return found;
}

/* The steps that an adapter records. UINT64_MAX if it cannot be read, so that it is chosen, and opening it reports why.
 */
static uint64_t steps_of(const char *folder)
{
	struct json root = {0};
	size_t steps = 0;
	const bool good = json_load(path_join(folder, ADAPTER_CONFIG).text, &root, NULL) == ROSA_OK &&
			  json_get_size(root, "steps", JSON_OPTIONAL, &steps, NULL) == ROSA_OK;

	json_free(&root);
	return good ? steps : UINT64_MAX;
}

rosa_status adapter_find(const char *path, char **found, rosa_error *err)
{
	const struct path final = path_join(path, RUN_FINAL);
	struct path newest;
	const char *folder = NULL;
	uint64_t steps = 0;

	*found = NULL;
	if (has_adapter(path))
		folder = path;
	else if (newest_checkpoint(path, &newest, &steps))
		folder = newest.text;
	if (folder != path && has_adapter(final.text) && (!folder || steps_of(final.text) >= steps))
		folder = final.text;
	if (!folder && !path_exists(path))
		return rosa_fail(err, ROSA_EIO, "%s: No such file or directory", path);
	if (!folder)
		return rosa_fail(err, ROSA_EIO,
				 "%s: has no " ADAPTER_CONFIG
				 "; name the folder of a run of rosatune tune, or one that "
				 "rosatune.hf.save_adapter wrote",
				 path);
	*found = strdup(folder);
	return *found ? ROSA_OK : rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory to open it", path);
}
