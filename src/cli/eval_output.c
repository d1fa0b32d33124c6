/*
 * Tables, JSON and heat maps of tasks.
 *
 * A table is a list of rows, each a group of examples and one of its means; what differs between a terminal and
 * Markdown is only how a row is laid out. Scores are percentages there and shares in JSON.
 */
#include "cli/eval_output.h"

#include "base/json_text.h"
#include "cli/gnuplot.h"
#include "cli/text_input.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LENGTHS 64 /* groups: powers of two */
#define DEPTHS  10 /* groups: tenths */
#define MAPS    4  /* heat maps side by side at most */

/* ------------------------------------------------------------------------------------------------------- groups -- */

static bool has(const struct eval_results *results, const char *task, const char *condition)
{
	const struct eval_group group = {task, condition, 0, -1};

	return results_summary(results, &group).count > 0;
}

/* The lengths of a task, in order; returns how many. */
static size_t find_lengths(const struct eval_results *results, const char *task, size_t *lengths)
{
	bool there[LENGTHS] = {false};
	size_t count = 0;

	for (size_t i = 0; i < results->count; i++) {
		const size_t group = length_group(results->all[i].length);

		if (group && (!task || strcmp(results->all[i].task, task) == 0))
			for (unsigned bit = 0; bit < LENGTHS; bit++)
				there[bit] = there[bit] || group == (size_t)1 << bit;
	}
	for (unsigned bit = 0; bit < LENGTHS; bit++) {
		if (there[bit])
			lengths[count++] = (size_t)1 << bit;
	}
	return count;
}

static bool has_depth(const struct eval_results *results, const char *task, int depth)
{
	for (size_t i = 0; i < results->count; i++) {
		if ((!task || strcmp(results->all[i].task, task) == 0) &&
		    (depth < 0 ? !isnan(results->all[i].depth) : depth_group(results->all[i].depth) == depth))
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------------------------------------------- tables -- */

enum mean { MEAN_SCORE, MEAN_NORMED, MEAN_PERPLEXITY };

/* A table of one task in a terminal, or of all tasks in Markdown. */
struct layout {
	const struct eval_results *results;
	const char *task;
	bool markdown, depths; /* depths: with their rows */
};

/* Whether a condition has a column: in Markdown, where one table has all tasks, always. */
static bool has_column(const struct layout *layout, const char *condition)
{
	return layout->markdown || has(layout->results, layout->task, condition);
}

/* `most` is what the row says of all its cells; one of fewer examples says so itself. */
static void make_cell(const struct eval_summary *summary, enum mean mean, size_t most, char *cell, size_t room)
{
	const double value = mean == MEAN_SCORE ? summary->score : summary->normed;
	const double error = mean == MEAN_SCORE ? summary->error : summary->normed_error;

	if (!summary->count)
		snprintf(cell, room, "-");
	else if (mean == MEAN_PERPLEXITY)
		snprintf(cell, room, "%.2f", summary->perplexity);
	else if (isnan(error))
		snprintf(cell, room, "%.1f", 100 * value);
	else
		snprintf(cell, room, "%.1f +- %.1f", 100 * value, 100 * error);
	if (summary->count && summary->count < most)
		snprintf(cell + strlen(cell), room - strlen(cell), " (%zu)", summary->count);
}

/* A row: one mean of a group under every condition. */
static void put_row(const struct layout *layout, const char *name, size_t length, int depth, enum mean mean)
{
	const struct eval_results *results = layout->results;
	struct eval_group group = {layout->task, NULL, length, depth};
	size_t examples = 0;

	for (size_t c = 0; c < results->condition_count; c++) {
		group.condition = results->conditions[c];
		const size_t here = results_summary(results, &group).count;
		examples = here > examples ? here : examples;
	}
	if (!examples)
		return;
	if (layout->markdown)
		printf("| %s, %s | %zu |", layout->task, name, examples);
	else
		printf("  %-38s %6zu", name, examples);
	for (size_t c = 0; c < results->condition_count; c++) {
		char cell[64];

		if (!has_column(layout, results->conditions[c]))
			continue;
		group.condition = results->conditions[c];
		const struct eval_summary summary = results_summary(results, &group);
		make_cell(&summary, mean, examples, cell, sizeof(cell));
		printf(layout->markdown ? " %s |" : " %16s", cell);
	}
	printf("\n");
}

static enum eval_metric metric_of(const struct eval_results *results, const char *task)
{
	for (size_t i = 0; i < results->count; i++) {
		if (strcmp(results->all[i].task, task) == 0)
			return results->all[i].metric;
	}
	return METRICS;
}

static void put_rows(const struct layout *layout)
{
	const enum eval_metric metric = metric_of(layout->results, layout->task);
	size_t lengths[LENGTHS], count = find_lengths(layout->results, layout->task, lengths);
	char name[64];

	snprintf(name, sizeof(name), "%s",
		 metric == METRIC_CHOICE || metric == METRIC_WORD ? "accuracy" : eval_metric_names[metric]);
	put_row(layout, name, 0, -1, MEAN_SCORE);
	if (metric == METRIC_CHOICE)
		put_row(layout, "accuracy by log-probability per character", 0, -1, MEAN_NORMED);
	if (metric == METRIC_WORD)
		put_row(layout, "perplexity of the word", 0, -1, MEAN_PERPLEXITY);
	for (size_t i = 0; i < count && count > 1; i++) {
		snprintf(name, sizeof(name), "length up to %zu", lengths[i]);
		put_row(layout, name, lengths[i], -1, MEAN_SCORE);
	}
	for (int depth = 0; depth < DEPTHS && layout->depths; depth++) {
		if (!has_depth(layout->results, layout->task, depth))
			continue;
		snprintf(name, sizeof(name), "depth %d to %d %%", 10 * depth, 10 * depth + 10);
		put_row(layout, name, 0, depth, MEAN_SCORE);
	}
}

void eval_print_tables(const struct eval_results *results)
{
	for (size_t i = 0; i < results->name_count; i++) {
		const struct layout layout = {.results = results, .task = results->names[i], .depths = true};

		printf("%s%-40s %6s", i ? "\n" : "", layout.task, "of");
		for (size_t c = 0; c < results->condition_count; c++) {
			if (has_column(&layout, results->conditions[c]))
				printf(" %16s", results->conditions[c]);
		}
		printf("\n");
		put_rows(&layout);
	}
}

void eval_print_markdown(const struct eval_results *results, bool depths)
{
	struct layout layout = {.results = results, .markdown = true, .depths = depths};

	printf("| task | examples |");
	for (size_t c = 0; c < results->condition_count; c++)
		printf(" %s |", results->conditions[c]);
	printf("\n|---|---|");
	for (size_t c = 0; c < results->condition_count; c++)
		printf("---|");
	printf("\n");
	for (size_t i = 0; i < results->name_count; i++) {
		layout.task = results->names[i];
		put_rows(&layout);
	}
}

/* --------------------------------------------------------------------------------------------------------- JSON -- */

static void add_summary(struct json_text *text, const struct eval_results *results, const struct eval_group *group)
{
	const struct eval_summary summary = results_summary(results, group);
	const struct {
		const char *name;
		double value;
	} means[] = {{"score", summary.score},
		     {"error", summary.error},
		     {"normed", summary.normed},
		     {"normed_error", summary.normed_error},
		     {"perplexity", summary.perplexity}};

	json_text_put_size(text, "examples", summary.count);
	for (size_t i = 0; i < sizeof(means) / sizeof(means[0]); i++) {
		if (i >= 2 && isnan(means[i].value))
			continue;
		json_text_put_number(text, means[i].name, means[i].value);
	}
}

/* The groups of a task under a condition by length, and by depth within each. */
static void add_lengths(struct json_text *text, const struct eval_results *results, struct eval_group group)
{
	size_t lengths[LENGTHS], count = find_lengths(results, group.task, lengths);
	char key[24];

	json_text_open(text, "lengths", '{');
	for (size_t i = 0; i < count; i++) {
		group.length = lengths[i];
		group.depth = -1;
		snprintf(key, sizeof(key), "%zu", lengths[i]);
		json_text_open(text, key, '{');
		add_summary(text, results, &group);
		json_text_open(text, "depths", '{');
		for (group.depth = 0; group.depth < DEPTHS; group.depth++) {
			if (!results_summary(results, &group).count)
				continue;
			snprintf(key, sizeof(key), "%d", 10 * group.depth);
			json_text_open(text, key, '{');
			add_summary(text, results, &group);
			json_text_close(text, '}');
		}
		json_text_add(text, "}}");
	}
	json_text_close(text, '}');
}

bool eval_print_json(const struct eval_results *results, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put(&text, "settings", "%s", results->settings ? results->settings : "null");
	json_text_open(&text, "tasks", '{');
	for (size_t i = 0; i < results->name_count; i++) {
		const char *name = results->names[i];

		json_text_open(&text, name, '{');
		json_text_put_string(&text, "metric", eval_metric_names[metric_of(results, name)]);
		json_text_open(&text, "conditions", '{');
		for (size_t c = 0; c < results->condition_count; c++) {
			const struct eval_group group = {name, results->conditions[c], 0, -1};

			if (!has(results, name, group.condition))
				continue;
			json_text_open(&text, group.condition, '{');
			add_summary(&text, results, &group);
			add_lengths(&text, results, group);
			json_text_close(&text, '}');
		}
		json_text_add(&text, "}}");
	}
	json_text_add(&text, "}}\n");
	return json_print(&text, why);
}

/* ---------------------------------------------------------------------------------------------------- heat maps -- */

/* The mean score of needles of all tasks; NAN: there are none. */
static double depth_score(const struct eval_results *results, const char *condition, size_t length, int depth)
{
	double sum = 0;
	size_t count = 0;

	for (size_t i = 0; i < results->count; i++) {
		const struct eval_record *record = &results->all[i];

		if (strcmp(record->condition, condition) != 0 || length_group(record->length) != length ||
		    depth_group(record->depth) != depth)
			continue;
		sum += record->score;
		count++;
	}
	return count ? sum / (double)count : NAN;
}

static size_t map_columns(const struct eval_results *results)
{
	return results->condition_count < MAPS ? results->condition_count : MAPS;
}

static size_t map_rows(const struct eval_results *results)
{
	return (results->condition_count + MAPS - 1) / MAPS;
}

static void put_maps(FILE *script, const void *context)
{
	const struct eval_results *results = context;
	size_t lengths[LENGTHS], count = find_lengths(results, NULL, lengths);

	fprintf(script,
		"set multiplot layout %zu,%zu\nset cbrange [0:100]\nset palette defined (0 '#b2182b', 50 '#fee090', "
		"100 '#2166ac')\nset xlabel 'length'\nset ylabel 'depth, %%'\nset xrange [-0.5:%g]\n"
		"set yrange [9.5:-0.5]\nset ytics ('5' 0, '25' 2, '45' 4, '65' 6, '85' 8)\nset xtics (",
		map_rows(results), map_columns(results), (double)count - 0.5);
	for (size_t i = 0; i < count; i++)
		fprintf(script, "%s'%zu' %zu", i ? ", " : "", lengths[i], i);
	fputs(")\n", script);
	for (size_t c = 0; c < results->condition_count; c++) {
		fprintf(script,
			"set title '%s'\nplot '-' using 1:2:(0.5):(0.5):3 with boxxyerror fillstyle solid noborder "
			"fillcolor palette notitle\n",
			results->conditions[c]);
		for (size_t i = 0; i < count; i++) {
			for (int depth = 0; depth < DEPTHS; depth++) {
				const double score = depth_score(results, results->conditions[c], lengths[i], depth);

				if (!isnan(score))
					fprintf(script, "%zu %d %.9g\n", i, depth, 100 * score);
			}
		}
		fputs("e\n", script);
	}
	fputs("unset multiplot\n", script);
}

bool eval_draw_depths(const struct eval_results *results, const char *path, rosa_error *why)
{
	if (!has_depth(results, NULL, -1))
		return refuse(why, "--plot %s: no result knows the depth of a needle", path);
	const struct picture picture = {
	    .path = path, .width = 420 * map_columns(results), .height = 420 * map_rows(results)};
	return picture_draw(&picture, put_maps, results, why);
}
