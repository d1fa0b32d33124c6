/*
 * One model in several files.
 *
 * Large models come in shards, with an index that tells which tensor is in which file. The index names files, so a name
 * must not contain a path: an index must not lead out of its folder. Nothing else in it is relied on: each shard has a
 * header of its own, and each tensor that the index names must be in its shard.
 */
#include "model/shards.h"

#include "model/json.h"
#include "base/paths.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define WHOLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static rosa_status no_memory(const char *path, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory for the list of its files", path);
}

rosa_status shards_make_room(struct checkpoint *checkpoint, size_t count, rosa_error *err)
{
	checkpoint->files = calloc(count, sizeof(*checkpoint->files));
	checkpoint->mappings = calloc(count, sizeof(*checkpoint->mappings));
	checkpoint->shards = calloc(count, sizeof(*checkpoint->shards));
	if (!checkpoint->files || !checkpoint->mappings || !checkpoint->shards)
		return no_memory(checkpoint->path.text, err);
	checkpoint->files_count = count;
	return ROSA_OK;
}

static rosa_status open_shard(struct checkpoint *checkpoint, size_t i, const char *path, rosa_error *err)
{
	struct mapping *mapping = &checkpoint->mappings[i];
	rosa_status status;

	checkpoint->files[i] = path_of(path);
	status = mapping_open(mapping, path, err);
	if (status == ROSA_OK)
		status = safetensors_read(mapping->data, mapping->size, checkpoint->files[i].text,
					  &checkpoint->shards[i], err);
	return status;
}

/* The shards' tensors as one list. */
static rosa_status join(struct checkpoint *checkpoint, rosa_error *err)
{
	const struct tensors **parts = calloc(checkpoint->files_count, sizeof(*parts));
	rosa_status status;

	if (!parts)
		return no_memory(checkpoint->path.text, err);
	for (size_t i = 0; i < checkpoint->files_count; i++)
		parts[i] = &checkpoint->shards[i].tensors;
	status = tensors_join(parts, checkpoint->files_count, &checkpoint->tensors, err);
	free(parts);
	return status;
}

rosa_status shards_open_file(struct checkpoint *checkpoint, const char *path, rosa_error *err)
{
	rosa_status status = shards_make_room(checkpoint, 1, err);

	if (status == ROSA_OK)
		status = open_shard(checkpoint, 0, path, err);
	return status == ROSA_OK ? join(checkpoint, err) : status;
}

/* -------------------------------------------------------------------------------------------------------- index -- */

/* Names of files, borrowed from the index. */
struct names {
	const char **all; /* sorted, each once */
	size_t count;
};

static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static rosa_status read_name(struct json value, const char **name, rosa_error *err)
{
	rosa_status status = json_as_string(value, name, err);

	if (status == ROSA_OK && (strchr(*name, '/') || **name == '.' || !weight_name_is_valid(*name, strlen(*name))))
		return json_refuse(value, err, "%.60s is not the name of a file beside the index", *name);
	return status;
}

static rosa_status collect_names(struct json map, struct names *names, rosa_error *err)
{
	struct json_walk walk = {0};
	const char *tensor;
	struct json value;
	size_t count = 0;
	rosa_status status = ROSA_OK;

	if (json_count(map) == 0)
		return json_refuse(map, err, "is empty");
	names->all = calloc(json_count(map), sizeof(*names->all));
	if (!names->all)
		return no_memory(map.file, err);
	while (status == ROSA_OK && json_next(map, &walk, &tensor, &value))
		status = read_name(value, &names->all[count++], err);
	if (status != ROSA_OK)
		return status;
	qsort(names->all, count, sizeof(*names->all), compare);
	for (size_t i = 0; i < count; i++) {
		if (i == 0 || strcmp(names->all[i], names->all[names->count - 1]) != 0)
			names->all[names->count++] = names->all[i];
	}
	return ROSA_OK;
}

static rosa_status check_promises(const struct checkpoint *checkpoint, struct json map, const struct names *names,
				  rosa_error *err)
{
	struct json_walk walk = {0};
	const char *tensor, *name;
	struct json value;
	rosa_status status = ROSA_OK;

	while (status == ROSA_OK && json_next(map, &walk, &tensor, &value)) {
		status = json_as_string(value, &name, err);
		if (status != ROSA_OK)
			break;
		const char **at = bsearch(&name, names->all, names->count, sizeof(*names->all), compare);
		if (!at || !tensors_find(&checkpoint->shards[at - names->all].tensors, tensor))
			status = rosa_fail(err, ROSA_EFORMAT, "%s: the tensor %.80s is said to be in %.60s, but is not",
					   map.file, tensor, name);
	}
	return status;
}

static rosa_status open_index(struct checkpoint *checkpoint, const char *folder, struct json root, rosa_error *err)
{
	struct names names = {NULL, 0};
	struct json map;
	rosa_status status = json_get_object(root, "weight_map", JSON_NEEDED, &map, err);

	if (status == ROSA_OK)
		status = collect_names(map, &names, err);
	if (status == ROSA_OK)
		status = shards_make_room(checkpoint, names.count, err);
	for (size_t i = 0; i < names.count && status == ROSA_OK; i++)
		status = open_shard(checkpoint, i, path_join(folder, names.all[i]).text, err);
	if (status == ROSA_OK)
		status = check_promises(checkpoint, map, &names, err);
	free(names.all);
	return status == ROSA_OK ? join(checkpoint, err) : status;
}

rosa_status shards_open_folder(struct checkpoint *checkpoint, const char *folder, rosa_error *err)
{
	const struct path whole = path_join(folder, WHOLE), index = path_join(folder, INDEX);
	struct json root = {0};
	rosa_status status;

	if (path_exists(whole.text))
		return shards_open_file(checkpoint, whole.text, err);
	if (!path_exists(index.text))
		return rosa_fail(err, ROSA_EIO,
				 "%s: has neither " WHOLE " nor " INDEX "; save the model with safetensors", folder);
	status = json_load(index.text, &root, err);
	if (status == ROSA_OK)
		status = open_index(checkpoint, folder, root, err);
	json_free(&root);
	return status;
}
