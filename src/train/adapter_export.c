/*
 * An adapter as it is used.
 *
 * A checkpoint holds what training needs: float32 numbers and the optimiser's moments, four times as much as using
 * the adapter takes. This copies only what is used. Each file replaces an older one at once, and the configuration
 * comes last: the digest in it belongs to the new tensors, so a copy that was interrupted is noticed when it is opened.
 */
#include "train/adapter_export.h"

#include "model/pointer.h"

#include "base/file.h"
#include "base/folders.h"
#include "base/paths.h"
#include "base/status.h"
#include "train/adapter_config.h"
#include "train/resume.h"
#include "train/safetensors_write.h"
#include "train/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct file_options durable = {.durable = true};

/* Numbers of a tensor in a mapped file, which is in one of the plain formats. */
static void fetch(void *context, const struct tensor_source *tensor, size_t first, size_t count, float *numbers)
{
	const struct tensor *from = tensor->from;

	(void)context;
	format_widen(from->format, (const uint8_t *)from->data + first * format_info[from->format].bytes, count,
		     numbers);
}

/* The tensors of a file, to be written. From malloc. */
static rosa_status list_tensors(const struct tensors *from, const char *path, struct tensor_source **list,
				rosa_error *err)
{
	*list = calloc(from->count + 1, sizeof(**list));
	if (!*list)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory to copy it", path);
	for (size_t i = 0; i < from->count; i++) {
		const struct tensor *tensor = &from->all[i];

		if (tensor->dims < 1 || tensor->dims > 2)
			return rosa_fail(err, ROSA_EFORMAT, "%.150s: %.80s has %d dimensions; 1 or 2 are expected",
					 path, tensor->name, tensor->dims);
		(*list)[i] = (struct tensor_source){
		    tensor->name, tensor->dims, {tensor->shape[0], tensor->dims > 1 ? tensor->shape[1] : 1}, tensor};
	}
	return ROSA_OK;
}

static rosa_status save_in(const char *folder, const char *name, const void *data, size_t size, rosa_error *err)
{
	return file_save(path_join(folder, name).text, data, size, &durable, err);
}

static rosa_status write_tensors(const char *folder, const char *name, const struct tensor_source *list, size_t count,
				 enum format format, const char *const *metadata, rosa_error *err)
{
	struct file_writer file = FILE_WRITER_INIT;
	rosa_status status = file_create(&file, path_join(folder, name).text, &durable, err);

	if (status == ROSA_OK)
		status = safetensors_write(&file, list, count, format, metadata, fetch, NULL, err);
	return file_finish(&file, status, err);
}

/* ------------------------------------------------------------------------------------------------------ adapter -- */

static rosa_status export_config(const struct adapter *adapter, const char *to, const char *digest, rosa_error *err)
{
	float *scales = calloc(adapter->layer_count, sizeof(*scales));
	struct json_text text = {0};
	rosa_status status;

	if (!scales)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory to copy it", adapter->path.text);
	for (size_t i = 0; i < adapter->layer_count; i++)
		scales[i] = adapter->layers[i].scale;
	const struct adapter_description description = {
	    adapter->model_type, adapter->base_name, adapter->width, adapter->layer_count,
	    &adapter->options,   adapter->steps,     digest,         scales};

	adapter_config_write(&description, &text);
	status = json_text_save(&text, path_join(to, ADAPTER_CONFIG).text, &durable, err);
	free(scales);
	return status;
}

static rosa_status export_tensors(const struct adapter *adapter, const char *to, enum format format, rosa_error *err)
{
	const size_t count = adapter->file.tensors.count;
	struct tensor_source *list = NULL;
	char digest[SAFETENSORS_DIGEST] = "";
	rosa_status status = list_tensors(&adapter->file.tensors, adapter->tensors_path.text, &list, err);

	if (status == ROSA_OK)
		status = safetensors_digest(list, count, format, fetch, NULL, digest, err);
	if (status == ROSA_OK) {
		const char *const metadata[] = {"format", "pt", "tensors", digest, NULL};

		status = write_tensors(to, ADAPTER_TENSORS, list, count, format, metadata, err);
	}
	if (status == ROSA_OK)
		status = export_config(adapter, to, digest, err);
	free(list);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- model -- */

static rosa_status export_weights(const char *path, const char *to, enum format format, rosa_error *err)
{
	static const char *const metadata[] = {"format", "pt", NULL};
	struct mapping mapping = {0};
	struct safetensors file = {0};
	struct tensor_source *list = NULL;
	rosa_status status = mapping_open(&mapping, path, err);

	if (status == ROSA_OK)
		status = safetensors_read(mapping.data, mapping.size, path, &file, err);
	if (status == ROSA_OK)
		status = list_tensors(&file.tensors, path, &list, err);
	if (status == ROSA_OK)
		status = write_tensors(to, SNAPSHOT_MODEL, list, file.tensors.count, format, metadata, err);
	free(list);
	safetensors_free(&file);
	mapping_close(&mapping);
	return status;
}

/* config.json says of what type the weights are; all else stays. */
static rosa_status export_model_config(const struct mapping *config, const char *to, enum format format,
				       rosa_error *err)
{
	static const char key[] = "\"torch_dtype\": \"float32\"";
	struct json_text whole = {0}, text = {0};
	rosa_status status;

	json_text_add(&whole, "%.*s", (int)config->size, (const char *)config->data);
	const char *at = whole.failed || format == FORMAT_F32 ? NULL : strstr(whole.data, key);
	if (at)
		json_text_add(&text, "%.*s\"torch_dtype\": \"bfloat16\"%s", (int)(at - whole.data), whole.data,
			      at + strlen(key));
	if (whole.failed || text.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write there", to);
	else
		status =
		    save_in(to, SNAPSHOT_MODEL_CONFIG, at ? text.data : whole.data, at ? text.size : whole.size, err);
	json_text_free(&whole);
	json_text_free(&text);
	return status;
}

/* One file of a checkpoint: what only training needs stays behind, and the adapter is copied by others. */
static rosa_status export_file(const char *from, const char *name, const char *to, enum format format, rosa_error *err)
{
	static const char *const behind[] = {SNAPSHOT_MOMENTS, SNAPSHOT_ADAPTER, SNAPSHOT_ADAPTER_CONFIG, RESUME_CONFIG,
					     "state.json"};
	const struct path path = path_join(from, name);
	struct mapping mapping = {0};
	rosa_status status;

	for (size_t i = 0; i < sizeof(behind) / sizeof(behind[0]); i++)
		if (strcmp(name, behind[i]) == 0)
			return ROSA_OK;
	if (strcmp(name, SNAPSHOT_MODEL) == 0)
		return export_weights(path.text, to, format, err);
	if (!path_is_file(path.text))
		return ROSA_OK;
	status = mapping_open(&mapping, path.text, err);
	if (status == ROSA_OK && strcmp(name, SNAPSHOT_MODEL_CONFIG) == 0)
		status = export_model_config(&mapping, to, format, err);
	else if (status == ROSA_OK)
		status = save_in(to, name, mapping.data, mapping.size, err);
	mapping_close(&mapping);
	return status;
}

/* The model that was trained with the adapter, if there is one in its folder. */
static rosa_status export_model(const char *from, const char *to, enum format format, rosa_error *err)
{
	const bool there = path_is_file(path_join(from, SNAPSHOT_MODEL).text);
	DIR *folder = there ? opendir(from) : NULL;
	rosa_status status = ROSA_OK;

	if (there && !folder)
		return rosa_fail(err, ROSA_EIO, "%s: %s", from, strerror(errno));
	for (const struct dirent *entry; folder && status == ROSA_OK && (entry = readdir(folder));)
		if (entry->d_name[0] != '.')
			status = export_file(from, entry->d_name, to, format, err);
	if (folder)
		closedir(folder);
	return status;
}

/* ---------------------------------------------------------------------------------------------------------- all -- */

static rosa_status make_folder(const char *path, bool replace, rosa_error *err)
{
	if (!replace && path_is_file(path_join(path, ADAPTER_CONFIG).text))
		return rosa_fail(err, ROSA_EIO, "%s: has an adapter already; name another folder, or remove it", path);
	return folder_make(path, err);
}

rosa_status adapter_export(const char *from, const char *to, enum format format, bool replace, rosa_error *err)
{
	struct adapter adapter;
	rosa_status status = adapter_open(from, NULL, &adapter, err);

	if (status != ROSA_OK)
		return status;
	status = make_folder(to, replace, err);
	if (status == ROSA_OK)
		status = export_model(adapter.path.text, to, format, err);
	if (status == ROSA_OK)
		status = export_file(adapter.path.text, POINTER_FILE, to, format, err);
	if (status == ROSA_OK)
		status = export_tensors(&adapter, to, format, err);
	adapter_close(&adapter);
	return status;
}
