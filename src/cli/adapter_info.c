/* rosatune adapter info: what an adapter folder holds, without the model it belongs to. */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/screen.h"
#include "model/adapter.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct key_table *const tables[] = {&adapter_option_table, &learning_option_table};

/* The type of its numbers; adapters are written in one. */
static const char *type_of(const struct adapter *adapter)
{
	return adapter->file.tensors.count ? format_info[adapter->file.tensors.all[0].format].name : "none";
}

/* The layers that have an adapter, as "0-3, 5" or, for JSON, "0, 1, 2, 3, 5". */
static void add_layers(const struct adapter *adapter, bool json, struct json_text *text)
{
	const char *between = "";

	for (size_t i = 0; i < adapter->layer_count; i++) {
		size_t last = i;

		if (!adapter_has(adapter, i))
			continue;
		while (!json && adapter_has(adapter, last + 1))
			last++;
		json_text_add(text, "%s%zu", between, i);
		if (last > i)
			json_text_add(text, "-%zu", last);
		between = ", ";
		i = last;
	}
}

static void add_json(const struct adapter *adapter, struct json_text *text)
{
	json_text_open(text, NULL, '{');
	json_text_put_string(text, "path", adapter->path.text);
	json_text_put_string(text, "base_model_name_or_path", adapter->base_name);
	json_text_put_string(text, "model_type", adapter->model_type);
	json_text_put_size(text, "hidden_size", adapter->width);
	json_text_put_size(text, "num_hidden_layers", adapter->layer_count);
	json_text_open(text, "layers", '[');
	add_layers(adapter, true, text);
	json_text_close(text, ']');
	json_text_put_size(text, "parameters", adapter->parameters);
	json_text_put_string(text, "type", type_of(adapter));
	json_text_put_size(text, "bytes", adapter->mapping.size);
	if (adapter->steps)
		json_text_put_size(text, "steps", adapter->steps);
	else
		json_text_put_string(text, "steps", NULL);
	json_text_open(text, "options", '{');
	keys_write(&adapter_option_keys, &adapter->options, 0, "  ", text);
	json_text_add(text, "}}\n");
}

static void add_text(const struct adapter *adapter, struct json_text *text)
{
	json_text_add(text, "adapter     %s\n", adapter->path.text);
	json_text_add(text, "base model  %s: %s, width %zu, %zu layers\n",
		      adapter->base_name ? adapter->base_name : "not recorded", adapter->model_type, adapter->width,
		      adapter->layer_count);
	json_text_add(text, "layers      ");
	add_layers(adapter, false, text);
	json_text_add(text, "\nsize        %s parameters, %s, %s\n", quantity_short((double)adapter->parameters).text,
		      type_of(adapter), quantity_bytes((double)adapter->mapping.size).text);
	if (adapter->steps)
		json_text_add(text, "trained     %s steps\n", quantity_grouped(adapter->steps).text);
	json_text_add(text, "options\n");
	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
		for (size_t i = 0; i < tables[t]->count; i++) {
			json_text_add(text, "  %-20s ", tables[t]->rows[i].name);
			key_write(&tables[t]->rows[i], &adapter->options, text);
			json_text_add(text, "\n");
		}
	}
}

int adapter_info_command(int count, char **words)
{
	const char *path = NULL;
	bool json = false;
	struct arg options[] = {OPTION_FLAG("json", &json, "print one JSON object instead of text")};
	struct args args = {
	    .command = "adapter info",
	    .usage = "DIR [--json]",
	    .summary =
		"Describes an adapter: its base model, its options, its size, and how long it was trained. DIR is\n"
		"an adapter folder, or the folder of a run of rosatune tune, which stands for its newest adapter.",
	    .options = options,
	    .count = 1,
	    .operand = &path,
	    .operand_name = "DIR",
	};
	enum args_result parsed = args_parse(&args, count, words);
	struct json_text text = {0};
	struct adapter adapter;
	rosa_error error;

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (adapter_open(path, NULL, &adapter, &error) != ROSA_OK) {
		complain("adapter info", "%s", error.message);
		return FAILED;
	}
	if (json)
		add_json(&adapter, &text);
	else
		add_text(&adapter, &text);
	adapter_close(&adapter);
	if (text.failed)
		refuse(&error, "not enough memory to describe %s", path);
	const bool good = !text.failed && screen_print_escaped(text.data, text.size, &error);
	if (!good)
		complain("adapter info", "%s", error.message);
	json_text_free(&text);
	return good ? DONE : FAILED;
}
