/*
 * Options, described by tables.
 *
 * Reading a file, setting from the command line, writing the configuration into a checkpoint, comparing it with what
 * the run began with, and printing help are walks over the same rows; a new option is a new row. Values from a file
 * are turned into text first and then set like those from the command line, so both are checked by the same code and
 * differ only in what the message calls them.
 *
 * A key that is not known is refused: a misspelt one would otherwise be replaced by its default without a word.
 */
#include "model/keys.h"

#include "base/status.h"
#include "base/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#define LONGEST 64 /* bytes of a key's name, with its prefix */

/* --------------------------------------------------------------------------------------------------------- rows -- */

/* A row, with the section it is in. */
struct place_of {
	const struct key_section *section;
	const struct key *row;
	char name[LONGEST]; /* with the section's prefix */
};

/* Row number i of all sections together. */
static bool row_at(const struct keys *keys, size_t i, struct place_of *at)
{
	for (size_t s = 0; s < keys->count; i -= keys->sections[s].table->count, s++) {
		const struct key_section *section = &keys->sections[s];

		if (i >= section->table->count)
			continue;
		at->section = section;
		at->row = &section->table->rows[i];
		snprintf(at->name, sizeof(at->name), "%s%s", section->prefix, at->row->name);
		return true;
	}
	return false;
}

static bool find(const struct keys *keys, const char *name, struct place_of *at)
{
	for (size_t i = 0; row_at(keys, i, at); i++)
		if (strcmp(at->name, name) == 0)
			return true;
	return false;
}

bool keys_known(const struct keys *keys, const char *name)
{
	struct place_of at;

	return find(keys, name, &at);
}

static void *target_of(const struct place_of *at, const void *base)
{
	return (char *)base + at->section->offset + at->row->offset;
}

static unsigned marks_of(const struct place_of *at)
{
	return at->section->marks | at->row->marks;
}

/* ------------------------------------------------------------------------------------------------------- places -- */

rosa_status keys_refuse(const struct key_place *place, rosa_error *err, const char *format, ...)
{
	char what[sizeof(err->message)], stage[32] = "";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	if (place->option)
		return rosa_fail(err, ROSA_EINVAL, "--%.80s: %s", place->option, what);
	if (place->stage)
		snprintf(stage, sizeof(stage), "stage.%zu%s", place->stage, place->key ? "." : "");
	return rosa_fail(err, ROSA_EINVAL, "%.100s%s%s%s%.80s: %s", place->file ? place->file : "--set",
			 place->file ? ": " : " ", place->object ? place->object : "", stage,
			 place->key ? place->key : "", what);
}

/* Up to the next point, whether two names begin alike. */
static bool same_part(const char *a, const char *b)
{
	const size_t length = strcspn(a, ".");

	return length == strcspn(b, ".") && strncmp(a, b, length) == 0;
}

/* Refuses a key that is in no table, with the nearest name at the level where it goes wrong. */
static rosa_status refuse_unknown(const struct keys *keys, const struct key_place *place, rosa_error *err)
{
	char parts[KEYS_MOST][LONGEST], word[LONGEST];
	const char *names[KEYS_MOST + 2], *near;
	const size_t whole = strcspn(place->key, ".");
	size_t skip = 0, count = 0;
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at); i++) /* is the part before the point right? */
		if (place->key[whole] && same_part(at.name, place->key) && at.name[whole])
			skip = whole + 1;
	for (size_t i = 0; row_at(keys, i, &at) && count < KEYS_MOST; i++) {
		if (skip && strncmp(at.name, place->key, skip) != 0)
			continue;
		snprintf(parts[count], sizeof(parts[0]), "%.*s", (int)strcspn(at.name + skip, "."), at.name + skip);
		names[count] = parts[count];
		count++;
	}
	if (keys->also && !skip)
		names[count++] = keys->also;
	names[count] = NULL;
	snprintf(word, sizeof(word), "%.*s", (int)strcspn(place->key + skip, "."), place->key + skip);
	near = words_nearest(word, names);
	if (near)
		return keys_refuse(place, err, "is not a known key; did you mean %.*s%s?", (int)skip, place->key, near);
	return keys_refuse(place, err, "is not a known key; %s", keys->unknown);
}

/* ------------------------------------------------------------------------------------------------------- values -- */

static rosa_status set_text(void *target, const char *text, rosa_error *err)
{
	char *copy = *text ? strdup(text) : NULL; /* an empty one is none */

	if (*text && !copy)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the configuration");
	free(*(char **)target);
	*(char **)target = copy;
	return ROSA_OK;
}

static void put_number(const struct key *row, void *target, double number)
{
	if (row->type == KEY_FLOAT)
		*(float *)target = (float)number;
	else
		*(double *)target = number;
}

static rosa_status set_size(const struct key *row, void *target, const char *text, const struct key_place *place,
			    rosa_error *err)
{
	uint64_t number;

	if (row->marks & KEY_NULL && strcmp(text, "null") == 0) {
		*(uint64_t *)target = KEY_UNSET;
		return ROSA_OK;
	}
	if (words_number(text, true, &number) && (double)number >= row->least && (double)number <= row->most) {
		*(uint64_t *)target = number;
		return ROSA_OK;
	}
	return keys_refuse(place, err,
			   "is %.40s; it must be a whole number from %.0f to %.0f (16k and 1M are understood)%s", text,
			   row->least, row->most, row->marks & KEY_NULL ? ", or null" : "");
}

static rosa_status set_number(const struct key *row, void *target, const char *text, const struct key_place *place,
			      rosa_error *err)
{
	char *end;
	const double number = strtod(text, &end);

	/* digits, a point and an exponent: neither "inf" nor "0x1p3", which strtod would take */
	if (*text && text[strspn(text, "0123456789.eE+-")] == '\0' && *end == '\0' && number >= row->least &&
	    number <= row->most) {
		put_number(row, target, number);
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

static rosa_status set_value(const struct key *row, void *target, const char *text, const struct key_place *place,
			     rosa_error *err)
{
	switch (row->type) {
	case KEY_TEXT:
		return set_text(target, text, err);
	case KEY_SIZE:
		return set_size(row, target, text, place, err);
	case KEY_NUMBER:
	case KEY_FLOAT:
		return set_number(row, target, text, place, err);
	case KEY_BOOL:
		return set_bool(target, text, place, err);
	case KEY_CHOICE:
		return set_choice(row, target, text, place, err);
	case KEY_CUSTOM:
		break;
	}
	return row->custom->set(target, text, place, err);
}

/* Notes a key that was set, if it says how something begins. */
static rosa_status noted(rosa_status status, const struct keys *keys, const struct place_of *at, void *base)
{
	if (status == ROSA_OK && marks_of(at) & KEY_START && keys->start_offset)
		*(const char **)((char *)base + keys->start_offset) = at->row->name;
	return status;
}

static rosa_status set_row(const struct keys *keys, const struct place_of *at, void *base, const char *text,
			   const struct key_place *place, rosa_error *err)
{
	return noted(set_value(at->row, target_of(at, base), text, place, err), keys, at, base);
}

rosa_status keys_set(const struct keys *keys, void *base, const char *text, const struct key_place *place,
		     rosa_error *err)
{
	struct place_of at;

	return find(keys, place->key, &at) ? set_row(keys, &at, base, text, place, err)
					   : refuse_unknown(keys, place, err);
}

void keys_defaults(const struct keys *keys, void *base)
{
	const struct key_place place = {.file = "defaults"};
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at); i++) {
		void *target = target_of(&at, base);

		switch (at.row->type) {
		case KEY_SIZE:
			*(uint64_t *)target = at.row->fallback < 0 ? KEY_UNSET : (uint64_t)at.row->fallback;
			break;
		case KEY_NUMBER:
		case KEY_FLOAT:
			put_number(at.row, target, at.row->fallback);
			break;
		case KEY_BOOL:
			*(bool *)target = at.row->fallback != 0;
			break;
		case KEY_CHOICE:
			*(int *)target = (int)at.row->fallback;
			break;
		case KEY_CUSTOM:
			if (at.row->custom->fallback)
				at.row->custom->set(target, at.row->custom->fallback, &place, NULL);
			break;
		case KEY_TEXT: /* none */
			break;
		}
	}
}

/* -------------------------------------------------------------------------------------------------------- files -- */

/* A single value as text. *text is `room` or the file's. */
static rosa_status value_text(const struct key *row, struct json value, char room[40], const char **text,
			      const struct key_place *place, rosa_error *err)
{
	static const struct {
		enum json_kind kind;
		const char *words;
	} types[] = {[KEY_TEXT] = {JSON_IS_STRING, "a string"},
		     [KEY_SIZE] = {JSON_IS_NUMBER, "a whole number, or a string like \"16k\""},
		     [KEY_NUMBER] = {JSON_IS_NUMBER, "a number"},
		     [KEY_FLOAT] = {JSON_IS_NUMBER, "a number"},
		     [KEY_BOOL] = {JSON_IS_BOOL, "true or false"},
		     [KEY_CHOICE] = {JSON_IS_STRING, "a word, in quotes"}};
	const enum json_kind kind = json_kind(value);
	double number;
	bool truth;

	*text = room;
	if (kind != types[row->type].kind && !(row->type == KEY_SIZE && kind == JSON_IS_STRING))
		return keys_refuse(place, err, "must be %s", types[row->type].words);
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
	struct place_of at;
	const bool known = find(keys, key, &at);
	char room[40], prefix[64];
	const char *text;
	rosa_status status;

	place.key = key;
	if (json_kind(value) == JSON_IS_OBJECT && !strchr(key, '.') && !known) {
		snprintf(prefix, sizeof(prefix), "%.60s.", key);
		return read_object(value, prefix, keys, base, place, err);
	}
	if (!known)
		return refuse_unknown(keys, &place, err);
	if (at.row->type == KEY_CUSTOM)
		return noted(at.row->custom->read(target_of(&at, base), value, &place, err), keys, &at, base);
	status = value_text(at.row, value, room, &text, &place, err);
	if (status == ROSA_OK)
		status = set_row(keys, &at, base, text, &place, err);
	return status;
}

/* The fields of an object; null counts as missing, except where it is a value of the key. An object that is no row's
 * beginning is named by its own name. */
static rosa_status read_object(struct json object, const char *prefix, const struct keys *keys, void *base,
			       struct key_place place, rosa_error *err)
{
	struct json_walk walk = {0};
	const char *name;
	struct json value;
	rosa_status status = ROSA_OK;
	struct place_of at;
	bool known = !*prefix;

	for (size_t i = 0; row_at(keys, i, &at); i++)
		known |= strncmp(at.name, prefix, strlen(prefix)) == 0;
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
		else if (!find(keys, key, &at))
			status = refuse_unknown(keys, &place, err);
		else if (at.row->marks & KEY_NULL)
			status = set_row(keys, &at, base, "null", &place, err);
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
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at); i++) {
		if (at.row->type == KEY_TEXT)
			free(*(char **)target_of(&at, base));
		else if (at.row->type == KEY_CUSTOM)
			at.row->custom->free(target_of(&at, base));
	}
}

/* ------------------------------------------------------------------------------------------------------ writing -- */

static void write_value(const struct key *row, const void *target, struct json_text *text)
{
	switch (row->type) {
	case KEY_TEXT:
		json_text_string(text, *(char *const *)target);
		break;
	case KEY_SIZE:
		if ((row->marks & KEY_NULL_0 && *(const uint64_t *)target == 0) ||
		    (row->marks & KEY_NULL && *(const uint64_t *)target == KEY_UNSET))
			json_text_add(text, "null");
		else
			json_text_add(text, "%" PRIu64, *(const uint64_t *)target);
		break;
	case KEY_NUMBER:
		json_text_number(text, *(const double *)target);
		break;
	case KEY_FLOAT:
		json_text_float(text, *(const float *)target);
		break;
	case KEY_BOOL:
		json_text_add(text, *(const bool *)target ? "true" : "false");
		break;
	case KEY_CHOICE:
		json_text_string(text, row->choices[*(const int *)target]);
		break;
	case KEY_CUSTOM:
		row->custom->write(target, text);
		break;
	}
}

void key_write(const struct key *row, const void *base, struct json_text *text)
{
	write_value(row, (const char *)base + row->offset, text);
}

/* Rows whose names share what stands before a point become an object of that name; they stand together. */
void keys_write(const struct keys *keys, const void *base, unsigned without, const char *indent, struct json_text *text)
{
	char group[LONGEST] = "";
	bool first = true;
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at); i++) {
		const char *point = strchr(at.name, '.');

		if (marks_of(&at) & without)
			continue;
		if (*group && !same_part(group, at.name)) {
			json_text_add(text, "}");
			*group = '\0';
		}
		json_text_add(text, "%s%s", first ? "" : ",", *group ? " " : "\n");
		if (!*group)
			json_text_add(text, "%s", indent);
		if (point && !*group) {
			json_text_add(text, "\"%.*s\": {", (int)(point - at.name), at.name);
			snprintf(group, sizeof(group), "%s", at.name);
		}
		json_text_add(text, "\"%s\": ", point ? point + 1 : at.name);
		write_value(at.row, target_of(&at, base), text);
		first = false;
	}
	if (*group)
		json_text_add(text, "}");
}

/* --------------------------------------------------------------------------------------------------------- help -- */

#define HELP_COLUMN 36

/* The fallback in brackets, for those that have one. */
static void describe_fallback(const struct key *row, char text[48])
{
	*text = '\0';
	if (row->type == KEY_CHOICE)
		snprintf(text, 48, " [%s]", row->choices[(int)row->fallback]);
	else if (row->type == KEY_BOOL)
		snprintf(text, 48, " [%s]", row->fallback != 0 ? "true" : "false");
	else if (row->type == KEY_CUSTOM && row->custom->fallback)
		snprintf(text, 48, " [%s]", row->custom->fallback);
	else if (row->type == KEY_SIZE && row->fallback < 0)
		snprintf(text, 48, " [null]");
	else if (row->type != KEY_TEXT && row->type != KEY_CUSTOM)
		snprintf(text, 48, " [%.10g]", row->fallback);
}

void keys_help(const struct keys *keys, const char *indent, struct json_text *text)
{
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at); i++) {
		char fallback[48], name[LONGEST + 48];

		describe_fallback(at.row, fallback);
		snprintf(name, sizeof(name), "%s%s%s", indent, at.name, fallback);
		for (const char *help = at.row->help; *help; help += *help == ' ') {
			const size_t size = words_line(help, HELP_COLUMN + 1);

			json_text_add(text, "%-*s %.*s\n", HELP_COLUMN, name, (int)size, help);
			help += size;
			*name = '\0';
		}
	}
}

/* ---------------------------------------------------------------------------------------------------- comparing -- */

static rosa_status compare_row(const struct place_of *at, const void *was, const void *now, size_t number,
			       const struct key_listener *listener, rosa_error *err)
{
	struct json_text old = {0}, new = {0};
	char message[320], stage[32] = "";
	rosa_status status = ROSA_OK;

	write_value(at->row, target_of(at, was), &old);
	write_value(at->row, target_of(at, now), &new);
	if (number)
		snprintf(stage, sizeof(stage), "stage.%zu.", number);
	if (old.failed || new.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to compare configurations");
	else if (strcmp(old.data, new.data) != 0 && marks_of(at) & KEY_FIXED)
		status = rosa_fail(err, ROSA_EINVAL,
				   "%s%s was %.60s when the run began and is %.60s now; it cannot change during a run: "
				   "begin another run, in another folder",
				   stage, at->name, old.data, new.data);
	else if (strcmp(old.data, new.data) != 0 && listener->note) {
		snprintf(message, sizeof(message), "%s%s was %.80s, it is %.80s from here on", stage, at->name,
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
	struct place_of at;

	for (size_t i = 0; row_at(keys, i, &at) && status == ROSA_OK; i++)
		status = compare_row(&at, was, now, stage, listener, err);
	return status;
}
