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

rosa_status adapter_find(const char *path, struct path *found, rosa_error *err)
{
	const struct path final = path_join(path, RUN_FINAL);
	uint64_t steps = 0;

	*found = path_of(path);
	if (has_adapter(path))
		return ROSA_OK;
	const bool checkpoint = newest_checkpoint(path, found, &steps);

	if (has_adapter(final.text) && (!checkpoint || steps_of(final.text) >= steps))
		*found = final;
	else if (!path_exists(path))
		return rosa_fail(err, ROSA_EIO, "%s: No such file or directory", path);
	else if (!checkpoint)
		return rosa_fail(err, ROSA_EIO,
				 "%s: has no " ADAPTER_CONFIG
				 "; name the folder of a run of rosatune tune, or one that "
				 "rosatune.hf.save_adapter wrote",
				 path);
	return ROSA_OK;
}
