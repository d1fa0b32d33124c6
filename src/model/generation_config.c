/*
 * How a model's makers advise to sample from it.
 *
 * Hugging Face writes do_sample: false where the makers want the likeliest token, and leaves it out otherwise or writes
 * true; temperature and the rest count in both latter cases. Only what is there is taken.
 */
#include "model/generation_config.h"

#include "base/paths.h"
#include "base/status.h"
#include "model/json.h"

#include <stdlib.h>
#include <string.h>

struct field {
	const char *json, *gguf;
	double least, most;
	double *value;
};

#define FIELDS 5

static void list_fields(struct generation_config *config, struct field fields[FIELDS])
{
	const struct field all[FIELDS] = {
	    {"temperature", "general.sampling.temp", 0, 1e6, &config->temperature},
	    {"top_k", "general.sampling.top_k", 0, 1e9, &config->top_k},
	    {"top_p", "general.sampling.top_p", 0, 1, &config->top_p},
	    {"min_p", "general.sampling.min_p", 0, 1, &config->min_p},
	    {"repetition_penalty", "general.sampling.penalty_repeat", 0.01, 100, &config->repetition},
	};

	memcpy(fields, all, sizeof(all));
}

static rosa_status set(const struct field *field, const char *file, const char *name, double value, rosa_error *err)
{
	if (!(value >= field->least && value <= field->most))
		return rosa_fail(err, ROSA_EFORMAT, "%s: %s is %g, not from %g to %g", file, name, value, field->least,
				 field->most);
	*field->value = value;
	return ROSA_OK;
}

static rosa_status read_gguf(const struct checkpoint *checkpoint, const struct field *fields, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (int i = 0; i < FIELDS && status == ROSA_OK; i++) {
		double value;
		if (gguf_number(gguf_find(&checkpoint->gguf, fields[i].gguf), 0, &value))
			status = set(&fields[i], checkpoint->path.text, fields[i].gguf, value, err);
	}
	return status;
}

static rosa_status read_json(struct json root, struct generation_config *config, const struct field *fields,
			     rosa_error *err)
{
	bool sampled = true;
	rosa_status status = json_get_bool(root, "do_sample", JSON_OPTIONAL, &sampled, err);

	for (int i = 0; i < FIELDS && status == ROSA_OK; i++) {
		double value = -1;
		status = json_get_number(root, fields[i].json, JSON_OPTIONAL, &value, err);
		if (status == ROSA_OK && json_there(json_find(root, fields[i].json)))
			status = set(&fields[i], root.file, fields[i].json, value, err);
	}
	if (!sampled)
		config->temperature = 0;
	return status;
}

rosa_status generation_config_read(const struct checkpoint *checkpoint, struct generation_config *config,
				   rosa_error *err)
{
	struct field fields[FIELDS];
	struct json root = {0};
	rosa_status status = ROSA_OK;

	*config = (struct generation_config){-1, -1, -1, -1, -1};
	list_fields(config, fields);
	if (checkpoint->is_gguf)
		return read_gguf(checkpoint, fields, err);
	const struct path path = path_beside(checkpoint->path.text, "generation_config.json");
	if (path_exists(path.text))
		status = json_load(path.text, &root, err);
	if (status == ROSA_OK && json_there(root))
		status = read_json(root, config, fields, err);
	json_free(&root);
	return status;
}
