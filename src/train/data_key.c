/* Data as the value of a key: a path, or a list of paths or of {"path": ..., "weight": ...}. */
#include "train/data_key.h"

#include "base/array.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static void free_data(void *target)
{
	struct key_data *data = target;

	for (size_t i = 0; i < data->count; i++)
		free((char *)data->sources[i].path);
	free(data->sources);
	*data = (struct key_data){0};
}

static rosa_status add_source(struct key_data *data, const char *path, size_t length, double weight, rosa_error *err)
{
	char *copy = strndup(path, length);

	if (!copy || !ARRAY_RESERVE(data->sources, data->room, data->count + 1)) {
		free(copy);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	}
	data->sources[data->count++] = (struct dataset_source){copy, weight};
	return ROSA_OK;
}

/* Paths with commas between them. */
static rosa_status set_data(void *target, const char *text, const struct key_place *place, rosa_error *err)
{
	struct key_data data = {0};
	rosa_status status = ROSA_OK;

	for (const char *at = text; status == ROSA_OK;) {
		const size_t length = strcspn(at, ",");

		if (length)
			status = add_source(&data, at, length, 0, err);
		else if (at != text || at[length])
			status = keys_refuse(place, err, "has an empty path between commas");
		at += length;
		if (*at++ == '\0')
			break;
	}
	if (status != ROSA_OK) {
		free_data(&data);
		return status;
	}
	free_data(target);
	*(struct key_data *)target = data;
	return ROSA_OK;
}

static rosa_status read_source(struct json value, struct key_data *data, const struct key_place *place, rosa_error *err)
{
	struct json_walk walk = {0};
	const char *name, *path = NULL;
	double weight = 0;
	struct json part;
	rosa_status status = ROSA_OK;

	if (json_kind(value) == JSON_IS_STRING) {
		status = json_as_string(value, &path, err);
	} else if (json_kind(value) == JSON_IS_OBJECT) {
		while (status == ROSA_OK && json_next(value, &walk, &name, &part)) {
			if (strcmp(name, "path") == 0)
				status = json_as_string(part, &path, err);
			else if (strcmp(name, "weight") == 0)
				status = json_as_number(part, &weight, err);
			else
				return keys_refuse(place, err, "has %.40s; an entry has a path and a weight", name);
		}
	}
	if (status == ROSA_OK && (!path || !*path))
		return keys_refuse(place, err,
				   "has an entry without a path; give \"path\", or {\"path\": ..., \"weight\": 1}");
	if (status == ROSA_OK && !(weight >= 0 && weight <= 1e9))
		return keys_refuse(place, err, "has a weight of %g; it must be 0 or more", weight);
	return status == ROSA_OK ? add_source(data, path, strlen(path), weight, err) : status;
}

static rosa_status read_data(void *target, struct json value, const struct key_place *place, rosa_error *err)
{
	struct key_data *data = target;
	rosa_status status = ROSA_OK;

	free_data(data);
	if (json_kind(value) != JSON_IS_ARRAY)
		return read_source(value, data, place, err);
	for (size_t i = 0; i < json_count(value) && status == ROSA_OK; i++)
		status = read_source(json_at(value, i), data, place, err);
	return status;
}

static void write_data(const void *target, struct json_text *text)
{
	const struct key_data *data = target;

	json_text_add(text, "[");
	for (size_t i = 0; i < data->count; i++) {
		json_text_open(text, NULL, '{');
		json_text_put_string(text, "path", data->sources[i].path);
		json_text_put_number(text, "weight", data->sources[i].weight);
		json_text_close(text, '}');
	}
	json_text_add(text, "]");
}

const struct key_custom data_key = {set_data, read_data, write_data, free_data, NULL, NULL};
