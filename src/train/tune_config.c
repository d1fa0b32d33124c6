/*
 * What a training run is to do: its keys, and what must hold between them.
 *
 * How keys are read, set and written is keys.c's affair; here is what there is, with what it may be and what it is if
 * nobody says, and where each value goes in a network's options.
 */
#include "train/tune_config.h"

#include "base/status.h"
#include "base/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------------------------- table -- */

const char *const tune_kind_words[] = {[TUNE_ADAPTER] = "adapter", [TUNE_ALL] = "all", [TUNE_SFT] = "sft", NULL};
const char *const tune_fusion_words[] = {[ROSA_POST] = "post", [ROSA_PRE] = "pre", NULL};
const char *const tune_policy_words[] = {
    [ROSA_READABLE] = "readable", [ROSA_LITERAL] = "literal", [ROSA_INCLUSIVE] = "inclusive", NULL};
const char *const tune_qk_words[] = {
    [QK_ALIGNED] = "aligned", [QK_SEPARATE] = "separate", [QK_SHARED] = "shared", NULL};
const char *const tune_qk_grad_words[] = {
    [ROSA_QK_LINEAR] = "linear", [ROSA_QK_SOFT] = "soft", [ROSA_QK_FLIPS] = "flips", [ROSA_QK_NONE] = "none", NULL};
const char *const tune_credit_words[] = {[ROSA_CREDIT_ALL] = "all", [ROSA_CREDIT_ROUTE] = "route", NULL};
const char *const tune_key_credit_words[] = {[ROSA_KEY_MATCH] = "match", [ROSA_KEY_DESTINATION] = "destination", NULL};

#define AT(member)       offsetof(struct tune_config, member)
#define STAGE_AT(member) offsetof(struct tune_stage, member)

static const struct key config_rows[] = {
    {"note", KEY_TEXT, AT(note), 0, 0, NULL, 0},
    {"model", KEY_TEXT, AT(model), 0, 0, NULL, 0},
    {"out", KEY_TEXT, AT(out), 0, 0, NULL, 0},
    {"seed", KEY_SIZE, AT(seed), 0, KEY_MANY, NULL, KEY_FIXED},
    {"threads", KEY_SIZE, AT(threads), 0, 1024, NULL, 0},
    {"recompute", KEY_BOOL, AT(recompute), 0, 0, NULL, 0},
    {"adapter.path", KEY_TEXT, AT(adapter), 0, 0, NULL, 0},
    {"adapter.rosa", KEY_BOOL, AT(rosa), 0, 0, NULL, KEY_FIXED | KEY_START},
    {"adapter.bits", KEY_SIZE, AT(bits), ROSA_MIN_BITS, ROSA_MAX_BITS, NULL, KEY_FIXED | KEY_START},
    {"adapter.fusion", KEY_CHOICE, AT(fusion), 0, 0, tune_fusion_words, KEY_FIXED | KEY_START},
    {"adapter.qk", KEY_CHOICE, AT(qk), 0, 0, tune_qk_words, KEY_FIXED | KEY_START},
    {"adapter.e_start", KEY_NUMBER, AT(e_start), 0, 1e6, NULL, KEY_FIXED | KEY_START},
    {"adapter.window", KEY_SIZE, AT(window), 0, (double)ROSA_MAX_STEPS, NULL, KEY_FIXED | KEY_START},
    {"adapter.sinks", KEY_SIZE, AT(sinks), 0, (double)ROSA_MAX_STEPS, NULL, KEY_FIXED | KEY_START},
    {"adapter.first_global_layers", KEY_SIZE, AT(first_global_layers), 0, 65536, NULL, KEY_FIXED | KEY_START},
    {"adapter.policy", KEY_CHOICE, AT(policy), 0, 0, tune_policy_words, KEY_FIXED | KEY_START},
    {"adapter.fold", KEY_BOOL, AT(fold), 0, 0, NULL, KEY_FIXED | KEY_START},
    {"adapter.max_match", KEY_SIZE, AT(max_match), 0, UINT32_MAX, NULL, KEY_FIXED | KEY_START},
    {"learning.qk_grad", KEY_CHOICE, AT(qk_grad), 0, 0, tune_qk_grad_words, 0},
    {"learning.credit", KEY_CHOICE, AT(credit), 0, 0, tune_credit_words, 0},
    {"learning.key_credit", KEY_CHOICE, AT(key_credit), 0, 0, tune_key_credit_words, 0},
    {"learning.suffix", KEY_NUMBER, AT(suffix), 0, 1e6, NULL, 0},
    {"learning.explore", KEY_NUMBER, AT(explore), 0, 1, NULL, 0},
    {"learning.flip_share", KEY_NUMBER, AT(flip_share), KEY_ABOVE_0, 1, NULL, 0},
    {"learning.slope", KEY_NUMBER, AT(slope), KEY_ABOVE_0, 1e6, NULL, 0},
};

static const struct key stage_rows[] = {
    {"name", KEY_TEXT, STAGE_AT(name), 0, 0, NULL, 0},
    {"note", KEY_TEXT, STAGE_AT(note), 0, 0, NULL, 0},
    {"kind", KEY_CHOICE, STAGE_AT(kind), 0, 0, tune_kind_words, KEY_FIXED},
    {"data", KEY_DATA, STAGE_AT(data), 0, 0, NULL, 0},
    {"valid", KEY_DATA, STAGE_AT(valid), 0, 0, NULL, 0},
    {"length", KEY_SIZE, STAGE_AT(length), 1, (double)ROSA_MAX_STEPS, NULL, KEY_FIXED},
    {"batch", KEY_SIZE, STAGE_AT(batch), 1, 1 << 20, NULL, KEY_FIXED},
    {"micro_batch", KEY_SIZE, STAGE_AT(micro_batch), 1, 1 << 20, NULL, 0},
    {"tokens", KEY_SIZE, STAGE_AT(tokens), 1, KEY_MANY, NULL, 0},
    {"adapter_rate.max", KEY_NUMBER, STAGE_AT(adapter_max), 0, 10, NULL, 0},
    {"adapter_rate.min", KEY_NUMBER, STAGE_AT(adapter_min), 0, 10, NULL, 0},
    {"backbone_rate.max", KEY_NUMBER, STAGE_AT(backbone_max), 0, 10, NULL, 0},
    {"backbone_rate.min", KEY_NUMBER, STAGE_AT(backbone_min), 0, 10, NULL, 0},
    {"warmup", KEY_SIZE, STAGE_AT(warmup), 0, KEY_MANY, NULL, 0},
    {"weight_decay", KEY_NUMBER, STAGE_AT(weight_decay), 0, 10, NULL, 0},
    {"beta1", KEY_NUMBER, STAGE_AT(beta1), 0, 0.999999, NULL, 0},
    {"beta2", KEY_NUMBER, STAGE_AT(beta2), 0, 0.999999, NULL, 0},
    {"eps", KEY_NUMBER, STAGE_AT(eps), KEY_ABOVE_0, 1, NULL, 0},
    {"clip", KEY_NUMBER, STAGE_AT(clip), 0, 1e9, NULL, 0},
    {"log_every", KEY_SIZE, STAGE_AT(log_every), 1, KEY_MANY, NULL, 0},
    {"save_every", KEY_SIZE, STAGE_AT(save_every), 0, KEY_MANY, NULL, 0},
    {"keep", KEY_SIZE, STAGE_AT(keep), 0, KEY_MANY, NULL, 0},
    {"valid_every", KEY_SIZE, STAGE_AT(valid_every), 0, KEY_MANY, NULL, 0},
    {"valid_samples", KEY_SIZE, STAGE_AT(valid_samples), 1, KEY_MANY, NULL, 0},
};

#define ROWS(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(ROWS(config_rows) < KEYS_MOST && ROWS(stage_rows) < KEYS_MOST, "a table has grown");

static const struct keys config_keys = {config_rows, ROWS(config_rows), "stages", AT(start_key)};
static const struct keys stage_keys = {stage_rows, ROWS(stage_rows), NULL, 0};

static const struct tune_config config_start = {
    .recompute = true, .rosa = true, .bits = 16, .window = 2048, .fold = true, .flip_share = 1, .slope = 1};

static const struct tune_stage stage_start = {.length = 2048,
					      .batch = 8,
					      .micro_batch = 1,
					      .adapter_max = 3e-4,
					      .adapter_min = 5e-5,
					      .backbone_max = 5e-6,
					      .backbone_min = 1e-6,
					      .warmup = 20,
					      .beta1 = 0.9,
					      .beta2 = 0.95,
					      .eps = 1e-8,
					      .clip = 1,
					      .log_every = 1,
					      .save_every = 100,
					      .keep = 3,
					      .valid_every = 100,
					      .valid_samples = 16};

static rosa_status read_stages(struct json root, const char *file, struct tune_config *config, rosa_error *err)
{
	struct json stages;
	rosa_status status = json_get_array(root, "stages", JSON_NEEDED, &stages, err);
	const size_t count = status == ROSA_OK ? json_count(stages) : 0;

	if (status == ROSA_OK && count == 0)
		return json_refuse(stages, err, "is empty; a run has one stage at least");
	config->stages = status == ROSA_OK ? calloc(count, sizeof(*config->stages)) : NULL;
	if (status == ROSA_OK && !config->stages)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		const struct key_place place = {file, i + 1, NULL};

		config->stages[i] = stage_start;
		config->stage_count = i + 1;
		if (json_kind(json_at(stages, i)) != JSON_IS_OBJECT)
			return keys_refuse(&place, err, "must be an object");
		status = keys_read(&stage_keys, &config->stages[i], json_at(stages, i), &place, err);
	}
	return status;
}

/* ----------------------------------------------------------------------------------------------------- settings -- */

/* Whether stage number i is one that `name` means. */
static bool is_meant(const struct tune_config *config, size_t i, const char *name)
{
	uint64_t number;

	if (strcmp(name, "*") == 0)
		return true;
	if (words_number(name, false, &number))
		return number == i + 1;
	return config->stages[i].name && strcmp(config->stages[i].name, name) == 0;
}

static rosa_status set_stages(struct tune_config *config, const char *name, const char *key, const char *value,
			      rosa_error *err)
{
	bool found = false;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < config->stage_count && status == ROSA_OK; i++) {
		const struct key_place place = {NULL, i + 1, key};

		if (!is_meant(config, i, name))
			continue;
		found = true;
		status = keys_set(&stage_keys, &config->stages[i], value, &place, err);
	}
	if (!found)
		return rosa_fail(err, ROSA_EINVAL, "--set stage.%.40s: there is no such stage; they are 1 to %zu", name,
				 config->stage_count);
	return status;
}

static rosa_status apply_setting(struct tune_config *config, const char *setting, rosa_error *err)
{
	const char *equals = strchr(setting, '=');
	char key[128], stage[128];

	if (!equals || equals == setting || (size_t)(equals - setting) >= sizeof(key))
		return rosa_fail(err, ROSA_EINVAL, "--set %.60s: give key=value, such as stage.1.tokens=1M", setting);
	snprintf(key, sizeof(key), "%.*s", (int)(equals - setting), setting);
	if (sscanf(key, "stage.%127[^.].", stage) == 1 && strchr(key + 6, '.'))
		return set_stages(config, stage, strchr(key + 6, '.') + 1, equals + 1, err);
	const struct key_place place = {NULL, 0, key};
	if (strncmp(key, "stage", 5) == 0)
		return keys_refuse(&place, err, "name the stage and the key: stage.1.tokens=1M");
	return keys_set(&config_keys, config, equals + 1, &place, err);
}

/* ------------------------------------------------------------------------------------------------------- checks -- */

static rosa_status check_rates(const struct tune_stage *stage, const struct key_place *place, rosa_error *err)
{
	const struct {
		const char *name;
		double max, min;
	} rates[] = {{"adapter_rate", stage->adapter_max, stage->adapter_min},
		     {"backbone_rate", stage->backbone_max, stage->backbone_min}};

	for (size_t i = 0; i < 2; i++)
		if (rates[i].min > rates[i].max)
			return keys_refuse(place, err, "%s.min is %g, above %s.max, which is %g", rates[i].name,
					   rates[i].min, rates[i].name, rates[i].max);
	return ROSA_OK;
}

static rosa_status check_stage(const struct tune_config *config, size_t i, const char *file, rosa_error *err)
{
	const struct tune_stage *stage = &config->stages[i];
	const struct key_place place = {file, i + 1, NULL};

	if (!stage->data.count)
		return keys_refuse(&place, err, "has no data; name shards that 'rosatune data pack' wrote");
	if (!stage->tokens)
		return keys_refuse(&place, err, "has no tokens; say how many to train on");
	if (stage->kind == TUNE_ADAPTER && !config->rosa)
		return keys_refuse(&place, err, "trains the adapter alone, but adapter.rosa is false");
	return check_rates(stage, &place, err);
}

static rosa_status check_config(const struct tune_config *config, const char *file, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (!config->model)
		return rosa_fail(err, ROSA_EINVAL, "%s: has no model; name a .gguf file or a folder", file);
	if (!config->out)
		return rosa_fail(err, ROSA_EINVAL, "%s: has no out; name the folder to write to, here or with --out",
				 file);
	if (config->adapter && config->start_key)
		return rosa_fail(err, ROSA_EINVAL,
				 "%.100s: %s is there beside adapter.path; the adapter in that folder "
				 "has its own, so leave one of them out",
				 file, config->start_key);
	if (config->sinks && !config->window)
		return rosa_fail(err, ROSA_EINVAL,
				 "%s: adapter.sinks is %" PRIu64 " beside a window of 0, which sees all; use 0", file,
				 config->sinks);
	for (size_t i = 0; i < config->stage_count && status == ROSA_OK; i++)
		status = check_stage(config, i, file, err);
	return status;
}

/* Stages without a name are called by what they train. */
static rosa_status name_stages(struct tune_config *config, rosa_error *err)
{
	for (size_t i = 0; i < config->stage_count; i++) {
		struct tune_stage *stage = &config->stages[i];

		if (!stage->name)
			stage->name = strdup(tune_kind_words[stage->kind]);
		if (!stage->name)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	}
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- whole -- */

rosa_status tune_config_load(const char *path, const char *const *settings, size_t count, struct tune_config *config,
			     rosa_error *err)
{
	const struct key_place place = {path, 0, NULL};
	struct json root = {0};
	rosa_status status = json_load(path, &root, err);

	*config = config_start;
	if (status == ROSA_OK && json_kind(root) != JSON_IS_OBJECT)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: must hold an object", path);
	if (status == ROSA_OK)
		status = keys_read(&config_keys, config, root, &place, err);
	if (status == ROSA_OK)
		status = read_stages(root, path, config, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++)
		status = apply_setting(config, settings[i], err);
	if (status == ROSA_OK)
		status = check_config(config, path, err);
	if (status == ROSA_OK)
		status = name_stages(config, err);
	json_free(&root);
	if (status != ROSA_OK)
		tune_config_free(config);
	return status;
}

void tune_config_free(struct tune_config *config)
{
	for (size_t i = 0; i < config->stage_count; i++)
		keys_free(&stage_keys, &config->stages[i]);
	keys_free(&config_keys, config);
	free(config->stages);
	memset(config, 0, sizeof(*config));
}

void tune_config_write(const struct tune_config *config, struct json_text *text)
{
	json_text_add(text, "{");
	keys_write(&config_keys, config, config->adapter ? KEY_START : 0, "  ", text);
	json_text_add(text, ",\n  \"stages\": [");
	for (size_t i = 0; i < config->stage_count; i++) {
		json_text_add(text, "%s\n    {", i ? "," : "");
		keys_write(&stage_keys, &config->stages[i], 0, "      ", text);
		json_text_add(text, "\n    }");
	}
	json_text_add(text, "\n  ]\n}\n");
}

rosa_status tune_config_compare(const struct tune_config *was, const struct tune_config *now, size_t stage,
				void (*note)(void *context, const char *message), void *context, rosa_error *err)
{
	const struct key_listener listener = {note, context};
	rosa_status status;

	if (stage >= now->stage_count || stage >= was->stage_count)
		return rosa_fail(err, ROSA_EINVAL,
				 "the run is in stage %zu, the configuration has only %zu; was it written for another?",
				 stage + 1, now->stage_count);
	status = keys_compare(&config_keys, was, now, 0, &listener, err);
	if (status == ROSA_OK)
		status = keys_compare(&stage_keys, &was->stages[stage], &now->stages[stage], stage + 1, &listener, err);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- other -- */

uint64_t tune_stage_steps(const struct tune_stage *stage)
{
	const uint64_t tokens = stage->batch * stage->length;

	return (stage->tokens + tokens - 1) / tokens;
}

struct network_options tune_config_network(const struct tune_config *config)
{
	struct network_options options = NETWORK_OPTIONS_INIT;

	options.rosa = config->rosa;
	options.bits = (int)config->bits;
	options.fusion = (rosa_fusion)config->fusion;
	options.policy = (rosa_policy)config->policy;
	options.fold = config->fold;
	options.max_match = (uint32_t)config->max_match;
	options.qk = (enum qk_start)config->qk;
	options.e_start = (float)config->e_start;
	options.window = config->window;
	options.sinks = config->sinks;
	options.first_global_layers = config->first_global_layers;
	options.recompute = config->recompute;
	options.seed = config->seed;
	options.learning.qk_grad = (rosa_qk_grad)config->qk_grad;
	options.learning.credit = (rosa_credit)config->credit;
	options.learning.key_credit = (rosa_key_credit)config->key_credit;
	options.learning.suffix = (float)config->suffix;
	options.learning.explore = (float)config->explore;
	options.learning.flip_share = (float)config->flip_share;
	options.learning.slope = (float)config->slope;
	return options;
}
