/*
 * What rosatune mqar prints.
 *
 * A line as soon as an epoch is measured, since the next may take minutes, with one more per adapter; then the table
 * that compares the modes. A number that is missing (a mode that was interrupted) is a dash.
 */
#include "cli/mqar_result.h"

#include "base/json_text.h"

#include <inttypes.h>
#include <stdio.h>

void mqar_print_epoch(const struct mqar_result *result, const struct mqar_run *run)
{
	const struct mqar_epoch *epoch = &run->epochs[run->count - 1];

	printf("%-6s  epoch %" PRIu64 " of %zu, %" PRIu64 " steps: accuracy %6.2f %%, loss %.4f\n",
	       mqar_mode_names[run->mode], epoch->epoch, result->setup.epochs, epoch->steps, 100 * epoch->accuracy,
	       epoch->loss);
	for (size_t i = 0; i < result->setup.layers; i++) {
		const struct mqar_layer *layer = &epoch->layers[i];

		if (!layer->adapted)
			continue;
		printf("        layer %zu: right routes %5.1f %%, found %5.1f %%", i, 100 * layer->right,
		       100 * layer->found);
		if (layer->queries > 0) /* the layer has q and k */
			printf("; query meets key %5.1f %%, agrees %5.1f %%; %.0f query and %.0f key symbols",
			       100 * layer->meets, 100 * layer->agree, layer->queries, layer->keys);
		putchar('\n');
	}
	fflush(stdout);
}

bool mqar_too_short(const struct mqar_result *result, const struct mqar_run *run)
{
	return run->mode == MQAR_GLOBAL && run->count > result->setup.epochs &&
	       run->epochs[run->count - 1].accuracy < 0.5;
}

/* What a number means that would mislead without a word. */
static void print_remarks(const struct mqar_result *result)
{
	for (size_t i = 0; i < result->count; i++) {
		const struct mqar_run *run = &result->runs[i];

		if (mqar_too_short(result, run))
			printf(
			    "note: global attention did not learn the task in these %" PRIu64
			    " steps. It can, but needs "
			    "more of them, or an\neasier task: try --pairs 4 --length 32 --vocabulary 64 --window 4 "
			    "--batch 64 --examples 6400\n--epochs 8 --rate 0.003 --decay 0.1, which it learns in some "
			    "500 steps\n",
			    run->epochs[run->count - 1].steps);
	}
	if (result->interrupted)
		printf("interrupted: not all modes and epochs are here\n");
}

void mqar_print_table(const struct mqar_result *result)
{
	const struct mqar *task = &result->setup.task;
	size_t epochs = 0;

	for (size_t i = 0; i < result->count; i++)
		epochs = result->runs[i].count > epochs ? result->runs[i].count : epochs;
	printf("\n%zu pairs in %zu tokens, a vocabulary of %zu; accuracy on %" PRIu64 " values of held-out examples:\n",
	       task->pairs, task->length, task->vocabulary,
	       result->runs[0].count ? result->runs[0].epochs[0].asked : 0);
	printf("  epoch");
	for (size_t i = 0; i < result->count; i++)
		printf("  %10s", mqar_mode_names[result->runs[i].mode]);
	printf("\n");
	for (size_t e = 0; e < epochs; e++) {
		printf("  %5zu", e);
		for (size_t i = 0; i < result->count; i++) {
			if (e < result->runs[i].count)
				printf("  %8.2f %%", 100 * result->runs[i].epochs[e].accuracy);
			else
				printf("  %10s", "-");
		}
		printf("\n");
	}
	for (size_t i = 0; i < result->count; i++)
		printf("%-6s  %.1f s of learning, %.0f tokens/s\n", mqar_mode_names[result->runs[i].mode],
		       result->runs[i].seconds, result->runs[i].tokens_per_second);
	print_remarks(result);
}

/* ---------------------------------------------------------------------------------------------------------- JSON -- */

static void add_field(struct json_text *text, const char *name, double number)
{
	json_text_add(text, ", \"%s\": ", name);
	json_text_number(text, number);
}

static void add_layer(struct json_text *text, size_t number, const struct mqar_layer *layer)
{
	json_text_add(text, "{\"layer\": %zu", number);
	add_field(text, "right", layer->right);
	add_field(text, "found", layer->found);
	add_field(text, "meets", layer->meets);
	add_field(text, "agree", layer->agree);
	add_field(text, "query_symbols", layer->queries);
	add_field(text, "key_symbols", layer->keys);
	json_text_add(text, "}");
}

static void add_epoch(struct json_text *text, size_t layers, const struct mqar_epoch *epoch)
{
	const char *between = "";

	json_text_add(text, "{\"epoch\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"asked\": %" PRIu64, epoch->epoch,
		      epoch->steps, epoch->asked);
	add_field(text, "accuracy", epoch->accuracy);
	add_field(text, "loss", epoch->loss);
	json_text_add(text, ", \"layers\": [");
	for (size_t i = 0; i < layers; i++) {
		if (!epoch->layers[i].adapted)
			continue;
		json_text_add(text, "%s", between);
		add_layer(text, i, &epoch->layers[i]);
		between = ", ";
	}
	json_text_add(text, "]}");
}

static void add_run(struct json_text *text, const struct mqar_result *result, const struct mqar_run *run)
{
	json_text_add(text, "{\"mode\": \"%s\", \"parameters\": %" PRIu64, mqar_mode_names[run->mode], run->parameters);
	add_field(text, "seconds", run->seconds);
	add_field(text, "tokens_per_second", run->tokens_per_second);
	json_text_add(text, ", \"epochs\": [");
	for (size_t i = 0; i < run->count; i++) {
		json_text_add(text, "%s", i ? ", " : "");
		add_epoch(text, result->setup.layers, &run->epochs[i]);
	}
	json_text_add(text, "]}");
}

bool mqar_print_json(const struct mqar_result *result, rosa_error *why)
{
	const struct mqar_setup *setup = &result->setup;
	struct json_text text = {0};

	json_text_add(&text,
		      "{\"pairs\": %zu, \"length\": %zu, \"vocabulary\": %zu, \"window\": %zu, \"dim\": %zu, "
		      "\"layers\": %zu, \"bits\": %d, \"examples\": %zu, \"batch\": %zu, \"seed\": %" PRIu64
		      ", \"interrupted\": %s, \"runs\": [",
		      setup->task.pairs, setup->task.length, setup->task.vocabulary,
		      (size_t)setup->network.adapter.window, setup->width, setup->layers,
		      (int)setup->network.adapter.bits, setup->examples, setup->batch, setup->seed,
		      result->interrupted ? "true" : "false");
	for (size_t i = 0; i < result->count; i++) {
		json_text_add(&text, "%s", i ? ", " : "");
		add_run(&text, result, &result->runs[i]);
	}
	json_text_add(&text, "]}\n");
	const bool good = !text.failed;
	if (good)
		fputs(text.data, stdout);
	json_text_free(&text);
	return good ? true : refuse(why, "not enough memory for the JSON");
}
