/*
 * What a training run is to do: its keys, and what must hold between them.
 *
 * keys.c reads, sets and writes keys; the adapter's own options are in adapter_options.c. Here are the keys of a run
 * and of a stage, each with its range, its default and a line of help.
 */
#include "train/tune_config.h"

#include "base/status.h"
#include "base/utf8.h"
#include "base/words.h"
#include "train/pointer_fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------------------------- table -- */

const char *const tune_kind_words[] = {
    [TUNE_ADAPTER] = "adapter", [TUNE_ALL] = "all", [TUNE_SFT] = "sft", [TUNE_POINTER] = "pointer", NULL};

#define AT(member)       offsetof(struct tune_config, member)
#define STAGE_AT(member) offsetof(struct tune_stage, member)
#define ROWS(array)      (sizeof(array) / sizeof((array)[0]))

/* Name, type, place, least, most, default, words, marks, help, type of its own. */
static const struct key config_rows[] = {
    {"note", KEY_TEXT, AT(note), 0, 0, 0, NULL, 0, "any text, for the reader", NULL},
    {"model", KEY_TEXT, AT(model), 0, 0, 0, NULL, 0, "a .gguf file or a Hugging Face folder", NULL},
    {"out", KEY_TEXT, AT(out), 0, 0, 0, NULL, 0, "the run's folder: checkpoints, final adapter, log.jsonl", NULL},
    {"seed", KEY_SIZE, AT(seed), 0, KEY_EXACT, 0, NULL, KEY_FIXED, "seed of all random numbers", NULL},
    {"threads", KEY_SIZE, AT(threads), 0, 1024, 0, NULL, 0, "worker threads per process; 0: one per processor", NULL},
    {"recompute", KEY_BOOL, AT(recompute), 0, 0, 1, NULL, 0,
     "compute activations again in the backward pass, to save memory", NULL},
};

static const struct key begin_rows[] = {
    {"path", KEY_TEXT, AT(adapter), 0, 0, 0, NULL, 0,
     "start from this adapter; else from a new one with the following options", NULL},
    {"rosa", KEY_BOOL, AT(rosa), 0, 0, 1, NULL, KEY_FIXED | KEY_START, "false: no adapter, only the backbone", NULL},
};

static const struct key stage_rows[] = {
    {"name", KEY_TEXT, STAGE_AT(name), 0, 0, 0, NULL, 0, "for messages and --set (default: the kind)", NULL},
    {"note", KEY_TEXT, STAGE_AT(note), 0, 0, 0, NULL, 0, "any text, for the reader", NULL},
    {"kind", KEY_CHOICE, STAGE_AT(kind), 0, 0, TUNE_ADAPTER, tune_kind_words, KEY_FIXED,
     "what is trained: adapter; all; sft: all, on answers only; pointer: a pointer is fitted", NULL},
    {"data", KEY_CUSTOM, STAGE_AT(data), 0, 0, 0, NULL, 0,
     "shards of 'rosatune data pack', or folders of them: a path, or a list of", &data_key},
    {"valid", KEY_CUSTOM, STAGE_AT(valid), 0, 0, 0, NULL, 0, "shards for validation, as in data; optional", &data_key},
    {"length", KEY_SIZE, STAGE_AT(length), 1, (double)ROSA_MAX_STEPS, 2048, NULL, KEY_FIXED, "tokens per sequence",
     NULL},
    {"batch", KEY_SIZE, STAGE_AT(batch), 1, 1 << 20, 8, NULL, KEY_FIXED, "sequences per step", NULL},
    {"micro_batch", KEY_SIZE, STAGE_AT(micro_batch), 1, 1 << 20, 1, NULL, 0,
     "sequences computed together; more need more memory", NULL},
    {"tokens", KEY_SIZE, STAGE_AT(tokens), 0, KEY_EXACT, 0, NULL, 0, "tokens to train on (give this or steps)", NULL},
    {"steps", KEY_SIZE, STAGE_AT(steps), 0, KEY_EXACT, 0, NULL, 0, "steps to take, each of batch x length tokens",
     NULL},
    {"adapter_rate.max", KEY_NUMBER, STAGE_AT(adapter_max), 0, 10, 2e-3, NULL, 0,
     "maximum learning rate of the adapter", NULL},
    {"adapter_rate.min", KEY_NUMBER, STAGE_AT(adapter_min), 0, 10, 2e-4, NULL, 0,
     "learning rate of the adapter at the end of the cosine", NULL},
    {"vector_factor", KEY_NUMBER, STAGE_AT(vector_factor), 0, 1000, 5, NULL, 0,
     "rate of the adapter's vectors (e0, e1, gain, gate), times adapter_rate", NULL},
    {"qk_factor", KEY_NUMBER, STAGE_AT(qk_factor), 0, 1000, 1, NULL, 0,
     "rate of the q and k that layers look up by, times adapter_rate; 0: they are not trained", NULL},
    {"backbone_rate.max", KEY_NUMBER, STAGE_AT(backbone_max), 0, 10, 1e-4, NULL, 0,
     "maximum learning rate of the model", NULL},
    {"backbone_rate.min", KEY_NUMBER, STAGE_AT(backbone_min), 0, 10, 1e-5, NULL, 0,
     "learning rate of the model at the end of the cosine", NULL},
    {"warmup", KEY_SIZE, STAGE_AT(warmup), 0, KEY_EXACT, 20, NULL, 0, "steps until the rates reach their maximum",
     NULL},
    {"weight_decay", KEY_NUMBER, STAGE_AT(weight_decay), 0, 10, 0, NULL, 0, "weight decay of AdamW", NULL},
    {"beta1", KEY_NUMBER, STAGE_AT(beta1), 0, 0.999999, 0.9, NULL, 0, "beta1 of AdamW", NULL},
    {"beta2", KEY_NUMBER, STAGE_AT(beta2), 0, 0.999999, 0.95, NULL, 0, "beta2 of AdamW", NULL},
    {"eps", KEY_NUMBER, STAGE_AT(eps), KEY_ABOVE_0, 1, 1e-8, NULL, 0, "epsilon of AdamW", NULL},
    {"clip", KEY_NUMBER, STAGE_AT(clip), 0, 1e9, 1, NULL, 0, "gradients of a larger norm are scaled down; 0: never",
     NULL},
    {"log_every", KEY_SIZE, STAGE_AT(log_every), 1, KEY_EXACT, 1, NULL, 0, "steps between lines of log.jsonl", NULL},
    {"save_every", KEY_SIZE, STAGE_AT(save_every), 0, KEY_EXACT, 100, NULL, 0,
     "steps between checkpoints; 0: only at the end", NULL},
    {"keep", KEY_SIZE, STAGE_AT(keep), 0, KEY_EXACT, 3, NULL, 0, "checkpoints that are kept; 0: all", NULL},
    {"valid_every", KEY_SIZE, STAGE_AT(valid_every), 0, KEY_EXACT, 100, NULL, 0,
     "steps between validations; 0: only before and after", NULL},
    {"valid_samples", KEY_SIZE, STAGE_AT(valid_samples), 1, KEY_EXACT, 16, NULL, 0, "sequences per validation", NULL},
    {"pointer.links", KEY_SIZE, STAGE_AT(pointer.links), 0, POINTER_LINKS, 0, NULL, 0,
     "kind pointer: length of the chain of places; 0: recent places of the last two tokens", NULL},
    {"pointer.delay", KEY_SIZE, STAGE_AT(pointer.delay), 0, (double)ROSA_MAX_STEPS, -1, NULL, KEY_NULL,
     "kind pointer: use only places at least so many tokens back; null: the window", NULL},
    {"pointer.positions", KEY_SIZE, STAGE_AT(pointer.positions), POINTER_FEWEST, KEY_EXACT, 40960, NULL, 0,
     "kind pointer: positions to fit to, of data that the model was not trained on", NULL},
    {"pointer.confidence", KEY_BOOL, STAGE_AT(pointer.confidence), 0, 0, 1, NULL, 0,
     "with pointer.links: weights depend on the model's probabilities too", NULL},
    {"pointer.agreement", KEY_BOOL, STAGE_AT(pointer.agreement), 0, 0, 1, NULL, 0,
     "with pointer.links: weights also depend on how many of the places agree", NULL},
    {"pointer.seen", KEY_BOOL, STAGE_AT(pointer.seen), 0, 0, 1, NULL, 0,
     "also raise tokens that already occurred, by count and rarity (ignored if pointer.links > 0)", NULL},
};

#define UNKNOWN "'rosatune tune --help' lists them all"

static const struct key_table config_table = {config_rows, ROWS(config_rows)};
static const struct key_table begin_table = {begin_rows, ROWS(begin_rows)};
static const struct key_table stage_table = {stage_rows, ROWS(stage_rows)};

static const struct key_section config_sections[] = {
    {&config_table, "", 0, 0},
    {&begin_table, "adapter.", 0, 0},
    {&adapter_layers_table, "adapter.", AT(options), KEY_FIXED | KEY_START},
    {&adapter_option_table, "adapter.", AT(options), KEY_FIXED | KEY_START},
    {&learning_option_table, "learning.", AT(options), 0},
};
static const struct key_section stage_section = {&stage_table, "", 0, 0};

static const struct keys config_keys = {config_sections, ROWS(config_sections), "stages", UNKNOWN, AT(start_key)};
static const struct keys stage_keys = {&stage_section, 1, NULL, UNKNOWN, 0};

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
		const struct key_place place = {.file = file, .stage = i + 1};

		keys_defaults(&stage_keys, &config->stages[i]);
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

/* A stage's duration is given in tokens or in steps; what is set on the command line replaces what the file has. 0 is
 * no duration, and replaces none. */
static void replace_duration(struct tune_stage *stage, const char *key)
{
	if (strcmp(key, "tokens") == 0 && stage->tokens)
		stage->steps = 0;
	else if (strcmp(key, "steps") == 0 && stage->steps)
		stage->tokens = 0;
}

static rosa_status set_stages(struct tune_config *config, const char *name, const char *key, const char *value,
			      rosa_error *err)
{
	bool found = false;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < config->stage_count && status == ROSA_OK; i++) {
		const struct key_place place = {.stage = i + 1, .key = key};

		if (!is_meant(config, i, name))
			continue;
		found = true;
		status = keys_set(&stage_keys, &config->stages[i], value, &place, err);
		if (status == ROSA_OK)
			replace_duration(&config->stages[i], key);
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
	const struct key_place place = {.key = key};
	if (strncmp(key, "stage", 5) == 0)
		return keys_refuse(&place, err, "name the stage and the key: stage.1.tokens=1M");
	if (!keys_known(&config_keys, key) && keys_known(&stage_keys, key))
		return keys_refuse(&place, err, "is a key of a stage; give --set stage.1.%s=%.60s", key, equals + 1);
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

static rosa_status check_pointer(const struct tune_config *config, size_t i, const struct key_place *place,
				 rosa_error *err)
{
	if (config->stages[i].tokens || config->stages[i].steps)
		return keys_refuse(place, err, "fits a pointer, which takes pointer.positions, not tokens or steps");
	if (i + 1 < config->stage_count)
		return keys_refuse(place, err, "fits a pointer to what the others train, so it must be the last one");
	return ROSA_OK;
}

static rosa_status check_stage(const struct tune_config *config, size_t i, const char *file, rosa_error *err)
{
	const struct tune_stage *stage = &config->stages[i];
	const struct key_place place = {.file = file, .stage = i + 1};

	if (!stage->data.count)
		return keys_refuse(&place, err, "has no data; name shards that 'rosatune data pack' wrote");
	if (stage->kind == TUNE_POINTER)
		return check_pointer(config, i, &place, err);
	if (!stage->tokens && !stage->steps)
		return keys_refuse(&place, err, "has neither tokens nor steps; say how long to train");
	if (stage->tokens && stage->steps)
		return keys_refuse(&place, err, "has both tokens and steps; leave one of them out");
	if (stage->kind == TUNE_ADAPTER && !config->rosa)
		return keys_refuse(&place, err, "trains the adapter alone, but adapter.rosa is false");
	return check_rates(stage, &place, err);
}

static rosa_status check_config(const struct tune_config *config, const char *file, rosa_error *err)
{
	rosa_status status = ROSA_OK;
	char prefix[128];

	if (!config->model)
		return rosa_fail(err, ROSA_EINVAL, "%s: has no model; name a .gguf file or a folder", file);
	if (!config->out)
		return rosa_fail(err, ROSA_EINVAL, "%s: has no out; name the folder to write to, here or with --out",
				 file);
	if (config->adapter && config->start_key)
		return rosa_fail(err, ROSA_EINVAL,
				 "%.100s: adapter.%s is given beside adapter.path; the adapter in that folder "
				 "has its own, so leave one of them out",
				 file, config->start_key);
	snprintf(prefix, sizeof(prefix), "%.100s: adapter.", file);
	if (config->rosa && !config->adapter && layers_empty(&config->options.layers) && !config->options.seen)
		return rosa_fail(err, ROSA_EINVAL,
				 "%.100s: adapter.layers names no layer, and adapter.seen is 0: no adapter is left; "
				 "name layers, or set adapter.rosa to false",
				 file);
	if (config->rosa && !config->adapter)
		status = adapter_options_check(&config->options, NULL, prefix, err);
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

/* A checkpoint holds the configuration as JSON, which is UTF-8. Other bytes could be trained with and saved, but never
 * read back. */
static rosa_status check_utf8(const char *setting, rosa_error *err)
{
	const size_t key = strcspn(setting, "="), good = utf8_valid(setting, strlen(setting));

	if (good == strlen(setting))
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "%.*s: byte 0x%02x is not UTF-8, and the run could not be resumed; use a name in UTF-8",
			 (int)(key < good ? key : good), setting, (unsigned char)setting[good]);
}

rosa_status tune_config_load(const char *path, const char *const *settings, size_t count, struct tune_config *config,
			     rosa_error *err)
{
	const struct key_place place = {.file = path};
	struct json root = {0};
	rosa_status status = json_load(path, &root, err);

	memset(config, 0, sizeof(*config));
	config->options = adapter_options_default();
	keys_defaults(&config_keys, config);
	if (status == ROSA_OK && json_kind(root) != JSON_IS_OBJECT)
		status = rosa_fail(err, ROSA_EFORMAT, "%s: must hold an object", path);
	if (status == ROSA_OK)
		status = keys_read(&config_keys, config, root, &place, err);
	if (status == ROSA_OK)
		status = read_stages(root, path, config, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		status = check_utf8(settings[i], err);
		if (status == ROSA_OK)
			status = apply_setting(config, settings[i], err);
	}
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

bool tune_trains_backbone(const struct tune_stage *stage)
{
	return stage->kind == TUNE_ALL || stage->kind == TUNE_SFT;
}

uint64_t tune_stage_steps(const struct tune_stage *stage)
{
	const uint64_t tokens = stage->batch * stage->length;

	if (stage->steps)
		return stage->steps;
	return (stage->tokens + tokens - 1) / tokens;
}

void tune_config_help(struct json_text *text)
{
	keys_help(&config_keys, "  ", text);
	json_text_add(text, "  stages: a list of objects with\n");
	keys_help(&stage_keys, "    ", text);
}

struct network_options tune_config_network(const struct tune_config *config)
{
	return (struct network_options){config->rosa, config->options, config->recompute, config->seed};
}
