/*
 * Keys of a configuration.
 *
 * Every key is a row of a table: its name, its type, what it may be, and where it goes. Reading a file, settings from
 * the command line, writing the configuration into a checkpoint, and comparing it with what the run began with are four
 * walks over the same rows; a new key is a new row. Values from a file are turned into text first and then set like
 * those from the command line, so both are checked by the same code and differ only in what the message calls them.
 *
 * A key that is not known is refused: one that was misspelt would otherwise train with the default for a week.
 */
#include "train/keys.h"

#include "base/status.h"
#include "base/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- places -- */

rosa_status keys_refuse(const struct key_place *place, rosa_error *err, const char *format, ...)
{
	char what[sizeof(err->message)], stage[32] = "";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	if (place->stage)
		snprintf(stage, sizeof(stage), "stage.%zu%s", place->stage, place->key ? "." : "");
	return rosa_fail(err, ROSA_EINVAL, "%.100s%s%s%.80s: %s", place->file ? place->file : "--set",
			 place->file ? ": " : " ", stage, place->key ? place->key : "", what);
}

/* Up to the next point, whether two names begin alike. */
static bool same_part(const char *a, const char *b)
{
	const size_t length = strcspn(a, ".");

	return length == strcspn(b, ".") && strncmp(a, b, length) == 0;
}

/* What a key that is none was perhaps meant to be. */
static rosa_status refuse_unknown(const struct keys *keys, const struct key_place *place, rosa_error *err)
{
	char parts[KEYS_MOST][40], word[40];
	const char *names[KEYS_MOST + 2], *near;
	const size_t whole = strcspn(place->key, ".");
	size_t skip = 0, count = 0;

	for (size_t i = 0; i < keys->count; i++) /* is what stands before the point right? */
		if (place->key[whole] && same_part(keys->all[i].name, place->key) && keys->all[i].name[whole])
			skip = whole + 1;
	for (size_t i = 0; i < keys->count; i++) {
		const char *name = keys->all[i].name;

		if (skip && strncmp(name, place->key, skip) != 0)
			continue;
		snprintf(parts[count], sizeof(parts[0]), "%.*s", (int)strcspn(name + skip, "."), name + skip);
		names[count] = parts[count];
		count++;
	}
	if (keys->also && !skip)
		names[count++] = keys->also;
	names[count] = NULL;
	snprintf(word, sizeof(word), "%.*s", (int)strcspn(place->key + skip, "."), place->key + skip);
	near = words_nearest(word, names);
	if (near)
		return keys_refuse(place, err, "is no known key; did you mean %.*s%s?", (int)skip, place->key, near);
	return keys_refuse(place, err, "is no known key; 'rosatune tune --help' lists those there are");
}

static const struct key *find(const struct keys *keys, const char *name)
{
	for (size_t i = 0; i < keys->count; i++)
		if (strcmp(keys->all[i].name, name) == 0)
			return &keys->all[i];
	return NULL;
}

/* ------------------------------------------------------------------------------------------------------- values -- */

static void free_data(struct key_data *data)
{
	for (size_t i = 0; i < data->count; i++)
		free((char *)data->sources[i].path);
	free(data->sources);
	*data = (struct key_data){NULL, 0};
}

static rosa_status add_source(struct key_data *data, const char *path, size_t length, double weight, rosa_error *err)
{
	struct dataset_source *more = realloc(data->sources, (data->count + 1) * sizeof(*more));
	char *copy = strndup(path, length);

	if (more)
		data->sources = more;
	if (!more || !copy) {
		free(copy);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	}
	data->sources[data->count++] = (struct dataset_source){copy, weight};
	return ROSA_OK;
}

/* Paths with commas between them. */
static rosa_status set_data(void *target, const char *text, const struct key_place *place, rosa_error *err)
{
	struct key_data data = {NULL, 0};
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

static rosa_status set_text(void *target, const char *text, rosa_error *err)
{
	char *copy = *text ? strdup(text) : NULL; /* an empty one is none */

	if (*text && !copy)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	free(*(char **)target);
	*(char **)target = copy;
	return ROSA_OK;
}

static rosa_status set_size(const struct key *row, void *target, const char *text, const struct key_place *place,
			    rosa_error *err)
{
	uint64_t number;

	if (words_number(text, true, &number) && (double)number >= row->least && (double)number <= row->most) {
		*(uint64_t *)target = number;
		return ROSA_OK;
	}
	return keys_refuse(place, err,
			   "is %.40s; it must be a whole number from %.0f to %.0f (16k and 1M are understood)", text,
			   row->least, row->most);
}

static rosa_status set_number(const struct key *row, void *target, const char *text, const struct key_place *place,
			      rosa_error *err)
{
	char *end;
	const double number = strtod(text, &end);

	/* digits, a point and an exponent: neither "inf" nor "0x1p3", which strtod would take */
	if (*text && text[strspn(text, "0123456789.eE+-")] == '\0' && *end == '\0' && number >= row->least &&
	    number <= row->most) {
		*(double *)target = number;
		return ROSA_OK;
	}
	if (row->least == KEY_ABOVE_0)
		return keys_refuse(place, err, "is %.40s; it must be a number above 0, up to %g", text, row->most);
	return keys_refuse(place, err, "is %.40s; it must be a number from %g to %g", text, row->least, row->most);
}

static rosa_status set_bool(void *target, const char *text, const struct key_place *place, rosa_error *err)
{
	const bool truth = strcmp(text, "true") == 0;

	if (!truth && strcmp(text, "false") != 0)
		return keys_refuse(place, err, "is %.40s; it must be true or false", text);
	*(bool *)target = truth;
	return ROSA_OK;
}

static rosa_status set_choice(const struct key *row, void *target, const char *text, const struct key_place *place,
			      rosa_error *err)
{
	char words[128] = "";
	size_t used = 0;

	for (int i = 0; row->choices[i]; i++) {
		if (strcmp(text, row->choices[i]) == 0) {
			*(int *)target = i;
			return ROSA_OK;
		}
		used += (size_t)snprintf(words + used, sizeof(words) - used, "%s%s", i ? ", " : "", row->choices[i]);
	}
	return keys_refuse(place, err, "is %.40s; choose from: %s", text, words);
}

static rosa_status set_value(const struct key *row, void *base, const char *text, const struct key_place *place,
			     rosa_error *err)
{
	void *target = (char *)base + row->offset;

	switch (row->type) {
	case KEY_TEXT:
		return set_text(target, text, err);
	case KEY_SIZE:
		return set_size(row, target, text, place, err);
	case KEY_NUMBER:
		return set_number(row, target, text, place, err);
	case KEY_BOOL:
		return set_bool(target, text, place, err);
	case KEY_CHOICE:
		return set_choice(row, target, text, place, err);
	case KEY_DATA:
		break;
	}
	return set_data(target, text, place, err);
}

/* Sets a key and takes note if it is one that says how something begins. */
static rosa_status set_row(const struct keys *keys, const struct key *row, void *base, const char *text,
			   const struct key_place *place, rosa_error *err)
{
	rosa_status status = set_value(row, base, text, place, err);

	if (status == ROSA_OK && row->marks & KEY_START)
		*(const char **)((char *)base + keys->start_offset) = row->name;
	return status;
}

rosa_status keys_set(const struct keys *keys, void *base, const char *text, const struct key_place *place,
		     rosa_error *err)
{
	const struct key *row = find(keys, place->key);

	return row ? set_row(keys, row, base, text, place, err) : refuse_unknown(keys, place, err);
}

/* -------------------------------------------------------------------------------------------------------- files -- */

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

static rosa_status read_data(struct json value, struct key_data *data, const struct key_place *place, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	free_data(data);
	if (json_kind(value) != JSON_IS_ARRAY)
		return read_source(value, data, place, err);
	for (size_t i = 0; i < json_count(value) && status == ROSA_OK; i++)
		status = read_source(json_at(value, i), data, place, err);
	return status;
}

/* A single value as text. *text is `room` or the file's. */
static rosa_status value_text(const struct key *row, struct json value, char room[40], const char **text,
			      const struct key_place *place, rosa_error *err)
{
	static const enum json_kind kinds[] = {
	    [KEY_TEXT] = JSON_IS_STRING, [KEY_SIZE] = JSON_IS_NUMBER,   [KEY_NUMBER] = JSON_IS_NUMBER,
	    [KEY_BOOL] = JSON_IS_BOOL,   [KEY_CHOICE] = JSON_IS_STRING, [KEY_DATA] = JSON_IS_ARRAY};
	static const char *const words[] = {[KEY_TEXT] = "a string",
					    [KEY_SIZE] = "a whole number, or a string like \"16k\"",
					    [KEY_NUMBER] = "a number",
					    [KEY_BOOL] = "true or false",
					    [KEY_CHOICE] = "a word, in quotes",
					    [KEY_DATA] = "a list"};
	const enum json_kind kind = json_kind(value);
	double number;
	bool truth;

	*text = room;
	if (kind != kinds[row->type] && !(row->type == KEY_SIZE && kind == JSON_IS_STRING))
		return keys_refuse(place, err, "must be %s", words[row->type]);
	if (kind == JSON_IS_STRING)
		return json_as_string(value, text, err);
	if (kind == JSON_IS_BOOL) {
		rosa_status status = json_as_bool(value, &truth, err);

		snprintf(room, 40, "%s", status == ROSA_OK && truth ? "true" : "false");
		return status;
	}
	if (json_as_number(value, &number, err) != ROSA_OK)
		return ROSA_EFORMAT;
	snprintf(room, 40, row->type == KEY_SIZE && number == floor(number) && fabs(number) < 1e18 ? "%.0f" : "%.17g",
		 number);
	return ROSA_OK;
}

static rosa_status read_object(struct json object, const char *prefix, const struct keys *keys, void *base,
			       struct key_place place, rosa_error *err);

static rosa_status read_value(struct json value, const char *key, const struct keys *keys, void *base,
			      struct key_place place, rosa_error *err)
{
	const struct key *row = find(keys, key);
	char room[40], prefix[64];
	const char *text;
	rosa_status status;

	place.key = key;
	if (json_kind(value) == JSON_IS_OBJECT && !strchr(key, '.') && !row) {
		snprintf(prefix, sizeof(prefix), "%.60s.", key);
		return read_object(value, prefix, keys, base, place, err);
	}
	if (!row)
		return refuse_unknown(keys, &place, err);
	if (row->type == KEY_DATA)
		return read_data(value, (struct key_data *)((char *)base + row->offset), &place, err);
	status = value_text(row, value, room, &text, &place, err);
	if (status == ROSA_OK)
		status = set_row(keys, row, base, text, &place, err);
	return status;
}

/* The fields of an object; null counts as missing. An object that is no row's beginning is named by its own name. */
static rosa_status read_object(struct json object, const char *prefix, const struct keys *keys, void *base,
			       struct key_place place, rosa_error *err)
{
	struct json_walk walk = {0};
	const char *name;
	struct json value;
	rosa_status status = ROSA_OK;
	bool known = !*prefix;

	for (size_t i = 0; i < keys->count; i++)
		known |= strncmp(keys->all[i].name, prefix, strlen(prefix)) == 0;
	if (!known)
		return refuse_unknown(keys, &place, err);
	while (status == ROSA_OK && json_next(object, &walk, &name, &value)) {
		char key[128];

		if (keys->also && !*prefix && strcmp(name, keys->also) == 0)
			continue;
		snprintf(key, sizeof(key), "%s%.60s", prefix, name);
		place.key = key;
		if (json_there(value))
			status = read_value(value, key, keys, base, place, err);
		else if (!find(keys, key))
			status = refuse_unknown(keys, &place, err);
	}
	return status;
}

rosa_status keys_read(const struct keys *keys, void *base, struct json object, const struct key_place *place,
		      rosa_error *err)
{
	return read_object(object, "", keys, base, *place, err);
}

void keys_free(const struct keys *keys, void *base)
{
	for (size_t i = 0; i < keys->count; i++) {
		void *target = (char *)base + keys->all[i].offset;

		if (keys->all[i].type == KEY_TEXT)
			free(*(char **)target);
		else if (keys->all[i].type == KEY_DATA)
			free_data(target);
	}
}

/* ------------------------------------------------------------------------------------------------------ writing -- */

static void write_data(const struct key_data *data, struct json_text *text)
{
	json_text_add(text, "[");
	for (size_t i = 0; i < data->count; i++) {
		json_text_add(text, "%s{\"path\": ", i ? ", " : "");
		json_text_string(text, data->sources[i].path);
		json_text_add(text, ", \"weight\": ");
		json_text_number(text, data->sources[i].weight);
		json_text_add(text, "}");
	}
	json_text_add(text, "]");
}

static void write_value(const struct key *row, const void *base, struct json_text *text)
{
	const void *target = (const char *)base + row->offset;

	switch (row->type) {
	case KEY_TEXT:
		json_text_string(text, *(char *const *)target);
		break;
	case KEY_SIZE:
		json_text_add(text, "%" PRIu64, *(const uint64_t *)target);
		break;
	case KEY_NUMBER:
		json_text_number(text, *(const double *)target);
		break;
	case KEY_BOOL:
		json_text_add(text, *(const bool *)target ? "true" : "false");
		break;
	case KEY_CHOICE:
		json_text_string(text, row->choices[*(const int *)target]);
		break;
	case KEY_DATA:
		write_data(target, text);
		break;
	}
}

/* Rows whose names share what stands before a point become an object of that name; they stand together. */
void keys_write(const struct keys *keys, const void *base, unsigned without, const char *indent, struct json_text *text)
{
	const char *group = "";
	bool first = true;

	for (size_t i = 0; i < keys->count; i++) {
		const char *name = keys->all[i].name, *point = strchr(name, '.');

		if (keys->all[i].marks & without)
			continue;
		if (*group && !same_part(group, name)) {
			json_text_add(text, "}");
			group = "";
		}
		json_text_add(text, "%s%s", first ? "" : ",", *group ? " " : "\n");
		if (!*group)
			json_text_add(text, "%s", indent);
		if (point && !*group) {
			json_text_add(text, "\"%.*s\": {", (int)(point - name), name);
			group = name;
		}
		json_text_add(text, "\"%s\": ", point ? point + 1 : name);
		write_value(&keys->all[i], base, text);
		first = false;
	}
	if (*group)
		json_text_add(text, "}");
}

/* ---------------------------------------------------------------------------------------------------- comparing -- */

static rosa_status compare_row(const struct key *row, const void *was, const void *now, size_t number,
			       const struct key_listener *listener, rosa_error *err)
{
	struct json_text old = {0}, new = {0};
	char message[256], stage[32] = "";
	rosa_status status = ROSA_OK;

	write_value(row, was, &old);
	write_value(row, now, &new);
	if (number)
		snprintf(stage, sizeof(stage), "stage.%zu.", number);
	if (old.failed || new.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to compare configurations");
	else if (strcmp(old.data, new.data) != 0 && row->marks & KEY_FIXED)
		status = rosa_fail(err, ROSA_EINVAL,
				   "%s%s was %.60s when the run began and is %.60s now; it cannot change on the way: "
				   "begin another run, in another folder",
				   stage, row->name, old.data, new.data);
	else if (strcmp(old.data, new.data) != 0 && listener->note) {
		snprintf(message, sizeof(message), "%s%s was %.80s, it is %.80s from here on", stage, row->name,
			 old.data, new.data);
		listener->note(listener->context, message);
	}
	json_text_free(&old);
	json_text_free(&new);
	return status;
}

rosa_status keys_compare(const struct keys *keys, const void *was, const void *now, size_t stage,
			 const struct key_listener *listener, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < keys->count && status == ROSA_OK; i++)
		status = compare_row(&keys->all[i], was, now, stage, listener, err);
	return status;
}
