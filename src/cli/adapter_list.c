/* rosatune adapter options: the table of an adapter's options, for people and for programs that check theirs by it. */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/report.h"
#include "model/adapter_options.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const struct key_table *table;
	const char *group;
} groups[] = {
    {&adapter_layers_table, "adapter"}, {&adapter_option_table, "adapter"}, {&learning_option_table, "learning"}};

#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static void add_row(const struct key *row, const char *group, struct json_text *text)
{
	static const char *const types[] = {
	    [KEY_SIZE] = "size", [KEY_FLOAT] = "number", [KEY_BOOL] = "bool", [KEY_CHOICE] = "choice"};
	const struct adapter_options defaults = adapter_options_default(), paper = adapter_options_paper();

	json_text_open(text, NULL, '{');
	json_text_put_string(text, "name", row->name);
	json_text_put_string(text, "group", group);
	json_text_put_string(text, "type", row->type == KEY_CUSTOM ? row->custom->type : types[row->type]);
	if (row->type == KEY_SIZE || row->type == KEY_FLOAT) {
		const bool above = row->least == KEY_ABOVE_0; /* 0 itself is excluded */

		json_text_put_number(text, above ? "above" : "least", above ? 0 : row->least);
		json_text_put_number(text, "most", row->most);
	}
	if (row->type == KEY_CHOICE) {
		json_text_open(text, "choices", '[');
		for (int i = 0; row->choices[i]; i++)
			json_text_put_string(text, NULL, row->choices[i]);
		json_text_close(text, ']');
	}
	json_text_key(text, "default");
	key_write(row, &defaults, text);
	json_text_key(text, "paper");
	key_write(row, &paper, text);
	json_text_put_string(text, "help", row->help);
	json_text_close(text, '}');
}

static void add_json(struct json_text *text)
{
	json_text_open(text, NULL, '{');
	json_text_open(text, "options", '[');
	for (size_t g = 0; g < GROUPS; g++) {
		for (size_t i = 0; i < groups[g].table->count; i++) {
			json_text_add(text, g + i ? ",\n" : "\n");
			add_row(&groups[g].table->rows[i], groups[g].group, text);
		}
	}
	json_text_add(text, "\n]}\n");
}

int adapter_options_command(int count, char **words)
{
	bool json = false;
	struct arg options[] = {OPTION_FLAG("json", &json, "print one JSON object instead of text")};
	struct args args = {
	    .command = "adapter options",
	    .usage = "[--json]",
	    .summary =
		"Lists the options of a ROSA adapter, with their defaults in brackets. rosatune tune takes them as\n"
		"adapter.NAME and learning.NAME, adapter_config.json has them in \"options\". --json also names the\n"
		"paper's values, which are those of adapters without a field (format 1).",
	    .options = options,
	    .count = 1,
	};
	enum args_result parsed = args_parse(&args, count, words);
	struct json_text text = {0};

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (json)
		add_json(&text);
	else
		keys_help(&adapter_option_keys, "", &text);
	if (text.failed)
		complain("adapter options", "not enough memory to list the options");
	else
		fputs(text.data, stdout);
	const bool good = !text.failed;
	json_text_free(&text);
	return good ? DONE : FAILED;
}
