/*
 * rosatune report: files of results as Markdown.
 *
 * Every file has settings of its own, so it becomes a table of its own, below a line that says what they were.
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
		printf("%s%s%s%s (%s):\n\n", adapter ? ", adapter " : "", adapter ? adapter : "",
		       pointer ? ", pointer " : "", pointer ? pointer : "", path);
	}
	json_free(&root);
	return good;
}

static bool report_file(struct report *job, const char *path, rosa_error *why)
{
	if (results_read(&job->results, path, &interrupt_hooks, NULL, why) != ROSA_OK)
		return false;
	if (!job->results.count)
		return refuse(why, "%s: has no results", path);
	if (!print_settings(job, path, why))
		return false;
	eval_print_markdown(&job->results);
	return !job->plot || eval_draw_depths(&job->results, job->plot, why);
}

int report_command(int count, char **words)
{
	struct report job = {0};
	rosa_error why = {0};
	struct arg options[] = {
	    OPTION_TEXT("plot", &job.plot, "PICTURE",
			"draw scores of needles by depth and length to a .png, .svg or .pdf file (needs gnuplot)"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "RESULTS... [--plot PICTURE]",
	    .summary = "Prints files of results of rosatune eval as tables in Markdown.",
	    .options = options,
	    .count = sizeof(options) / sizeof(options[0]),
	    .notes = "Scores are percentages, with their standard errors. A picture is of one file.",
	    .operands = &job.files,
	    .operand_name = "RESULTS",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = (!job.plot || job.files.count == 1 || refuse(&why, "--plot %s: is of one file", job.plot)) &&
		    (!job.plot || picture_can_be(job.plot, &why));
	for (size_t i = 0; i < job.files.count && good; i++) {
		printf("%s", i ? "\n" : "");
		good = report_file(&job, job.files.all[i], &why);
		results_free(&job.results);
	}
	return command_end(COMMAND, good, &why);
}
