/* The description of a model for programs: one JSON object, sizes in bytes. */
#include "cli/info.h"

#include "cli/text_input.h"

#include <inttypes.h>

static void put_rope(struct json_text *text, const struct checkpoint *checkpoint)
{
	const struct model_config *config = &checkpoint->config;

	json_text_open(text, "rope", '{');
	json_text_put_number(text, "base", config->rope_base);
	json_text_put_string(text, "scaling", rope_scaling_names[config->rope_scaling]);
	if (config->rope_scaling != ROPE_PLAIN)
		json_text_put_number(text, "factor", config->rope_factor);
	if (config->rope_scaling == ROPE_LLAMA3) {
		json_text_put_number(text, "low_freq_factor", config->rope_low);
		json_text_put_number(text, "high_freq_factor", config->rope_high);
		json_text_put_number(text, "original_context", config->rope_context);
	}
	json_text_put_bool(text, "factors_in_file", checkpoint->rope_factors);
	json_text_close(text, '}');
}

static void put_model(struct json_text *text, const struct info *info)
{
	const struct checkpoint *checkpoint = info->checkpoint;
	const struct model_config *config = &checkpoint->config;

	json_text_put_string(text, "path", checkpoint->path.text);
	json_text_put_string(text, "kind", checkpoint->is_gguf ? "gguf" : "safetensors");
	json_text_open(text, "files", '[');
	for (size_t i = 0; i < checkpoint->files_count; i++)
		json_text_put_string(text, NULL, checkpoint->files[i].text);
	json_text_close(text, ']');
	json_text_put_string(text, "architecture", architectures[config->architecture].name);
	json_text_put_size(text, "layers", config->layers);
	json_text_put_size(text, "width", config->width);
	json_text_put_size(text, "mlp_width", config->mlp_width);
	json_text_put_size(text, "heads", config->heads);
	json_text_put_size(text, "kv_heads", config->kv_heads);
	json_text_put_size(text, "head_size", config->head_size);
	json_text_put_size(text, "vocabulary", config->vocabulary);
	json_text_put_size(text, "context", config->context);
	json_text_key(text, "norm_eps");
	json_text_float(text, config->norm_eps);
	put_rope(text, checkpoint);
	json_text_put_bool(text, "tied", config->tied);
	json_text_put(text, "bos", "%" PRId64, config->bos);
	json_text_open(text, "eos", '[');
	for (size_t i = 0; i < config->eos_count; i++)
		json_text_put(text, NULL, "%" PRId64, config->eos[i]);
	json_text_close(text, ']');
	json_text_put_size(text, "parameters", info->parameters);
	json_text_put_size(text, "bytes", info->bytes);
}

static void put_formats(struct json_text *text, const struct info *info)
{
	json_text_open(text, "formats", '{');
	for (int i = 0; i < FORMAT_COUNT; i++) {
		const struct info_format *format = &info->formats[i];
		if (!format->tensors)
			continue;
		json_text_open(text, format_info[i].name, '{');
		json_text_put_size(text, "tensors", format->tensors);
		json_text_put_size(text, "numbers", format->numbers);
		json_text_put_size(text, "bytes", format->bytes);
		json_text_close(text, '}');
	}
	json_text_close(text, '}');
	json_text_put_size(text, "activation_bits", (size_t)info_activation_bits(info));
}

static void put_tensors(struct json_text *text, const struct tensors *tensors)
{
	char shape[TENSOR_SHAPE_TEXT];

	json_text_open(text, "tensors", '[');
	for (size_t i = 0; i < tensors->count; i++) {
		const struct tensor *tensor = &tensors->all[i];
		json_text_open(text, NULL, '{');
		json_text_put_string(text, "name", tensor->name);
		json_text_put_string(text, "format", format_info[tensor->format].name);
		json_text_put(text, "shape", "%s", tensor_shape_text(tensor, shape));
		json_text_put_size(text, "bytes", tensor->bytes);
		json_text_close(text, '}');
	}
	json_text_close(text, ']');
}

static void put_adapter(struct json_text *text, const struct info *info)
{
	const struct info_adapter *added = &info->added;
	const struct adapter_options *o = &added->options;
	char source[SOURCE_TEXT];

	sources_text(&o->source, source);
	json_text_open(text, "adapter", '{');
	json_text_put_string(text, "path", added->there ? info->adapter->path.text : NULL);
	json_text_put_string(text, "source", source);
	json_text_put_size(text, "delay", adapter_delay(o));
	json_text_put_size(text, "bits", o->bits);
	json_text_put_size(text, "reads", adapter_links(o, info->checkpoint->config.layers - 1));
	json_text_put_size(text, "layers", added->layers);
	json_text_put_string(text, "fusion", fusion_names[o->fusion]);
	json_text_put_size(text, "parameters", added->parameters);
	json_text_put_size(text, "bytes", added->bytes);
	json_text_close(text, '}');
}

/* Bytes that were estimated. */
static void put_bytes(struct json_text *text, const char *key, double bytes)
{
	json_text_put(text, key, "%.0f", bytes);
}

static void put_memory(struct json_text *text, const struct info *info)
{
	static const char *const ways[INFO_WAYS] = {
	    [INFO_GLOBAL] = "global", [INFO_WINDOW] = "window", [INFO_ROSA] = "rosa"};

	json_text_put_size(text, "window", info->window);
	json_text_put_size(text, "sinks", info->sinks);
	json_text_put_size(text, "global_layers", info->global_layers);
	json_text_open(text, "bytes_per_token", '{');
	json_text_put(text, "index", "%.1f", info->added.index);
	put_bytes(text, "values", info->added.values);
	put_bytes(text, "keys_and_values_float16", info->kv_bytes);
	json_text_close(text, '}');
	json_text_open(text, "memory", '[');
	for (size_t i = 0; i < info->context_count; i++) {
		json_text_open(text, NULL, '{');
		json_text_put_size(text, "context", info->contexts[i]);
		for (int way = 0; way < INFO_WAYS; way++) {
			const struct info_memory *memory = &info->memory[i][way];
			json_text_open(text, ways[way], '{');
			put_bytes(text, "weights", memory->weights);
			put_bytes(text, "cache", memory->cache);
			put_bytes(text, "adapter", memory->adapter);
			put_bytes(text, "index", memory->index);
			put_bytes(text, "values", memory->values);
			put_bytes(text, "total", info_total(memory));
			json_text_close(text, '}');
		}
		json_text_close(text, '}');
	}
	json_text_close(text, ']');
}

bool info_print_json(const struct info *info, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	put_model(&text, info);
	put_formats(&text, info);
	if (info->list)
		put_tensors(&text, &info->checkpoint->tensors);
	put_adapter(&text, info);
	put_memory(&text, info);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}
