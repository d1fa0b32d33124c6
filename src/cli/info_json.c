/*
 * The description of a model for programs: one JSON object, sizes in bytes.
 *
 * Written without a JSON library, since a build without one can still describe GGUF files. Names of files and tensors
 * are the only strings from outside.
 */
#include "cli/info.h"

#include "cli/text_input.h"

#include <stdio.h>
#include <string.h>

/* Names of files may contain any bytes. Those that are not ASCII are printed as they are, since most names are UTF-8.
 */
static void print_string(const char *text)
{
	text_print_json(text, strlen(text));
}

static void print_size(const char *name, uint64_t number)
{
	printf(",\n  \"%s\": %llu", name, (unsigned long long)number);
}

static void print_rope(const struct checkpoint *checkpoint)
{
	const struct model_config *config = &checkpoint->config;

	printf(",\n  \"rope\": {\"base\": %.17g, \"scaling\": \"%s\"", config->rope_base,
	       rope_scaling_names[config->rope_scaling]);
	if (config->rope_scaling != ROPE_PLAIN)
		printf(", \"factor\": %.17g", config->rope_factor);
	if (config->rope_scaling == ROPE_LLAMA3)
		printf(", \"low_freq_factor\": %.17g, \"high_freq_factor\": %.17g, \"original_context\": %.17g",
		       config->rope_low, config->rope_high, config->rope_context);
	printf(", \"factors_in_file\": %s}", checkpoint->rope_factors ? "true" : "false");
}

static void print_model(const struct info *info)
{
	const struct checkpoint *checkpoint = info->checkpoint;
	const struct model_config *config = &checkpoint->config;

	printf("{\n  \"path\": ");
	print_string(checkpoint->path.text);
	printf(",\n  \"kind\": \"%s\",\n  \"files\": [", checkpoint->is_gguf ? "gguf" : "safetensors");
	for (size_t i = 0; i < checkpoint->files_count; i++) {
		printf("%s", i ? ", " : "");
		print_string(checkpoint->files[i].text);
	}
	printf("],\n  \"architecture\": \"%s\"", architectures[config->architecture].name);
	print_size("layers", config->layers);
	print_size("width", config->width);
	print_size("mlp_width", config->mlp_width);
	print_size("heads", config->heads);
	print_size("kv_heads", config->kv_heads);
	print_size("head_size", config->head_size);
	print_size("vocabulary", config->vocabulary);
	print_size("context", config->context);
	printf(",\n  \"norm_eps\": %.9g", (double)config->norm_eps);
	print_rope(checkpoint);
	printf(",\n  \"tied\": %s,\n  \"bos\": %lld,\n  \"eos\": [", config->tied ? "true" : "false",
	       (long long)config->bos);
	for (size_t i = 0; i < config->eos_count; i++)
		printf("%s%lld", i ? ", " : "", (long long)config->eos[i]);
	printf("]");
	print_size("parameters", info->parameters);
	print_size("bytes", info->bytes);
}

static void print_formats(const struct info *info)
{
	bool first = true;

	printf(",\n  \"formats\": {");
	for (int i = 0; i < FORMAT_COUNT; i++) {
		const struct info_format *format = &info->formats[i];
		if (!format->tensors)
			continue;
		printf("%s\n    \"%s\": {\"tensors\": %zu, \"numbers\": %llu, \"bytes\": %llu}", first ? "" : ",",
		       format_info[i].name, format->tensors, (unsigned long long)format->numbers,
		       (unsigned long long)format->bytes);
		first = false;
	}
	printf("\n  }");
}

static void print_tensors(const struct tensors *tensors)
{
	char shape[TENSOR_SHAPE_TEXT];

	printf(",\n  \"tensors\": [");
	for (size_t i = 0; i < tensors->count; i++) {
		const struct tensor *tensor = &tensors->all[i];
		printf("%s\n    {\"name\": ", i ? "," : "");
		print_string(tensor->name);
		printf(", \"format\": \"%s\", \"shape\": %s, \"bytes\": %zu}", format_info[tensor->format].name,
		       tensor_shape_text(tensor, shape), tensor->bytes);
	}
	printf("\n  ]");
}

static void print_adapter(const struct info *info)
{
	const struct info_adapter *added = &info->added;
	const struct adapter_options *o = &added->options;
	char source[SOURCE_TEXT];

	printf(",\n  \"adapter\": {\n    \"path\": ");
	if (added->there)
		print_string(info->adapter->path.text);
	else
		printf("null");
	sources_text(&o->source, source);
	printf(",\n    \"source\": \"%s\",\n    \"delay\": %lu,\n    \"bits\": %zu,\n    \"reads\": %zu,\n"
	       "    \"layers\": %zu,\n    \"fusion\": \"%s\"",
	       source, (unsigned long)adapter_delay(o), (size_t)o->bits,
	       adapter_links(o, info->checkpoint->config.layers - 1), added->layers,
	       o->fusion == ROSA_PRE ? "pre" : "post");
	printf(",\n    \"parameters\": %llu,\n    \"bytes\": %llu\n  }", (unsigned long long)added->parameters,
	       (unsigned long long)added->bytes);
}

static void print_memory(const struct info *info)
{
	static const char *const ways[INFO_WAYS] = {
	    [INFO_GLOBAL] = "global", [INFO_WINDOW] = "window", [INFO_ROSA] = "rosa"};

	print_size("window", info->window);
	print_size("sinks", info->sinks);
	print_size("global_layers", info->global_layers);
	printf(",\n  \"bytes_per_token\": {\"index\": %.1f, \"values\": %.0f, \"keys_and_values_float16\": %.0f},\n"
	       "  \"memory\": [",
	       info->added.index, info->added.values, info->kv_bytes);
	for (size_t i = 0; i < info->context_count; i++) {
		printf("%s\n    {\"context\": %llu", i ? "," : "", (unsigned long long)info->contexts[i]);
		for (int way = 0; way < INFO_WAYS; way++) {
			const struct info_memory *memory = &info->memory[i][way];
			printf(
			    ",\n     \"%s\": {\"weights\": %.0f, \"cache\": %.0f, \"adapter\": %.0f, \"index\": %.0f, "
			    "\"values\": %.0f, \"total\": %.0f}",
			    ways[way], memory->weights, memory->cache, memory->adapter, memory->index, memory->values,
			    info_total(memory));
		}
		printf("}");
	}
	printf("\n  ]\n}\n");
}

void info_print_json(const struct info *info)
{
	print_model(info);
	print_formats(info);
	if (info->list)
		print_tensors(&info->checkpoint->tensors);
	print_adapter(info);
	print_memory(info);
}
