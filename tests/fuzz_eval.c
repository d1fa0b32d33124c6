/* Any bytes as a task and as a file of results: refused with a reason, or whole. */
#include "eval/results.h"
#include "support_fuzz.h"

#include <math.h>

static void try_task(const char *text, size_t size)
{
	const struct eval_task_options options = {.metric = METRIC_F1, .tokens = 8, .limit = size % 5};
	rosa_error error = {ROSA_OK, ""};
	struct eval_task task;

	if (task_parse(text, size, "a/niah.jsonl", &options, &task, &error) != ROSA_OK) {
		check(!strncmp(error.message, "a/niah.jsonl:", 13) && !task.count && !task.name);
		return;
	}
	check(task.count > 0 && task.name && (!options.limit || task.count <= options.limit));
	for (size_t i = 0; i < task.count; i++) {
		const struct eval_example *example = &task.examples[i];
		double score;

		check(!example->prompt == (task.metric >= METRIC_CHOICE));
		check(isnan(example->depth) || (example->depth >= 0 && example->depth <= 1));
		check(example->contexts.count == example->continuations.count);
		if (!example->prompt) {
			check(example->gold < example->continuations.count);
			continue;
		}
		for (int metric = 0; metric < METRIC_CHOICE; metric++) {
			check(answer_score((enum eval_metric)metric, example->prompt, &example->answers,
					   &example->answers, &score, &error) == ROSA_OK);
			check(score >= 0 && score <= 1);
		}
	}
	task_free(&task);
}

static void try_results(const char *text, size_t size)
{
	struct eval_results results = {0};
	rosa_error error = {ROSA_OK, ""};
	uint64_t whole = 0;

	if (results_parse(&results, text, size, "r.jsonl", &whole, &error) != ROSA_OK)
		check(!strncmp(error.message, "r.jsonl:", 8));
	else
		check(whole <= size && (whole == 0 || text[whole - 1] == '\n'));
	for (size_t i = 0; i < results.count; i++) {
		const struct eval_record *record = &results.all[i];
		const struct eval_group group = {record->task, record->condition, length_group(record->length),
						 depth_group(record->depth)};
		const struct eval_summary summary = results_summary(&results, &group);

		check(summary.count > 0 && summary.score >= 0 && summary.score <= 1);
	}
	results_free(&results);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_task((const char *)data, size);
	try_results((const char *)data, size);
	return 0;
}
