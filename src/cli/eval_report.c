/*
 * rosatune report: files of results as Markdown.
 *
 * Every file has settings of its own, so it becomes a table of its own, below a line that says what they were. Files of
 * one model under different conditions (trained in different ways, say) may also become one table.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/eval_output.h"
#include "cli/gnuplot.h"
#include "cli/interrupt.h"

#include <stdio.h>
#include <string.h>

#define COMMAND "report"

struct report {
	struct arg_words files;
	const char *plot;
	bool together, no_depths;
	struct eval_results results;
};

/* The model, and what is beside it. */
static bool print_settings(const struct report *job, const char *path, rosa_error *why)
{
	const char *settings = job->results.settings, *model = NULL, *adapter = NULL, *pointer = NULL;
	size_t window = 0, sinks = 0;
	struct json root = {0};
	bool good = settings || refuse(why, "%s: has no line of settings; is it a result of rosatune eval?", path);

	good = good && json_read(settings, strlen(settings), path, &root, why) == ROSA_OK &&
	       json_get_string(root, "model", JSON_NEEDED, &model, why) == ROSA_OK &&
	       json_get_string(root, "adapter", JSON_OPTIONAL, &adapter, why) == ROSA_OK &&
	       json_get_string(root, "pointer", JSON_OPTIONAL, &pointer, why) == ROSA_OK &&
	       json_get_size(root, "window", JSON_NEEDED, &window, why) == ROSA_OK &&
	       json_get_size(root, "sinks", JSON_NEEDED, &sinks, why) == ROSA_OK;
	if (good) {
		printf("%s", model);
		if (window)
			printf(", window %zu, sinks %zu", window, sinks);
		printf("%s%s%s%s (%s):\n", adapter ? ", adapter " : "", adapter ? adapter : "",
		       pointer ? ", pointer " : "", pointer ? pointer : "", path);
	}
	json_free(&root);
	return good;
}

/* Refuses results that two files have: they would count twice. */
static bool check_twice(const struct eval_results *results, size_t before, const char *path, rosa_error *why)
{
	for (size_t i = before; i < results->count; i++) {
		const struct eval_record *one = &results->all[i];

		for (size_t k = 0; k < before; k++) {
			const struct eval_record *other = &results->all[k];

			/* names are the results' own: equal ones are the same */
			if (one->example == other->example && one->task == other->task &&
			    one->condition == other->condition)
				return refuse(why, "%s: has example %zu of %s under %s, as has a file before it", path,
					      one->example, one->task, one->condition);
		}
	}
	return true;
}

static bool read_file(struct report *job, const char *path, rosa_error *why)
{
	const size_t before = job->results.count;

	if (results_read(&job->results, path, &interrupt_hooks, NULL, why) != ROSA_OK)
		return false;
	if (job->results.count == before)
		return refuse(why, "%s: has no results", path);
	return check_twice(&job->results, before, path, why) && print_settings(job, path, why);
}

/* The table of what was read, and its picture. */
static bool print_table(const struct report *job, rosa_error *why)
{
	printf("\n");
	eval_print_markdown(&job->results, !job->no_depths);
	return !job->plot || eval_draw_depths(&job->results, job->plot, why);
}

int report_command(int count, char **words)
{
	struct report job = {0};
	rosa_error why = {0};
	struct arg options[] = {
	    OPTION_FLAG("together", &job.together, "one table of all files; no result may be in two"),
	    OPTION_FLAG("no-depths", &job.no_depths, "leave out the rows of depths"),
	    OPTION_TEXT("plot", &job.plot, "PICTURE",
			"draw scores of needles by depth and length to a .png, .svg or .pdf file (needs gnuplot)"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "RESULTS... [--plot PICTURE]",
	    .summary = "Prints files of results of rosatune eval as tables in Markdown.",
	    ARGS_OPTIONS(options),
	    .notes = "Scores are percentages, with their standard errors. A picture is of one table.",
	    .operands = &job.files,
	    .operand_name = "RESULTS",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = (!job.plot || job.files.count == 1 || job.together ||
		     refuse(&why, "--plot %s: is of one file; or give --together", job.plot)) &&
		    (!job.plot || picture_can_be(job.plot, &why));
	for (size_t i = 0; i < job.files.count && good; i++) {
		printf("%s", i && !job.together ? "\n" : "");
		good = read_file(&job, job.files.all[i], &why);
		if (job.together)
			continue;
		good = good && print_table(&job, &why);
		results_free(&job.results);
	}
	good = good && (!job.together || print_table(&job, &why));
	results_free(&job.results);
	return command_end(COMMAND, good, &why);
}
