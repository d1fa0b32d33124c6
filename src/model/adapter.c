/*
 * Adapter folders.
 *
 * adapter_config.json says how the adapters were attached and to what, and adapter_model.safetensors has the tensors,
 * named layers.<number>.<parameter>, and seen.<parameter> for the seen-token head. Both carry the digest of the
 * tensors, by which files of two different saves are told apart. The Python package and `rosatune tune` write the same
 * folder.
 *
 * An option that is not known here is refused: a later version may have written it, and to ignore it would be to
 * compute something else.
 */
#include "model/adapter.h"

#include "model/adapter_find.h"
#include "model/claims.h"
#include "model/json.h"
#include "model/seen.h"
#include "base/paths.h"
#include "base/status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG  ADAPTER_CONFIG
#define TENSORS ADAPTER_TENSORS
#define VERSION 2 /* of the folder's format; 1 had only what adapter_options_paper describes */

/* ------------------------------------------------------------------------------------------------ configuration -- */

static rosa_status read_version(struct json root, size_t *version, rosa_error *err)
{
	const char *writer = "a later version";
	const struct json peft = json_find(root, "peft_type");
	rosa_status status;

	if (json_there(peft) && !json_there(json_find(root, "format"))) {
		const char *type = "PEFT";

		json_as_string(peft, &type, NULL);
		return json_refuse(peft, err,
				   "this is a PEFT adapter (%.20s), which is not read here; --adapter takes a ROSA "
				   "adapter, as rosatune tune or rosatune.hf.save_adapter writes it",
				   type);
	}
	status = json_get_size(root, "format", JSON_NEEDED, version, err);

	if (status == ROSA_OK)
		status = json_get_string(root, "rosatune_version", JSON_OPTIONAL, &writer, err);
	if (status == ROSA_OK && (*version < 1 || *version > VERSION))
		return json_refuse(json_find(root, "format"), err,
				   "is %zu, written by rosatune %.20s; this is rosatune %s, which reads up to %d",
				   *version, writer, rosa_version(), VERSION);
	return status;
}

/* Refuses fields that are not among the known ones. */
static rosa_status check_fields(struct json object, size_t count, const char *const *known, rosa_error *err)
{
	struct json_walk walk = {0};
	const char *name;
	struct json value;

	while (json_next(object, &walk, &name, &value)) {
		size_t i = 0;
		while (i < count && strcmp(name, known[i]) != 0)
			i++;
		if (i == count)
			return json_refuse(object, err, "has %.40s, which is not known here; is it of a later version?",
					   name);
	}
	return ROSA_OK;
}

/* What the model that it was trained with is called, and how many steps that took. */
static rosa_status read_origin(struct json root, struct adapter *adapter, rosa_error *err)
{
	const char *name = NULL;
	size_t steps = 0;
	rosa_status status = json_get_string(root, "base_model_name_or_path", JSON_OPTIONAL, &name, err);

	if (status == ROSA_OK)
		status = json_get_size(root, "steps", JSON_OPTIONAL, &steps, err);
	adapter->steps = steps;
	if (status == ROSA_OK && name && *name && !(adapter->base_name = strdup(name)))
		return rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory to open it", adapter->path.text);
	return status;
}

/* The shape of the model it was trained with, against that of `config` (NULL: any will do). */
static rosa_status read_base(struct json root, const struct model_config *config, struct adapter *adapter,
			     rosa_error *err)
{
	const struct {
		const char *name;
		size_t here, *value, most;
	} sizes[] = {{"hidden_size", config ? config->width : 0, &adapter->width, 1 << 20},
		     {"num_hidden_layers", config ? config->layers : 0, &adapter->layer_count, 1 << 16}};
	static const char *const known[] = {"model_type", "hidden_size", "num_hidden_layers"};
	struct json base;
	const char *type;
	rosa_status status = json_get_object(root, "base_model", JSON_NEEDED, &base, err);

	if (status == ROSA_OK)
		status = check_fields(base, sizeof(known) / sizeof(known[0]), known, err);
	if (status == ROSA_OK)
		status = json_get_string(base, "model_type", JSON_NEEDED, &type, err);
	if (status == ROSA_OK && config && strcmp(type, architectures[config->architecture].name) != 0)
		return json_refuse(json_find(base, "model_type"), err,
				   "the adapter was trained for a %.40s model, this is a %s", type,
				   architectures[config->architecture].name);
	if (status == ROSA_OK)
		snprintf(adapter->model_type, sizeof(adapter->model_type), "%s", type);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == ROSA_OK; i++) {
		status = json_get_size(base, sizes[i].name, JSON_NEEDED, sizes[i].value, err);
		if (status == ROSA_OK && config && *sizes[i].value != sizes[i].here)
			return json_refuse(json_find(base, sizes[i].name), err,
					   "the adapter was trained for a model with %zu, this one has %zu",
					   *sizes[i].value, sizes[i].here);
		if (status == ROSA_OK && (!*sizes[i].value || *sizes[i].value > sizes[i].most))
			return json_refuse(json_find(base, sizes[i].name), err, "is %zu; it must be 1 to %zu",
					   *sizes[i].value, sizes[i].most);
	}
	return status;
}

static rosa_status read_options(struct json root, const char *file, struct adapter *adapter, rosa_error *err)
{
	static const char *const needed[] = {"bits", "window", "layers"};
	const struct key_place place = {.file = file, .object = "options."};
	struct json options;
	rosa_status status = json_get_object(root, "options", JSON_NEEDED, &options, err);

	adapter->options = adapter->format == 1 ? adapter_options_paper() : adapter_options_default();
	/* what fields that are missing meant when the folder was written, whatever their default is now */
	adapter->options.v_from = V_LAYER;
	adapter->options.seen = 0;
	if (status == ROSA_OK)
		status = keys_read(&adapter_option_keys, &adapter->options, options, &place, err);
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) && status == ROSA_OK; i++)
		if (!json_there(json_find(options, needed[i])))
			return json_refuse(options, err, "has no %s", needed[i]);
	return status;
}

static rosa_status check_options(const struct adapter *adapter, const struct model_config *config, const char *file,
				 rosa_error *err)
{
	const struct adapter_shape shape = {adapter->width, adapter->layer_count, config ? config->vocabulary : 0};
	char prefix[256];

	snprintf(prefix, sizeof(prefix), "%.200s: options.", file);
	return adapter_options_check(&adapter->options, &shape, prefix, err);
}

/* "scales": a number per layer. Without units it may be missing; all are 1 then. */
static rosa_status read_scales(struct json root, struct adapter *adapter, rosa_error *err)
{
	struct json scales;
	rosa_status status = json_get_array(root, "scales", JSON_OPTIONAL, &scales, err);
	const bool there = status == ROSA_OK && json_there(scales);

	if (status == ROSA_OK && !there && adapter->options.units > 0)
		return json_refuse(root, err,
				   "has no scales, which options.units (%g) needs; save the adapter again, or set "
				   "units to 0 if it was trained without",
				   (double)adapter->options.units);
	if (there && json_count(scales) != adapter->layer_count)
		return json_refuse(scales, err, "has %zu numbers; the model has %zu layers", json_count(scales),
				   adapter->layer_count);
	for (size_t i = 0; i < adapter->layer_count && status == ROSA_OK; i++) {
		double scale = 1;

		if (there)
			status = json_as_number(json_at(scales, i), &scale, err);
		if (status == ROSA_OK && !(scale > 0 && scale <= 1e30))
			return json_refuse(json_at(scales, i), err, "is %g; it must be above 0", scale);
		adapter->layers[i].scale = (float)scale;
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------ tensors -- */

/* A tensor of a layer that has an adapter. */
struct part {
	const char *name;
	const struct tensor **tensor;
	size_t rows, columns;
	bool there;
};

enum { LAYER_PARTS = 10 };

static void list_parts(const struct adapter_options *o, size_t layer, size_t width, struct adapter_layer *at,
		       struct part parts[LAYER_PARTS])
{
	const size_t links = adapter_links(o, layer), gains = adapter_gain_rows(o, layer, width);
	const bool qk = adapter_learns_qk(o, layer);
	/* the read-out of one read is a vector, that of several a matrix */
	const size_t rows = links > 1 ? links : width, columns = links > 1 ? width : 0;
	const struct part all[LAYER_PARTS] = {
	    {"v_proj.weight", &at->v, width, width, true},
	    {"out_proj.weight", &at->out, width, width, true},
	    {"k_proj.weight", &at->k, width, width, qk},
	    {"q_proj.weight", &at->q, width, width, qk && o->qk != QK_SHARED},
	    {"e0", &at->e0, rows, columns, true},
	    {"e1", &at->e1, rows, columns, true},
	    {"gain", &at->gain, gains, ADAPTER_GAINS, o->gain},
	    {"gate.weight", &at->gate, width, 0, o->gate},
	    {"gate.bias", &at->bias, 1, 0, o->gate},
	    {"a0", &at->a0, width, 0, o->fusion == ROSA_PRE},
	};

	memcpy(parts, all, sizeof(all));
}

uint64_t adapter_layer_parameters(const struct adapter_options *options, size_t layer, size_t width)
{
	struct adapter_layer none;
	struct part parts[LAYER_PARTS];
	uint64_t count = 0;

	list_parts(options, layer, width, &none, parts);
	for (size_t i = 0; i < LAYER_PARTS; i++)
		count += parts[i].there ? (uint64_t)parts[i].rows * (parts[i].columns ? parts[i].columns : 1) : 0;
	return count;
}

static rosa_status take_layer(struct claims *claims, size_t layer, struct adapter *adapter, rosa_error *err)
{
	struct adapter_layer *at = &adapter->layers[layer];
	struct part parts[LAYER_PARTS];
	rosa_status status = ROSA_OK;

	list_parts(&adapter->options, layer, adapter->width, at, parts);
	for (size_t i = 0; i < LAYER_PARTS && status == ROSA_OK; i++) {
		char name[64];
		if (!parts[i].there)
			continue;
		snprintf(name, sizeof(name), "layers.%zu.%s", layer, parts[i].name);
		status = claims_take(claims, name, parts[i].rows, parts[i].columns, false, parts[i].tensor, err);
	}
	if (adapter->options.qk == QK_SHARED)
		at->q = at->k;
	return status;
}

static rosa_status take_layers(struct claims *claims, struct adapter *adapter, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < adapter->layer_count && status == ROSA_OK; i++)
		if (adapter_covers(&adapter->options, i))
			status = take_layer(claims, i, adapter, err);
	return status;
}

static rosa_status take_seen(struct claims *claims, struct adapter *adapter, rosa_error *err)
{
	const size_t rank = (size_t)adapter->options.seen, width = adapter->width;
	struct adapter_seen *at = &adapter->seen;
	const struct {
		const char *name;
		const struct tensor **tensor;
		size_t rows, columns;
	} parts[] = {{"seen.table", &at->table, SEEN_COUNTS, SEEN_RANKS},
		     {"seen.gate", &at->gate, width, 0},
		     {"seen.query", &at->query, rank, width},
		     {"seen.key", &at->key, rank, width}};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; rank && i < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; i++)
		status =
		    claims_take(claims, parts[i].name, parts[i].rows, parts[i].columns, false, parts[i].tensor, err);
	return status;
}

static rosa_status check_digest(struct json root, const struct adapter *adapter, rosa_error *err)
{
	const char *wanted, *found = safetensors_metadata(&adapter->file, "tensors");
	rosa_status status = json_get_string(root, "tensors", JSON_NEEDED, &wanted, err);

	if (status == ROSA_OK && (!found || strcmp(found, wanted) != 0))
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: belongs to another " CONFIG
				 " (its digest is %.32s, the one named there %.32s); was a "
				 "save interrupted?",
				 adapter->tensors_path.text, found ? found : "missing", wanted);
	return status;
}

static rosa_status read_tensors(struct json root, struct adapter *adapter, rosa_error *err)
{
	const struct tensor *left;
	struct claims claims;
	rosa_status status = mapping_open(&adapter->mapping, adapter->tensors_path.text, err);

	if (status == ROSA_OK)
		status = safetensors_read(adapter->mapping.data, adapter->mapping.size, adapter->tensors_path.text,
					  &adapter->file, err);
	if (status == ROSA_OK)
		status = check_digest(root, adapter, err);
	if (status == ROSA_OK)
		status = claims_new(&claims, &adapter->file.tensors, adapter->tensors_path.text, err);
	if (status != ROSA_OK)
		return status;
	status = take_layers(&claims, adapter, err);
	if (status == ROSA_OK)
		status = take_seen(&claims, adapter, err);
	left = claims_left(&claims, NULL);
	if (status == ROSA_OK && left)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: the tensor %.80s has no place in this adapter",
				   adapter->tensors_path.text, left->name);
	claims_free(&claims);
	return status;
}

/* --------------------------------------------------------------------------------------------------------- open -- */

static rosa_status read_folder(const char *config_path, const struct model_config *config, struct adapter *adapter,
			       rosa_error *err)
{
	struct json root = {0};
	rosa_status status = json_load(config_path, &root, err);

	if (status == ROSA_OK)
		status = read_version(root, &adapter->format, err);
	if (status == ROSA_OK)
		status = read_origin(root, adapter, err);
	if (status == ROSA_OK)
		status = read_base(root, config, adapter, err);
	if (status == ROSA_OK)
		status = read_options(root, config_path, adapter, err);
	if (status == ROSA_OK && !(adapter->layers = calloc(adapter->layer_count, sizeof(*adapter->layers))))
		status = rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory to open it", adapter->path.text);
	if (status == ROSA_OK)
		status = check_options(adapter, config, config_path, err);
	if (status == ROSA_OK)
		status = read_scales(root, adapter, err);
	if (status == ROSA_OK)
		status = read_tensors(root, adapter, err);
	json_free(&root);
	return status;
}

rosa_status adapter_open(const char *path, const struct checkpoint *checkpoint, struct adapter *adapter,
			 rosa_error *err)
{
	rosa_status status;

	memset(adapter, 0, sizeof(*adapter));
	status = adapter_find(path, &adapter->path, err);
	adapter->tensors_path = path_join(adapter->path.text, TENSORS);
	if (status == ROSA_OK)
		status = read_folder(path_join(adapter->path.text, CONFIG).text,
				     checkpoint ? &checkpoint->config : NULL, adapter, err);
	for (size_t i = 0; i < adapter->file.tensors.count && status == ROSA_OK; i++)
		adapter->parameters += tensor_numbers(&adapter->file.tensors.all[i]);
	if (status != ROSA_OK)
		adapter_close(adapter);
	return status;
}

void adapter_close(struct adapter *adapter)
{
	free(adapter->layers);
	safetensors_free(&adapter->file);
	mapping_close(&adapter->mapping);
	free(adapter->base_name);
	memset(adapter, 0, sizeof(*adapter));
}

/* -------------------------------------------------------------------------------------------------- other models -- */

/* The letters and digits of a path, in lower case; with `last` only of its last part, without the file's ending. */
static void reduce(const char *path, bool last, char to[256])
{
	size_t length = strlen(path), used = 0;

	while (length > 1 && path[length - 1] == '/')
		length--;
	if (last) {
		static const char *const endings[] = {".gguf", ".safetensors"};
		size_t start = length;

		while (start > 0 && path[start - 1] != '/')
			start--;
		path += start;
		length -= start;
		for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
			const size_t ending = strlen(endings[i]);

			if (length > ending && strncmp(path + length - ending, endings[i], ending) == 0)
				length -= ending;
		}
	}
	if (length > 255) /* the end of a path tells more than its beginning */
		path += length - 255;
	for (size_t i = 0; i < length && used < 255 && path[i]; i++)
		if (isalnum((unsigned char)path[i]))
			to[used++] = (char)tolower((unsigned char)path[i]);
	to[used] = '\0';
}

/* Whether the names say that an adapter was trained with another model. */
static bool is_others(const struct adapter *adapter, const char *model)
{
	char trained[256], here[256], path[256], own[256];

	if (!adapter->base_name)
		return false;
	reduce(adapter->base_name, true, trained);
	reduce(model, true, here);
	reduce(model, false, path);
	reduce(adapter->path.text, false, own);
	if (strcmp(path, own) == 0) /* a trained backbone lies in the folder of its adapter */
		return false;
	return *trained && *here && !strstr(path, trained) && !strstr(trained, here);
}

bool adapter_notice(const struct adapter *adapter, const char *model, char *text, size_t size)
{
	if (!is_others(adapter, model))
		return false;
	snprintf(text, size, "%s was trained with %s, and this is %s; with other weights it reads noise",
		 adapter->path.text, adapter->base_name, model);
	return true;
}
