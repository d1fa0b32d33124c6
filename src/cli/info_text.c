/*
 * The description of a model for people: a few lines, and tables whose columns are as wide as what is in them.
 */
#include "cli/info.h"

#include "cli/quantities.h"
#include "cli/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line with a name that comes from outside. */
static void print_name(const char *before, const char *name)
{
	char *shown = screen_name(name);

	printf("%s%s\n", before, shown ? shown : "");
	free(shown);
}

/* -------------------------------------------------------------------------------------------------------- model -- */

static void print_rope(const struct checkpoint *checkpoint)
{
	const struct model_config *config = &checkpoint->config;

	if (config->context)
		printf("%s trained, ", quantity_grouped(config->context).text);
	printf("rotary base %g", config->rope_base);
	if (config->rope_scaling == ROPE_LINEAR)
		printf(", slowed %g times", config->rope_factor);
	if (config->rope_scaling == ROPE_LLAMA3)
		printf(", Llama 3's scaling by %g beyond %g", config->rope_factor, config->rope_context);
	if (checkpoint->rope_factors)
		printf(", factors by the file");
	putchar('\n');
}

static void print_tokens(const struct model_config *config)
{
	printf("begin ");
	if (config->bos >= 0)
		printf("%lld", (long long)config->bos);
	else
		printf("none");
	printf(", end ");
	for (size_t i = 0; i < config->eos_count; i++)
		printf("%s%lld", i ? " or " : "", (long long)config->eos[i]);
	printf("%s\n", config->eos_count ? "" : "none");
}

static void print_model(const struct info *info)
{
	const struct checkpoint *checkpoint = info->checkpoint;
	const struct model_config *config = &checkpoint->config;

	print_name("", checkpoint->path.text);
	printf("  %-14s%s, %s, %zu file%s\n", "architecture", architectures[config->architecture].name,
	       checkpoint->is_gguf ? "GGUF" : "safetensors", checkpoint->files_count,
	       checkpoint->files_count == 1 ? "" : "s");
	printf("  %-14s%zu of width %s, feed-forward %s\n", "layers", config->layers,
	       quantity_grouped(config->width).text, quantity_grouped(config->mlp_width).text);
	printf("  %-14s%zu heads of %zu, %zu of keys and values%s%s\n", "attention", config->heads, config->head_size,
	       config->kv_heads, architectures[config->architecture].head_norms ? ", normed" : "",
	       architectures[config->architecture].qkv_biases ? ", with biases" : "");
	printf("  %-14s", "positions");
	print_rope(checkpoint);
	printf("  %-14s%s tokens, %s\n", "vocabulary", quantity_grouped(config->vocabulary).text,
	       config->tied ? "the embedding is the head too" : "with a head of its own");
	printf("  %-14s", "tokens");
	print_tokens(config);
	printf("  %-14s%s (%s)\n", "parameters", quantity_grouped(info->parameters).text,
	       quantity_short((double)info->parameters).text);
}

static void print_formats(const struct info *info)
{
	printf("\nweights      tensors         numbers       bytes\n");
	for (int i = 0; i < FORMAT_COUNT; i++) {
		const struct info_format *format = &info->formats[i];
		if (format->tensors)
			printf("  %-8s  %8s  %14s  %10s\n", format_info[i].name, quantity_grouped(format->tensors).text,
			       quantity_grouped(format->numbers).text, quantity_bytes((double)format->bytes).text);
	}
	printf("  %-8s  %8s  %14s  %10s\n", "all", quantity_grouped(info->checkpoint->tensors.count).text,
	       quantity_grouped(info->parameters).text, quantity_bytes((double)info->bytes).text);
	if (info_activation_bits(info) < 32)
		puts("\nProducts by the formats Q4_K, Q5_K and Q6_K round activations to 16 bits.");
}

static void print_tensors(const struct tensors *tensors)
{
	int width = 7;
	char shape[TENSOR_SHAPE_TEXT];

	for (size_t i = 0; i < tensors->count; i++) {
		int length = (int)strlen(tensors->all[i].name);
		width = length > width && length <= 60 ? length : width;
	}
	printf("\n%-*s    %-6s  %-18s       bytes\n", width, "tensors", "format", "shape");
	for (size_t i = 0; i < tensors->count; i++) {
		const struct tensor *tensor = &tensors->all[i];
		/* The readers of weight files refuse names with control characters. */
		printf("  %-*s  %-6s  %-18s  %10s\n", width, tensor->name, format_info[tensor->format].name,
		       tensor_shape_text(tensor, shape), quantity_bytes((double)tensor->bytes).text);
	}
}

/* ----------------------------------------------------------------------------------------------- adapter, memory -- */

/* What is matched, and how it is read. */
static void print_sources(const struct info *info)
{
	const struct adapter_options *o = &info->added.options;
	const size_t last = info->checkpoint->config.layers - 1;
	char source[SOURCE_TEXT];

	sources_text(&o->source, source);
	printf("  %-14s%s, delay %s, %zu read%s per layer\n", "source", source, quantity_grouped(adapter_delay(o)).text,
	       adapter_links(o, last), adapter_links(o, last) == 1 ? "" : "s");
	for (size_t i = 0; i < o->source.count; i++) {
		if (!adapter_source_has_bits(&o->source.all[i]))
			continue;
		printf("  %-14s%zu bits per symbol, %zu routes\n", "symbols", (size_t)o->bits,
		       adapter_source_routes(o, i, info->checkpoint->config.width));
		break;
	}
	printf("  %-14s%s\n", "fusion", fusion_names[o->fusion]);
	printf("  %-14s", "strength");
	if (o->gain || o->gate || o->units > 0)
		printf("%s%s%s%s", o->gain ? "gain by match length" : "", o->gain && o->gate ? ", " : "",
		       o->gate ? "gate" : "", (o->gain || o->gate) && o->units > 0 ? ", " : "");
	else
		printf("none");
	if (o->units > 0)
		printf("%g units of the residual stream", (double)o->units);
	putchar('\n');
}

static void print_adapter(const struct info *info)
{
	const struct info_adapter *added = &info->added;
	const struct model_config *config = &info->checkpoint->config;

	if (added->there)
		print_name("\nadapter ", info->adapter->path.text);
	else
		printf("\nan adapter would add\n");
	print_sources(info);
	printf("  %-14s%zu of %zu", "layers", added->layers, config->layers);
	if (info->global_layers)
		printf(", the first %zu global", info->global_layers);
	printf("\n  %-14s%s (%s), %.1f %% of the model's\n", "parameters", quantity_grouped(added->parameters).text,
	       quantity_short((double)added->parameters).text,
	       100 * (double)added->parameters / (double)info->parameters);
	printf("  %-14s%s", "weights", quantity_bytes((double)added->bytes).text);
	if (!added->there)
		printf(" in float32, half in bfloat16; pre fusion: %s more parameters",
		       quantity_grouped((uint64_t)added->layers * config->width).text);
	putchar('\n');
}

static void print_memory(const struct info *info)
{
	static const char *const ways[INFO_WAYS] = {
	    [INFO_GLOBAL] = "global", [INFO_WINDOW] = "window", [INFO_ROSA] = "window + ROSA"};

	int width = 9;

	for (size_t i = 0; i < info->context_count; i++) {
		int length = (int)strlen(quantity_grouped(info->contexts[i]).text);
		width = length > width ? length : width;
	}
	printf("\n%-*s %-13s  %10s  %10s  %10s  %10s  %10s  %10s\n", width, "memory at", "", "weights", "keys, vals",
	       "adapter", "index", "value bits", "all");
	for (size_t i = 0; i < info->context_count; i++) {
		for (int way = 0; way < INFO_WAYS; way++) {
			const struct info_memory *memory = &info->memory[i][way];
			bool rosa = way == INFO_ROSA;
			printf("%*s %-13s  %10s  %10s  %10s  %10s  %10s  %10s\n", width,
			       way == 0 ? quantity_grouped(info->contexts[i]).text : "", ways[way],
			       quantity_bytes(memory->weights).text, quantity_bytes(memory->cache).text,
			       rosa ? quantity_bytes(memory->adapter).text : "-",
			       rosa ? quantity_bytes(memory->index).text : "-",
			       rosa ? quantity_bytes(memory->values).text : "-",
			       quantity_bytes(info_total(memory)).text);
		}
	}
	printf(
	    "\nWindow %s, %s sinks. Keys and values are float32. Per token the adapter keeps an index of %.0f bytes, "
	    "if\n"
	    "every step begins a run, and %.0f bytes of value bits; keys and values of all layers would take %.0f in\n"
	    "float16.\n",
	    quantity_grouped(info->window).text, quantity_grouped(info->sinks).text, info->added.index,
	    info->added.values, info->kv_bytes);
}

void info_print_text(const struct info *info)
{
	print_model(info);
	print_formats(info);
	if (info->list)
		print_tensors(&info->checkpoint->tensors);
	print_adapter(info);
	print_memory(info);
}
