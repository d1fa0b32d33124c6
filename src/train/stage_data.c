/*
 * What a stage learns from.
 *
 * Data that does not belong to the model, or to the kind of stage, would train without complaint and to no avail, so it
 * is checked before the first step. Order and mixing depend on seed and stage: two stages over the same text do not see
 * it in the same order.
 */
#include "train/stage_data.h"

#include "base/draw.h"
#include "base/paths.h"
#include "base/status.h"
#include "train/tokens_writer.h"

#include <string.h>

struct data_rules data_rules_of(const char *model, size_t vocabulary)
{
	struct data_rules rules = {.model = model, .vocabulary = vocabulary};
	tokenizer *tokenizer = NULL;

	if (tokenizer_open(model, &tokenizer, NULL) == ROSA_OK)
		rules.has_tokenizer = tokens_fingerprint(tokenizer, &rules.tokenizer, NULL) == ROSA_OK;
	tokenizer_free(tokenizer);
	return rules;
}

static rosa_status check(const dataset *data, const char *path, const struct data_rules *rules,
			 const struct tune_stage *stage, rosa_error *err)
{
	const char *unmarked = stage->kind == TUNE_SFT ? dataset_facts(data)->no_mask : NULL;

	if (dataset_facts(data)->vocabulary > rules->vocabulary)
		return rosa_fail(err, ROSA_EINVAL, "%.120s: has tokens up to %zu, the model knows %zu; pack it again",
				 path, dataset_facts(data)->vocabulary - 1, rules->vocabulary);
	if (rules->has_tokenizer && rules->tokenizer != dataset_facts(data)->tokenizer)
		return rosa_fail(err, ROSA_EINVAL,
				 "%.120s: was packed with another tokenizer than that of %.80s; pack it again", path,
				 rules->model);
	if (unmarked)
		return rosa_fail(err, ROSA_EINVAL,
				 "%.90s: was packed without --chat, so stage %.30s (sft) cannot tell which tokens are "
				 "answers; pack conversations with --chat, or make the stage's kind all",
				 unmarked, stage->name);
	return ROSA_OK;
}

/* The two uses of data: to learn from, and to measure on. The salt makes them shuffle differently. */
static const struct use {
	const char *key;
	uint64_t salt;
	const char *otherwise;
} to_learn = {"data", 0, ""}, to_measure = {"valid", 1, ", or leave this key out"};

/* Shards that are not there yet, with the command that makes them. */
static rosa_status check_there(const struct tune_config *config, size_t number, const struct key_data *from,
			       const struct use *use, rosa_error *err)
{
	for (size_t i = 0; i < from->count; i++) {
		const char *path = from->sources[i].path;

		if (!path_is_file(path) && !path_is_folder(path))
			return rosa_fail(
			    err, ROSA_EIO,
			    "stage.%zu.%s: there is no %.120s; make it with 'rosatune data pack --model %.120s "
			    "--out %.120s%s FILE...'%s",
			    number + 1, use->key, path, config->model, path,
			    config->stages[number].kind == TUNE_SFT ? " --chat" : "", use->otherwise);
	}
	return ROSA_OK;
}

static rosa_status open_one(const struct tune_config *config, size_t number, const struct key_data *from,
			    const struct use *use, const struct data_rules *rules, dataset **made, rosa_error *err)
{
	const struct tune_stage *stage = &config->stages[number];
	rosa_status status = check_there(config, number, from, use, err);

	if (status == ROSA_OK)
		status = dataset_open(from->sources, from->count, (size_t)stage->length,
				      draw_long(config->seed, number, use->salt), made, err);
	return status == ROSA_OK ? check(*made, from->sources[0].path, rules, stage, err) : status;
}

rosa_status stage_data_open(const struct tune_config *config, size_t number, const struct data_rules *rules,
			    struct stage_data *data, rosa_error *err)
{
	const struct tune_stage *stage = &config->stages[number];
	rosa_status status;

	memset(data, 0, sizeof(*data));
	status = open_one(config, number, &stage->data, &to_learn, rules, &data->data, err);
	if (status == ROSA_OK && stage->valid.count)
		status = open_one(config, number, &stage->valid, &to_measure, rules, &data->valid, err);
	if (status != ROSA_OK)
		stage_data_close(data);
	return status;
}

void stage_data_close(struct stage_data *data)
{
	dataset_free(data->data);
	dataset_free(data->valid);
	memset(data, 0, sizeof(*data));
}
