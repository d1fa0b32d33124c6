/* Any bytes as a task, as a file of results and as answers of a model elsewhere: refused with a reason, or whole. */
#include "eval/external.h"
#include "support_fuzz.h"
#include "support_fuzz_file.h"
#include "support_tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void try_task(const char *text, size_t size)
{
	const struct eval_task_options options = {.metric = METRIC_F1, .tokens = 8, .limit = size % 5};
	const char *path = fuzz_file(text, size);
	rosa_error error = {ROSA_OK, ""};
	struct eval_task task;

	if (task_load(path, &options, NULL, &task, &error) != ROSA_OK) {
		check(!strncmp(error.message, path, strlen(path)) && !task.count && !task.name);
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
	const char *path = fuzz_file(text, size);
	struct eval_results results = {0};
	rosa_error error = {ROSA_OK, ""};
	uint64_t whole = 0;

	if (results_read(&results, path, NULL, &whole, &error) != ROSA_OK)
		check(!strncmp(error.message, path, strlen(path)));
	else if (results_can_append(path))
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

static rosa_status take_settings(void *context, const char *settings, rosa_error *err)
{
	check(settings != NULL);
	return ROSA_OK;
}

static rosa_status take_record(void *context, const struct eval_task *task, const struct eval_record *record,
			       const struct eval_detail *detail, rosa_error *err)
{
	check(record->example < task->count && record->score >= 0 && record->score <= 1);
	check(detail->answer ? !strstr(detail->answer, "stop") : detail->count == 2);
	return ROSA_OK;
}

/* Made once for all inputs; still reachable at the end, so no leak. */
static const struct external *answers_reader(void)
{
	static const char *const lines[] = {
	    "{\"input\": \"Who?\", \"outputs\": [\"me\"], \"index\": 0}\n",
	    "{\"context\": \"a\", \"continuations\": [\"b\", \"c\"], \"gold\": 1}\n",
	};
	static const char *const stops[] = {"stop"};
	static struct model_config config = {.eos = {0}, .eos_count = 1};
	static struct eval_task tasks[2];
	static struct answer answer;
	static struct external external = {.tasks = tasks, .count = 2, .settings = take_settings, .take = take_record};
	struct answer_options options = {
	    .config = &config, .end = -1, .stops = stops, .stop_count = 1, .sampling = SAMPLER_OPTIONS_INIT};
	const struct recipe recipe = {.merges = "t h,th e"};
	rosa_error error = {ROSA_OK, ""};

	if (external.answer)
		return &external;
	for (size_t i = 0; i < 2; i++) {
		const struct eval_task_options task = {
		    .name = i ? "choice" : "prompt", .metric = METRIC_F1, .tokens = 8};

		check(task_load(fuzz_file(lines[i], strlen(lines[i])), &task, NULL, &tasks[i], &error) == ROSA_OK);
	}
	options.tokenizer = recipe_make(&recipe);
	config.vocabulary = tokenizer_size(options.tokenizer);
	check(answer_open(&answer, &options, &error) == ROSA_OK);
	external.answer = &answer;
	return &external;
}

/* As lines, and as the rest of a line whose first fields are right, which mutations would not hit. */
static void try_answers(const char *text, size_t size)
{
	const struct external *external = answers_reader();
	rosa_error error = {ROSA_OK, ""};
	bool begun = size % 2;

	if (external_read_line(external, text, size, "a.jsonl:1", &begun, &error) != ROSA_OK)
		check(!strncmp(error.message, "a.jsonl:1", 9));
	begun = true;
	for (size_t i = 0; i < external->count; i++) {
		char *line = malloc(size + 200);
		int head;

		check(line != NULL);
		head = snprintf(line, 200,
				"{\"task\": \"%s\", \"example\": 0, \"sum\": \"%016" PRIx64
				"\", \"condition\": \"c\", \"%s\": [",
				external->tasks[i].name, external->tasks[i].examples[0].sum, i ? "logarithms" : "ids");
		check(head > 0 && head < 200);
		memcpy(line + head, text, size);
		memcpy(line + head + size, "]}", 2);
		if (external_read_line(external, line, (size_t)head + size + 2, "a.jsonl:1", &begun, &error) != ROSA_OK)
			check(!strncmp(error.message, "a.jsonl:1", 9));
		free(line);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_task((const char *)data, size);
	try_results((const char *)data, size);
	try_answers((const char *)data, size);
	return 0;
}
