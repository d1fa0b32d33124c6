/*
 * Adapter folders.
 *
 * The Python package writes them: adapter_config.json says how the adapters were attached and to what, and
 * adapter_model.safetensors has the tensors, named layers.<number>.<parameter>. Both carry the digest of the tensors,
 * by which a pair torn apart is noticed.
 *
 * Options are of two kinds. Those that say how an adapter starts and learns do not matter here. All others change what
 * it computes, so one that is not known here is refused: a later version may have written it, and to pass over it would
 * be to compute something else.
 */
#include "model/adapter.h"

#include "model/claims.h"
#include "model/json.h"
#include "base/paths.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG  "adapter_config.json"
#define TENSORS "adapter_model.safetensors"
#define VERSION 1 /* of the folder's format */

/* ------------------------------------------------------------------------------------------------ configuration -- */

static rosa_status check_version(struct json root, rosa_error *err)
{
	const char *writer = "a later version";
	size_t version;
	rosa_status status = json_get_size(root, "format", JSON_NEEDED, &version, err);

	if (status == ROSA_OK)
		status = json_get_string(root, "rosatune_version", JSON_OPTIONAL, &writer, err);
	if (status == ROSA_OK && (version < 1 || version > VERSION))
		return json_refuse(json_find(root, "format"), err,
				   "is %zu, written by rosatune %.20s; this is rosatune %s, which reads up to %d",
				   version, writer, rosa_version(), VERSION);
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

/* The shape of the model it was trained with against that of the one at hand. */
static rosa_status check_base(struct json root, const struct model_config *config, rosa_error *err)
{
	const struct {
		const char *name;
		size_t value;
	} sizes[] = {{"hidden_size", config->width}, {"num_hidden_layers", config->layers}};
	static const char *const known[] = {"model_type", "hidden_size", "num_hidden_layers"};
	struct json base;
	const char *type;
	rosa_status status = json_get_object(root, "base_model", JSON_NEEDED, &base, err);

	if (status == ROSA_OK)
		status = check_fields(base, sizeof(known) / sizeof(known[0]), known, err);
	if (status == ROSA_OK)
		status = json_get_string(base, "model_type", JSON_NEEDED, &type, err);
	if (status == ROSA_OK && strcmp(type, architecture_names[config->architecture]) != 0)
		return json_refuse(json_find(base, "model_type"), err,
				   "the adapter was trained for a %.40s model, this is a %s", type,
				   architecture_names[config->architecture]);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == ROSA_OK; i++) {
		size_t value;
		status = json_get_size(base, sizes[i].name, JSON_NEEDED, &value, err);
		if (status == ROSA_OK && value != sizes[i].value)
			return json_refuse(json_find(base, sizes[i].name), err,
					   "the adapter was trained for a model with %zu, this one has %zu", value,
					   sizes[i].value);
	}
	return status;
}

/* A word among those known; *place stays as it is if the field is missing. `known` ends with NULL. */
static rosa_status read_word(struct json options, const char *name, const char *const *known, int *place,
			     rosa_error *err)
{
	const char *word = NULL;
	rosa_status status = json_get_string(options, name, JSON_OPTIONAL, &word, err);

	if (status != ROSA_OK || !word)
		return status;
	for (int i = 0; known[i]; i++) {
		if (strcmp(word, known[i]) == 0) {
			*place = i;
			return ROSA_OK;
		}
	}
	return json_refuse(json_find(options, name), err,
			   "is %.40s, which is not known here; is it of a later version?", word);
}

static rosa_status check_known(struct json options, rosa_error *err)
{
	static const char *const known[] = {
	    "window", "sinks", "bits", "fusion", "layers", "first_global_layers", "policy", "fold", "max_match",
	    /* of learning, but for "qk", which also says whether q has a tensor */
	    "qk", "e_start", "qk_grad", "credit", "key_credit", "suffix", "explore", "flip_share", "slope"};

	return check_fields(options, sizeof(known) / sizeof(known[0]), known, err);
}

/* What the options say beyond the adapter's own fields. */
struct reading {
	struct json options;
	bool shared;
};

static rosa_status read_words(struct reading *reading, struct adapter *adapter, rosa_error *err)
{
	static const char *const fusions[] = {[ROSA_POST] = "post", [ROSA_PRE] = "pre", NULL};
	static const char *const policies[] = {
	    [ROSA_READABLE] = "readable", [ROSA_LITERAL] = "literal", [ROSA_INCLUSIVE] = "inclusive", NULL};
	static const char *const starts[] = {"aligned", "separate", "shared", NULL};
	int fusion = ROSA_POST, policy = ROSA_READABLE, start = 0;
	rosa_status status = read_word(reading->options, "fusion", fusions, &fusion, err);

	if (status == ROSA_OK)
		status = read_word(reading->options, "policy", policies, &policy, err);
	if (status == ROSA_OK)
		status = read_word(reading->options, "qk", starts, &start, err);
	adapter->fusion = (rosa_fusion)fusion;
	adapter->policy = (rosa_policy)policy;
	reading->shared = start == 2;
	return status;
}

static rosa_status read_numbers(struct json options, struct adapter *adapter, rosa_error *err)
{
	size_t bits = 0, max_match = 0;
	struct {
		const char *name;
		enum json_need need;
		size_t *value, least, most;
	} numbers[] = {
	    {"bits", JSON_NEEDED, &bits, ROSA_MIN_BITS, ROSA_MAX_BITS},
	    {"window", JSON_NEEDED, &adapter->window, 0, ROSA_MAX_STEPS},
	    {"sinks", JSON_OPTIONAL, &adapter->sinks, 0, ROSA_MAX_STEPS},
	    {"first_global_layers", JSON_OPTIONAL, &adapter->first_global_layers, 0, adapter->layer_count},
	    {"max_match", JSON_OPTIONAL, &max_match, 0, UINT32_MAX},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && status == ROSA_OK; i++) {
		status = json_get_size(options, numbers[i].name, numbers[i].need, numbers[i].value, err);
		if (status == ROSA_OK && (*numbers[i].value < numbers[i].least || *numbers[i].value > numbers[i].most))
			return json_refuse(json_find(options, numbers[i].name), err, "is %zu; it must be %zu to %zu",
					   *numbers[i].value, numbers[i].least, numbers[i].most);
	}
	adapter->bits = (int)bits;
	adapter->max_match = (uint32_t)max_match;
	adapter->fold = true;
	if (status == ROSA_OK)
		status = json_get_bool(options, "fold", JSON_OPTIONAL, &adapter->fold, err);
	if (status == ROSA_OK && adapter->sinks && !adapter->window)
		return json_refuse(json_find(options, "sinks"), err, "is %zu beside a window of 0, which sees all",
				   adapter->sinks);
	return status;
}

static rosa_status read_options(struct json root, size_t width, struct reading *reading, struct adapter *adapter,
				rosa_error *err)
{
	rosa_status status = json_get_object(root, "options", JSON_NEEDED, &reading->options, err);

	if (status == ROSA_OK)
		status = check_known(reading->options, err);
	if (status == ROSA_OK)
		status = read_words(reading, adapter, err);
	if (status == ROSA_OK)
		status = read_numbers(reading->options, adapter, err);
	if (status == ROSA_OK && width % (size_t)adapter->bits != 0)
		return json_refuse(json_find(reading->options, "bits"), err,
				   "is %d, of which the model's width %zu is no multiple", adapter->bits, width);
	return status;
}

/* ------------------------------------------------------------------------------------------------------ tensors -- */

static rosa_status take_layer(struct claims *claims, size_t layer, size_t width, bool shared, struct adapter *adapter,
			      rosa_error *err)
{
	struct adapter_layer *at = &adapter->layers[layer];
	const struct {
		const char *name;
		const struct tensor **tensor;
		size_t columns;
		bool absent;
	} parts[] = {
	    {"k_proj.weight", &at->k, width, false},
	    {"q_proj.weight", &at->q, width, shared},
	    {"v_proj.weight", &at->v, width, false},
	    {"out_proj.weight", &at->out, width, false},
	    {"e0", &at->e0, 0, false},
	    {"e1", &at->e1, 0, false},
	    {"a0", &at->a0, 0, adapter->fusion != ROSA_PRE},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; i++) {
		char name[64];
		if (parts[i].absent)
			continue;
		snprintf(name, sizeof(name), "layers.%zu.%s", layer, parts[i].name);
		status = claims_take(claims, name, width, parts[i].columns, false, parts[i].tensor, err);
	}
	if (shared)
		at->q = at->k;
	return status;
}

static rosa_status take_layers(struct claims *claims, size_t width, const struct reading *reading,
			       struct adapter *adapter, rosa_error *err)
{
	struct json layers;
	rosa_status status = json_get_array(reading->options, "layers", JSON_NEEDED, &layers, err);

	for (size_t i = 0; status == ROSA_OK && i < json_count(layers); i++) {
		size_t layer;
		status = json_as_size(json_at(layers, i), &layer, err);
		if (status != ROSA_OK)
			return status;
		if (layer >= adapter->layer_count || layer < adapter->first_global_layers)
			return json_refuse(json_at(layers, i), err, "is %zu; layers with an adapter are %zu to %zu",
					   layer, adapter->first_global_layers, adapter->layer_count - 1);
		if (adapter->layers[layer].k)
			return json_refuse(json_at(layers, i), err, "is %zu, which was named before", layer);
		status = take_layer(claims, layer, width, reading->shared, adapter, err);
	}
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
				 adapter->tensors_path, found ? found : "missing", wanted);
	return status;
}

static rosa_status read_tensors(struct json root, size_t width, const struct reading *reading, struct adapter *adapter,
				rosa_error *err)
{
	const struct tensor *left;
	struct claims claims;
	rosa_status status = mapping_open(&adapter->mapping, adapter->tensors_path, err);

	if (status == ROSA_OK)
		status = safetensors_read(adapter->mapping.data, adapter->mapping.size, adapter->tensors_path,
					  &adapter->file, err);
	if (status == ROSA_OK)
		status = check_digest(root, adapter, err);
	if (status == ROSA_OK)
		status = claims_new(&claims, &adapter->file.tensors, adapter->tensors_path, err);
	if (status != ROSA_OK)
		return status;
	status = take_layers(&claims, width, reading, adapter, err);
	left = claims_left(&claims, NULL);
	if (status == ROSA_OK && left)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: the tensor %.80s has no place in this adapter",
				   adapter->tensors_path, left->name);
	claims_free(&claims);
	return status;
}

/* --------------------------------------------------------------------------------------------------------- open -- */

static rosa_status read_folder(const char *config_path, const struct checkpoint *checkpoint, struct adapter *adapter,
			       rosa_error *err)
{
	size_t width = checkpoint->config.width;
	struct reading reading = {0};
	struct json root = {0};
	rosa_status status = json_load(config_path, &root, err);

	if (status == ROSA_OK)
		status = check_version(root, err);
	if (status == ROSA_OK)
		status = check_base(root, &checkpoint->config, err);
	if (status == ROSA_OK)
		status = read_options(root, width, &reading, adapter, err);
	if (status == ROSA_OK)
		status = read_tensors(root, width, &reading, adapter, err);
	json_free(&root);
	return status;
}

rosa_status adapter_open(const char *path, const struct checkpoint *checkpoint, struct adapter *adapter,
			 rosa_error *err)
{
	char *config_path = path_join(path, CONFIG);
	rosa_status status;

	memset(adapter, 0, sizeof(*adapter));
	adapter->path = strdup(path);
	adapter->tensors_path = path_join(path, TENSORS);
	adapter->layer_count = checkpoint->config.layers;
	adapter->layers = calloc(adapter->layer_count, sizeof(*adapter->layers));
	if (!config_path || !adapter->path || !adapter->tensors_path || !adapter->layers)
		status = rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory to open it", path);
	else if (!path_is_file(config_path))
		status = rosa_fail(
		    err, ROSA_EIO,
		    "%s: has no " CONFIG "; name a folder that rosatune tune or rosatune.hf.save_adapter wrote", path);
	else
		status = read_folder(config_path, checkpoint, adapter, err);
	for (size_t i = 0; i < adapter->file.tensors.count && status == ROSA_OK; i++)
		adapter->parameters += tensor_numbers(&adapter->file.tensors.all[i]);
	free(config_path);
	if (status != ROSA_OK)
		adapter_close(adapter);
	return status;
}

void adapter_close(struct adapter *adapter)
{
	free(adapter->layers);
	safetensors_free(&adapter->file);
	mapping_close(&adapter->mapping);
	free(adapter->tensors_path);
	free(adapter->path);
	memset(adapter, 0, sizeof(*adapter));
}
