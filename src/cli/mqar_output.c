/*
 * What rosatune mqar prints.
 *
 * A line as soon as an epoch is measured, since the next may take minutes, with one more per adapter; then the table
 * that compares the modes. A number that is missing (a mode that was interrupted) is a dash.
 */
#include "cli/mqar_result.h"
#include "cli/text_input.h"

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

static void add_layer(struct json_text *text, size_t number, const struct mqar_layer *layer)
{
	json_text_open(text, NULL, '{');
	json_text_put_size(text, "layer", number);
	json_text_put_number(text, "right", layer->right);
	json_text_put_number(text, "found", layer->found);
	json_text_put_number(text, "meets", layer->meets);
	json_text_put_number(text, "agree", layer->agree);
	json_text_put_number(text, "query_symbols", layer->queries);
	json_text_put_number(text, "key_symbols", layer->keys);
	json_text_add(text, "}");
}

static void add_epoch(struct json_text *text, size_t layers, const struct mqar_epoch *epoch)
{
	json_text_open(text, NULL, '{');
	json_text_put_size(text, "epoch", epoch->epoch);
	json_text_put_size(text, "steps", epoch->steps);
	json_text_put_size(text, "asked", epoch->asked);
	json_text_put_number(text, "accuracy", epoch->accuracy);
	json_text_put_number(text, "loss", epoch->loss);
	json_text_open(text, "layers", '[');
	for (size_t i = 0; i < layers; i++) {
		if (epoch->layers[i].adapted)
			add_layer(text, i, &epoch->layers[i]);
	}
	json_text_add(text, "]}");
}

static void add_run(struct json_text *text, const struct mqar_result *result, const struct mqar_run *run)
{
	json_text_open(text, NULL, '{');
	json_text_put_string(text, "mode", mqar_mode_names[run->mode]);
	json_text_put_size(text, "parameters", run->parameters);
	json_text_put_number(text, "seconds", run->seconds);
	json_text_put_number(text, "tokens_per_second", run->tokens_per_second);
	json_text_open(text, "epochs", '[');
	for (size_t i = 0; i < run->count; i++)
		add_epoch(text, result->setup.layers, &run->epochs[i]);
	json_text_add(text, "]}");
}

bool mqar_print_json(const struct mqar_result *result, rosa_error *why)
{
	const struct mqar_setup *setup = &result->setup;
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_size(&text, "pairs", setup->task.pairs);
	json_text_put_size(&text, "length", setup->task.length);
	json_text_put_size(&text, "vocabulary", setup->task.vocabulary);
	json_text_put_size(&text, "window", setup->network.adapter.window);
	json_text_put_size(&text, "dim", setup->width);
	json_text_put_size(&text, "layers", setup->layers);
	json_text_put_size(&text, "bits", setup->network.adapter.bits);
	json_text_put_size(&text, "examples", setup->examples);
	json_text_put_size(&text, "batch", setup->batch);
	json_text_put_size(&text, "seed", setup->seed);
	json_text_put_bool(&text, "interrupted", result->interrupted);
	json_text_open(&text, "runs", '[');
	for (size_t i = 0; i < result->count; i++)
		add_run(&text, result, &result->runs[i]);
	json_text_add(&text, "]}\n");
	return json_print(&text, why);
}
