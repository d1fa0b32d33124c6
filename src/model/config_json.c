/*
 * The shape of a model from a Hugging Face folder.
 *
 * A missing field has the default of the model's class in transformers. Rotary positions are written in two ways:
 * rope_theta with rope_scaling beside it, or one object rope_parameters that holds both. Fields that change the
 * computation in a way that is not supported are refused; all others (training, dropout, data types) are ignored.
 */
#include "model/config.h"

#include "model/json.h"
#include "base/paths.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- checks -- */

static rosa_status check_flag(struct json root, const char *name, rosa_error *err)
{
	bool set = false;
	rosa_status status = json_get_bool(root, name, JSON_OPTIONAL, &set, err);

	if (status == ROSA_OK && set)
		return json_refuse(json_find(root, name), err, "is true; these biases are not supported");
	return status;
}

static rosa_status check_activation(struct json root, rosa_error *err)
{
	const char *name = "silu";
	rosa_status status = json_get_string(root, "hidden_act", JSON_OPTIONAL, &name, err);

	if (status == ROSA_OK && strcmp(name, "silu") != 0)
		return json_refuse(json_find(root, "hidden_act"), err, "is %.40s; only silu is supported", name);
	return status;
}

/* Attention with a window of the model's own, in some layers or all. Qwen's classes do not use it unless told. */
static rosa_status check_window(struct json root, enum architecture architecture, rosa_error *err)
{
	struct json kinds;
	bool used = architecture == LLAMA;
	size_t window = 0;
	rosa_status status = json_get_bool(root, "use_sliding_window", JSON_OPTIONAL, &used, err);

	if (status == ROSA_OK && used)
		status = json_get_size(root, "sliding_window", JSON_OPTIONAL, &window, err);
	if (status == ROSA_OK && window)
		return json_refuse(json_find(root, "sliding_window"), err,
				   "is %zu; models with a window of their own are not supported", window);
	if (status == ROSA_OK)
		status = json_get_array(root, "layer_types", JSON_OPTIONAL, &kinds, err);
	for (size_t i = 0; status == ROSA_OK && i < json_count(kinds); i++) {
		const char *kind;
		status = json_as_string(json_at(kinds, i), &kind, err);
		if (status == ROSA_OK && strcmp(kind, "full_attention") != 0)
			return json_refuse(json_at(kinds, i), err, "is %.40s; only full_attention is supported", kind);
	}
	return status;
}

static rosa_status check_unsupported(struct json root, enum architecture architecture, rosa_error *err)
{
	rosa_status status = check_activation(root, err);

	/* where q, k and v always have biases, nothing reads this field */
	if (status == ROSA_OK && !architectures[architecture].qkv_biases)
		status = check_flag(root, "attention_bias", err);
	if (status == ROSA_OK)
		status = check_flag(root, "mlp_bias", err);
	if (status == ROSA_OK)
		status = check_window(root, architecture, err);
	if (status != ROSA_OK)
		return status;
	if (json_there(json_find(root, "quantization_config")))
		return json_refuse(
		    json_find(root, "quantization_config"), err,
		    "quantised safetensors are not supported; use the model itself, or a GGUF file of it");
	if (json_there(json_find(root, "rosatune")))
		return json_refuse(json_find(root, "rosatune"), err,
				   "adapters were saved inside the model; load it with rosatune.hf.from_pretrained, "
				   "then use save_adapter, detach and save_pretrained");
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- parts -- */

static rosa_status read_sizes(struct json root, struct model_config *config, rosa_error *err)
{
	struct {
		const char *name;
		size_t *value;
		enum json_need need;
	} sizes[] = {
	    {"num_hidden_layers", &config->layers, JSON_NEEDED},
	    {"hidden_size", &config->width, JSON_NEEDED},
	    {"intermediate_size", &config->mlp_width, JSON_NEEDED},
	    {"num_attention_heads", &config->heads, JSON_NEEDED},
	    {"num_key_value_heads", &config->kv_heads, JSON_OPTIONAL},
	    {"head_dim", &config->head_size, JSON_OPTIONAL},
	    {"vocab_size", &config->vocabulary, JSON_NEEDED},
	    {"max_position_embeddings", &config->context, JSON_OPTIONAL},
	};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == ROSA_OK; i++)
		status = json_get_size(root, sizes[i].name, sizes[i].need, sizes[i].value, err);
	if (status != ROSA_OK)
		return status;
	if (!json_there(json_find(root, "num_key_value_heads")))
		config->kv_heads = config->heads;
	if (!json_there(json_find(root, "head_dim"))) {
		config->head_size = architectures[config->architecture].head_size;
		if (!config->head_size && config->heads)
			config->head_size = config->width / config->heads;
	}
	return ROSA_OK;
}

static rosa_status read_llama3(struct json scaling, struct model_config *config, rosa_error *err)
{
	struct {
		const char *name;
		double *value;
	} numbers[] = {{"low_freq_factor", &config->rope_low},
		       {"high_freq_factor", &config->rope_high},
		       {"original_max_position_embeddings", &config->rope_context}};
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && status == ROSA_OK; i++)
		status = json_get_number(scaling, numbers[i].name, JSON_NEEDED, numbers[i].value, err);
	return status;
}

/* `scaling`: rope_scaling or rope_parameters; older files call the kind "type". */
static rosa_status read_scaling(struct json scaling, struct model_config *config, rosa_error *err)
{
	const char *field = json_there(json_find(scaling, "rope_type")) ? "rope_type" : "type", *kind = "default";
	rosa_status status = json_get_string(scaling, field, JSON_OPTIONAL, &kind, err);

	if (status != ROSA_OK || strcmp(kind, rope_scaling_names[ROPE_PLAIN]) == 0)
		return status;
	if (strcmp(kind, rope_scaling_names[ROPE_LINEAR]) == 0)
		config->rope_scaling = ROPE_LINEAR;
	else if (strcmp(kind, rope_scaling_names[ROPE_LLAMA3]) == 0)
		config->rope_scaling = ROPE_LLAMA3;
	else
		return json_refuse(json_find(scaling, field), err, "is %.40s; supported are default, linear and llama3",
				   kind);
	status = json_get_number(scaling, "factor", JSON_NEEDED, &config->rope_factor, err);
	if (status == ROSA_OK && config->rope_scaling == ROPE_LLAMA3)
		status = read_llama3(scaling, config, err);
	return status;
}

/* The base, and a check that the whole head is rotated. Either object may have these fields. */
static rosa_status read_base(struct json object, struct model_config *config, rosa_error *err)
{
	double share = 1;
	rosa_status status = json_get_number(object, "rope_theta", JSON_OPTIONAL, &config->rope_base, err);

	if (status == ROSA_OK)
		status = json_get_number(object, "partial_rotary_factor", JSON_OPTIONAL, &share, err);
	if (status == ROSA_OK && share != 1)
		return json_refuse(json_find(object, "partial_rotary_factor"), err, "is %g; only 1 is supported",
				   share);
	return status;
}

static rosa_status read_rope(struct json root, struct model_config *config, rosa_error *err)
{
	static const char *const names[] = {"rope_scaling", "rope_parameters"};
	rosa_status status = read_base(root, config, err);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == ROSA_OK; i++) {
		struct json object;
		status = json_get_object(root, names[i], JSON_OPTIONAL, &object, err);
		if (status != ROSA_OK || !json_there(object))
			continue;
		status = read_base(object, config, err);
		if (status == ROSA_OK)
			status = read_scaling(object, config, err);
	}
	return status;
}

/* One token or several. */
static rosa_status read_eos(struct json root, struct model_config *config, rosa_error *err)
{
	struct json field = json_find(root, "eos_token_id");
	bool several = json_kind(field) == JSON_IS_ARRAY;
	size_t count = several ? json_count(field) : 1;
	rosa_status status = ROSA_OK;

	if (!json_there(field))
		return ROSA_OK;
	config->eos_count = 0;
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		int64_t token;
		status = json_as_integer(several ? json_at(field, i) : field, &token, err);
		if (status == ROSA_OK)
			config_add_eos(config, token);
	}
	return status;
}

static rosa_status read_tokens(struct json root, struct model_config *config, rosa_error *err)
{
	int64_t bos = -1;
	rosa_status status = json_get_integer(root, "bos_token_id", JSON_OPTIONAL, &bos, err);

	config_set_bos(config, bos);
	return status == ROSA_OK ? read_eos(root, config, err) : status;
}

static rosa_status read_config(struct json root, struct model_config *config, rosa_error *err)
{
	const char *type;
	double eps = config->norm_eps;
	rosa_status status = json_get_string(root, "model_type", JSON_NEEDED, &type, err);

	if (status == ROSA_OK)
		status = config_architecture(root.file, "model_type", type, strlen(type), &config->architecture, err);
	if (status == ROSA_OK)
		status = check_unsupported(root, config->architecture, err);
	if (status == ROSA_OK)
		status = read_sizes(root, config, err);
	if (status == ROSA_OK)
		status = json_get_number(root, "rms_norm_eps", JSON_OPTIONAL, &eps, err);
	config->norm_eps = (float)eps;
	if (status == ROSA_OK)
		status = read_rope(root, config, err);
	if (status == ROSA_OK)
		status = json_get_bool(root, "tie_word_embeddings", JSON_OPTIONAL, &config->tied, err);
	if (status == ROSA_OK)
		status = read_tokens(root, config, err);
	return status == ROSA_OK ? config_check(config, root.file, err) : status;
}

/* -------------------------------------------------------------------------------------------------------- files -- */

/* Applies `read` to a JSON file of the folder; one that is not there is passed over if it may be missing. */
static rosa_status read_file(const char *folder, const char *name, bool optional,
			     rosa_status (*read)(struct json, struct model_config *, rosa_error *),
			     struct model_config *config, rosa_error *err)
{
	const struct path path = path_join(folder, name);
	struct json root = {0};
	rosa_status status;

	if (optional && !path_exists(path.text))
		return ROSA_OK;
	status = json_load(path.text, &root, err);
	if (status == ROSA_OK)
		status = read(root, config, err);
	json_free(&root);
	return status;
}

rosa_status config_from_folder(const char *folder, struct model_config *config, rosa_error *err)
{
	rosa_status status;

	*config = config_blank();
	config->rotary_pairs = ROTARY_HALVES;
	status = read_file(folder, "config.json", false, read_config, config, err);
	if (status == ROSA_OK)
		status = read_file(folder, "generation_config.json", true, read_eos, config, err);
	return status;
}
