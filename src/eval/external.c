/* Writes the prompts of `eval --prepare` and scores the answers of `eval --answers`. */
#include "eval/external.h"

#include "base/json_text.h"
#include "base/status.h"
#include "train/pack_lines.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ prompts -- */

static rosa_status put_line(struct file_writer *file, struct json_text *line, rosa_error *err)
{
	rosa_status status;

	json_text_add(line, "\n");
	status = line->failed ? rosa_fail(err, ROSA_ENOMEM, "%s: no memory for a line", file->path)
			      : file_write(file, line->data, line->size, err);
	json_text_free(line);
	return status;
}

static void add_ids(struct json_text *line, const struct tokens *tokens)
{
	json_text_add(line, "[");
	for (size_t i = 0; i < tokens->count; i++)
		json_text_add(line, "%s%" PRIu32, i ? "," : "", tokens->ids[i]);
	json_text_add(line, "]");
}

/* The bytes of a token, each as the character of that number; nothing for those that answers do not show. */
static void add_piece(struct json_text *line, const tokenizer *tokenizer, uint32_t id)
{
	size_t size = 0;
	const char *bytes = tokenizer_bytes(tokenizer, id, &size);

	if (tokenizer_is_special(tokenizer, id))
		size = 0;
	json_text_add(line, "\"");
	for (size_t i = 0; i < size; i++) {
		const unsigned char byte = (unsigned char)bytes[i];
		const bool plain = byte >= ' ' && byte < 0x7f && byte != '"' && byte != '\\';

		json_text_add(line, plain ? "%c" : "\\u%04x", byte);
	}
	json_text_add(line, "\"");
}

rosa_status external_write_head(struct file_writer *file, const struct model_config *config, const tokenizer *tokenizer,
				rosa_error *err)
{
	struct json_text line = {0};

	json_text_add(&line, "{\"prompts\": {\"vocabulary\": %zu, \"ends\": [", (size_t)config->vocabulary);
	for (size_t i = 0; i < config->eos_count; i++)
		json_text_put(&line, NULL, "%" PRId64, config->eos[i]);
	json_text_add(&line, "], \"pieces\": [");
	for (size_t id = 0; id < tokenizer_size(tokenizer); id++) {
		json_text_add(&line, "%s", id ? "," : "");
		add_piece(&line, tokenizer, (uint32_t)id);
	}
	json_text_add(&line, "]}}");
	return put_line(file, &line, err);
}

static rosa_status add_prompt(struct json_text *line, const struct eval_task *task, const struct eval_example *example,
			      const tokenizer *tokenizer, size_t most, rosa_error *err)
{
	struct tokens tokens = {0};
	rosa_status status = example_prompt(tokenizer, example, most, &tokens, err);

	if (status != ROSA_OK)
		return status;
	json_text_put_size(line, "tokens", task->tokens);
	json_text_key(line, "ids");
	add_ids(line, &tokens);
	tokens_free(&tokens);
	json_text_open(line, "expected", '[');
	for (size_t i = 0; i < example->answers.count; i++)
		json_text_put_string(line, NULL, example->answers.all[i]);
	json_text_close(line, ']');
	return ROSA_OK;
}

static rosa_status add_choice(struct json_text *line, const struct eval_example *example, const tokenizer *tokenizer,
			      rosa_error *err)
{
	struct json_text firsts = {0};
	rosa_status status = ROSA_OK;

	json_text_add(line, ", \"texts\": [");
	for (size_t i = 0; i < example->continuations.count && status == ROSA_OK; i++) {
		struct tokens tokens = {0};
		size_t first = 0;

		status = choice_encode(tokenizer, example->contexts.all[i], example->continuations.all[i], &tokens,
				       &first, err);
		if (status != ROSA_OK)
			break;
		json_text_add(line, "%s", i ? "," : "");
		add_ids(line, &tokens);
		json_text_add(&firsts, "%s%zu", i ? "," : "", first);
		tokens_free(&tokens);
	}
	json_text_add(line, "], \"first\": [%s]", firsts.data ? firsts.data : "");
	line->failed = line->failed || firsts.failed;
	json_text_free(&firsts);
	return status;
}

rosa_status external_write_task(struct file_writer *file, const struct eval_task *task, const tokenizer *tokenizer,
				size_t prompt_tokens, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < task->count && status == ROSA_OK; i++) {
		const struct eval_example *example = &task->examples[i];
		struct json_text line = {0};

		json_text_open(&line, NULL, '{');
		json_text_put_string(&line, "task", task->name);
		json_text_put_size(&line, "example", i);
		json_text_put(&line, "sum", "\"%016" PRIx64 "\"", example->sum);
		json_text_put_string(&line, "metric", eval_metric_names[task->metric]);
		if (example->length)
			json_text_put_size(&line, "length", example->length);
		if (!isnan(example->depth))
			json_text_put_number(&line, "depth", example->depth);
		status = example->prompt ? add_prompt(&line, task, example, tokenizer, prompt_tokens, err)
					 : add_choice(&line, example, tokenizer, err);
		json_text_add(&line, "}");
		if (status == ROSA_OK)
			status = put_line(file, &line, err);
		json_text_free(&line);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------ answers -- */

/* The fields of an answer line as parsed, before they are validated. */
struct said {
	const struct eval_task *task; /* NULL: none of ours */
	size_t example;
	const char *condition;
};

static rosa_status find_example(const struct external *external, struct json line, struct said *said, rosa_error *err)
{
	const char *task = NULL, *sum = NULL;
	char ours[17];
	rosa_status status = json_get_string(line, "task", JSON_NEEDED, &task, err);

	if (status == ROSA_OK)
		status = json_get_size(line, "example", JSON_NEEDED, &said->example, err);
	if (status == ROSA_OK)
		status = json_get_string(line, "sum", JSON_NEEDED, &sum, err);
	if (status == ROSA_OK)
		status = json_get_string(line, "condition", JSON_NEEDED, &said->condition, err);
	if (status != ROSA_OK)
		return status;
	if (!condition_name_fits(said->condition))
		return json_refuse(json_find(line, "condition"), err, "is no name of a condition");
	for (size_t i = 0; i < external->count && !said->task; i++)
		said->task = strcmp(external->tasks[i].name, task) == 0 ? &external->tasks[i] : NULL;
	if (!said->task)
		return ROSA_OK;
	if (said->example >= said->task->count)
		return json_refuse(json_find(line, "example"), err, "is %zu; %s has %zu examples", said->example, task,
				   said->task->count);
	snprintf(ours, sizeof(ours), "%016" PRIx64, said->task->examples[said->example].sum);
	if (strcmp(sum, ours) != 0)
		return json_refuse(json_find(line, "sum"), err, "is that of another example than %zu of %s here",
				   said->example, task);
	return ROSA_OK;
}

/* The text of token ids, up to what ends it. */
static rosa_status decode(struct answer *answer, struct json ids, rosa_error *err)
{
	const size_t vocabulary = tokenizer_size(answer->options.tokenizer);
	rosa_status status = ROSA_OK;

	answer_begin(answer);
	for (size_t i = 0; i < json_count(ids) && status == ROSA_OK && answer->end == ANSWER_OPEN; i++) {
		size_t id = 0;

		status = json_as_size(json_at(ids, i), &id, err);
		if (status == ROSA_OK && id >= vocabulary)
			status =
			    json_refuse(json_at(ids, i), err, "is %zu; the vocabulary has %zu tokens", id, vocabulary);
		if (status == ROSA_OK)
			status = answer_take(answer, (uint32_t)id, err);
	}
	return status == ROSA_OK && answer->end == ANSWER_OPEN ? answer_finish(answer, ANSWER_LENGTH, err) : status;
}

static rosa_status take_answer(const struct external *external, struct json line, const struct said *said,
			       rosa_error *err)
{
	const struct eval_example *example = &said->task->examples[said->example];
	struct eval_record record;
	struct json ids = {0};
	rosa_status status = json_get_array(line, "ids", JSON_NEEDED, &ids, err);

	if (status == ROSA_OK)
		status = decode(external->answer, ids, err);
	const struct eval_detail detail = {
	    .answer = external->answer->text.data, .expected = &example->answers, .classes = &example->classes};
	if (status == ROSA_OK)
		status = example_answered(said->task, said->example, said->condition, detail.answer, &record, err);
	if (status == ROSA_OK)
		status = external->take(external->context, said->task, &record, &detail, err);
	return status;
}

static rosa_status take_choice(const struct external *external, struct json line, const struct said *said,
			       rosa_error *err)
{
	const struct eval_example *example = &said->task->examples[said->example];
	const size_t count = example->continuations.count;
	struct choice_result result = {.logarithms = calloc(count, sizeof(double))};
	struct json logarithms = {0};
	rosa_status status = json_get_array(line, "logarithms", JSON_NEEDED, &logarithms, err);

	if (!result.logarithms)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the continuations of an example");
	if (status == ROSA_OK && json_count(logarithms) != count)
		status = json_refuse(logarithms, err, "are %zu; the example has %zu continuations",
				     json_count(logarithms), count);
	if (status == ROSA_OK && said->task->metric == METRIC_WORD)
		status = json_get_bool(line, "written", JSON_NEEDED, &result.written, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		status = json_as_number(json_at(logarithms, i), &result.logarithms[i], err);
		if (status == ROSA_OK && !(result.logarithms[i] <= 1e-6))
			status = json_refuse(json_at(logarithms, i), err, "is %g; it must be at most 0",
					     result.logarithms[i]);
	}
	if (status == ROSA_OK) {
		choice_pick(example, &result);
		const struct eval_record record = example_chosen(said->task, said->example, said->condition, &result);
		const struct eval_detail detail = {.logarithms = result.logarithms, .count = count};
		status = external->take(external->context, said->task, &record, &detail, err);
	}
	choice_free(&result);
	return status;
}

static rosa_status take_settings(const struct external *external, const char *line, size_t size, const char *where,
				 rosa_error *err)
{
	char *settings = NULL;
	rosa_status status = results_settings(line, size, where, &settings, err);

	if (status == ROSA_OK)
		status = external->settings(external->context, settings, err);
	free(settings);
	return status;
}

rosa_status external_read_line(const struct external *external, const char *line, size_t size, const char *where,
			       bool *begun, rosa_error *err)
{
	struct said said = {0};
	struct json root = {0};
	rosa_status status = json_read(line, size, where, &root, err);

	if (status == ROSA_OK && json_there(json_find(root, "settings"))) {
		status = take_settings(external, line, size, where, err);
		*begun = true;
	} else if (status == ROSA_OK && !*begun) {
		status = json_refuse(root, err, "has no settings, which come first");
	} else if (status == ROSA_OK) {
		status = find_example(external, root, &said, err);
		if (status == ROSA_OK && said.task)
			status = said.task->examples[said.example].prompt ? take_answer(external, root, &said, err)
									  : take_choice(external, root, &said, err);
	}
	json_free(&root);
	return status;
}

rosa_status external_read(const char *path, const struct file_hooks *hooks, const struct external *external,
			  rosa_error *err)
{
	struct pack_lines lines;
	const char *line = NULL;
	size_t size = 0;
	bool begun = false;
	rosa_status status = pack_lines_open(&lines, path, hooks, err);

	while (status == ROSA_OK) {
		char where[512];

		status = pack_lines_next(&lines, &line, &size, err);
		if (status != ROSA_OK || !line || line[size - 1] != '\n')
			break;
		snprintf(where, sizeof(where), "%.480s:%llu", path, (unsigned long long)lines.number);
		if (!pack_line_blank(line, size))
			status = external_read_line(external, line, size, where, &begun, err);
	}
	pack_lines_close(&lines);
	return status;
}
