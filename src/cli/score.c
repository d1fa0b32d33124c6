/*
 * rosatune score: answers that are there already, of this program or another, against those expected.
 *
 * A line has the answer in "pred" (RULER, LongBench) or "answer" (results of rosatune eval), and what was expected in
 * "outputs", "answers" or "expected".
 */
#include "cli/commands.h"

#include "base/json_text.h"
#include "cli/args.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/text_input.h"
#include "eval/metrics.h"
#include "eval/results.h"
#include "train/pack_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define COMMAND   "score"
#define CONDITION "given" /* what the answers were made under is not known */

struct score {
	struct arg_words files;
	int metric;
	bool json, first_line;
	struct eval_results results; /* a task per file */
};

/* The field of the first of these names that is there; nothing: none is. */
static struct json field_of(struct json line, const char *const *names)
{
	struct json field = {0};

	for (; *names && !json_there(field); names++)
		field = json_find(line, *names);
	return field;
}

static bool get_strings(struct json array, struct eval_strings *strings, rosa_error *why)
{
	const size_t count = json_count(array);
	bool good = true;

	if (!count)
		return true;
	strings->all = get_memory(count, sizeof(*strings->all), "answers", why);
	good = strings->all != NULL;
	for (; strings->count < count && good; strings->count += good)
		good = json_as_string(json_at(array, strings->count), (const char **)&strings->all[strings->count],
				      why) == ROSA_OK;
	return good;
}

static bool score_line(struct score *job, const char *path, struct json line, size_t number, rosa_error *why)
{
	static const char *const answers[] = {"pred", "answer", NULL};
	static const char *const expected[] = {"outputs", "answers", "expected", NULL};
	const struct json array = field_of(line, expected);
	struct eval_record record = {.task = path,
				     .example = number,
				     .condition = CONDITION,
				     .metric = (enum eval_metric)job->metric,
				     .normed = NAN,
				     .loss = NAN,
				     .depth = NAN};
	struct eval_strings strings = {0}, classes = {0};
	const char *answer;
	char *first = NULL;

	if (!json_there(field_of(line, answers)))
		return json_refuse(line, why, "has neither of the fields pred and answer") == ROSA_OK;
	if (json_kind(array) != JSON_IS_ARRAY || !json_count(array))
		return json_refuse(line, why, "has no list of strings outputs, answers or expected") == ROSA_OK;
	if (job->metric == METRIC_CLASS && !json_count(json_find(line, "all_classes")))
		return json_refuse(line, why, "has no list of strings all_classes") == ROSA_OK;
	bool good = json_as_string(field_of(line, answers), &answer, why) == ROSA_OK &&
		    get_strings(array, &strings, why) && get_strings(json_find(line, "all_classes"), &classes, why);
	if (good && job->first_line) {
		first = answer_line(answer);
		good = first || refuse(why, "not enough memory for an answer");
	}
	good = good &&
	       answer_score(record.metric, first ? first : answer, &strings, &classes, &record.score, why) == ROSA_OK &&
	       results_add(&job->results, &record, why) == ROSA_OK;
	free(first);
	free(strings.all);
	free(classes.all);
	return good;
}

static bool score_file(struct score *job, const char *path, rosa_error *why)
{
	struct pack_lines lines;
	const char *line = NULL;
	size_t size = 0, number = 0;
	bool good = pack_lines_open(&lines, path, &interrupt_hooks, why) == ROSA_OK;

	while (good) {
		struct json root = {0};
		char where[512];

		good = pack_lines_next(&lines, &line, &size, why) == ROSA_OK;
		if (!good || !line)
			break;
		if (pack_line_blank(line, size))
			continue;
		snprintf(where, sizeof(where), "%.480s:%llu", path, (unsigned long long)lines.number);
		good = json_read(line, size, where, &root, why) == ROSA_OK;
		/* settings of rosatune eval */
		if (good && !json_there(json_find(root, "settings")))
			good = score_line(job, path, root, number++, why);
		json_free(&root);
	}
	pack_lines_close(&lines);
	return good && (number || refuse(why, "%s: has no answers", path));
}

static bool print_json(const struct score *job, rosa_error *why)
{
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_string(&text, "metric", eval_metric_names[job->metric]);
	json_text_open(&text, "files", '{');
	for (size_t i = 0; i < job->results.name_count; i++) {
		const struct eval_group group = {job->results.names[i], CONDITION, 0, -1};
		const struct eval_summary summary = results_summary(&job->results, &group);

		json_text_open(&text, group.task, '{');
		json_text_put_size(&text, "answers", summary.count);
		json_text_put_number(&text, "score", summary.score);
		json_text_put_number(&text, "error", summary.error);
		json_text_open(&text, "scores", '[');
		for (size_t k = 0; k < job->results.count; k++) {
			if (job->results.all[k].task == group.task)
				json_text_put_number(&text, NULL, job->results.all[k].score);
		}
		json_text_add(&text, "]}");
	}
	json_text_add(&text, "}}\n");
	return json_print(&text, why);
}

static void print_table(const struct score *job)
{
	for (size_t i = 0; i < job->results.name_count; i++) {
		const struct eval_group group = {job->results.names[i], CONDITION, 0, -1};
		const struct eval_summary summary = results_summary(&job->results, &group);

		printf("%s: %s %.1f", group.task, eval_metric_names[job->metric], 100 * summary.score);
		if (!isnan(summary.error))
			printf(" +- %.1f", 100 * summary.error);
		printf(", %zu answer%s\n", summary.count, summary.count == 1 ? "" : "s");
	}
}

int score_command(int count, char **words)
{
	struct score job = {0};
	rosa_error why = {0};
	struct arg options[] = {
	    OPTION_CHOICE("metric", &job.metric, "M", eval_metric_names,
			  "match-all, match-part, exact, f1, rouge-l, class or code", .required = true),
	    OPTION_FLAG("first-line", &job.first_line, "only the first line of an answer counts"),
	    OPTION_FLAG("json", &job.json, "print one JSON object, with the score of every answer"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--metric M FILE...",
	    .summary = "Scores answers that a model gave: JSON lines with the answer in \"pred\" or \"answer\", and a\n"
		       "list of those expected in \"outputs\", \"answers\" or \"expected\"; a class is one of "
		       "\"all_classes\".",
	    ARGS_OPTIONS(options),
	    .operands = &job.files,
	    .operand_name = "FILE",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = job.metric < METRIC_CHOICE ||
		    refuse(&why, "--metric %s: is for choices, not for answers", eval_metric_names[job.metric]);
	for (size_t i = 0; i < job.files.count && good; i++)
		good = score_file(&job, job.files.all[i], &why);
	if (good && job.json)
		good = print_json(&job, &why);
	else if (good)
		print_table(&job);
	results_free(&job.results);
	return command_end(COMMAND, good, &why);
}
