/* Command-line options for the rows of an adapter's option tables. */
#include "cli/option_args.h"

#include <stdio.h>
#include <string.h>

/* The value that an option has unless given, as its help shows it. */
static void describe_default(const struct key *row, const void *value, char text[SOURCE_TEXT])
{
	switch (row->type) {
	case KEY_SIZE:
		if (row->marks & KEY_NULL && *(const uint64_t *)value == KEY_UNSET)
			snprintf(text, SOURCE_TEXT, "null");
		else
			snprintf(text, SOURCE_TEXT, "%llu", (unsigned long long)*(const uint64_t *)value);
		break;
	case KEY_FLOAT:
		snprintf(text, SOURCE_TEXT, "%g", (double)*(const float *)value);
		break;
	case KEY_CHOICE:
		snprintf(text, SOURCE_TEXT, "%s", row->choices[*(const int *)value]);
		break;
	case KEY_CUSTOM: /* the only one in these tables */
		sources_text(value, text);
		break;
	default:
		*text = '\0';
	}
}

/* How the parser of arguments sees a row. */
static struct arg arg_of(struct option_args *room, const struct key *row, void *value)
{
	struct arg arg = {.name = room->all[room->count].name, .target = value, .help = room->all[room->count].help};

	switch (row->type) {
	case KEY_SIZE:
		arg.kind = ARG_SIZE;
		arg.value = "N";
		arg.min = (uint64_t)row->least;
		arg.max = (uint64_t)row->most;
		break;
	case KEY_FLOAT:
		arg.kind = ARG_DECIMAL;
		arg.value = "X";
		arg.least = row->least;
		arg.most = row->most;
		break;
	case KEY_CHOICE:
		arg.kind = ARG_CHOICE;
		arg.value = "WORD";
		arg.choices = row->choices;
		break;
	case KEY_CUSTOM:
		arg.kind = ARG_TEXT;
		arg.value = "LIST";
		arg.target = &room->all[room->count].text;
		break;
	default: /* KEY_BOOL: the tables have no others */
		arg.kind = ARG_FLAG;
		arg.target = &room->all[room->count].given;
	}
	return arg;
}

size_t option_args_add(struct option_args *room, const struct key_table *table, struct adapter_options *values,
		       struct arg *to)
{
	const size_t before = room->count;

	for (size_t i = 0; i < table->count && room->count < OPTION_ARGS_MOST; i++, room->count++) {
		const struct key *row = &table->rows[i];
		void *value = (char *)values + row->offset;
		const bool on = row->type == KEY_BOOL && *(const bool *)value;
		char fallback[SOURCE_TEXT], *name = room->all[room->count].name, *help = room->all[room->count].help;

		describe_default(row, value, fallback);
		snprintf(name, sizeof(room->all[0].name), "%s%s", on ? "no-" : "", row->name);
		for (char *at = name; *at; at++)
			*at = *at == '_' ? '-' : *at;
		room->all[room->count].row = row;
		room->all[room->count].value = value;
		*to++ = arg_of(room, row, value);
		if (row->type == KEY_BOOL)
			snprintf(help, sizeof(room->all[0].help), "%s%s", on ? "turn off: " : "", row->help);
		else
			snprintf(help, sizeof(room->all[0].help), "%s (default %s)", row->help, fallback);
	}
	return room->count - before;
}

rosa_status option_args_apply(const struct option_args *room, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < room->count && status == ROSA_OK; i++) {
		const struct key *row = room->all[i].row;
		void *value = room->all[i].value;

		if (row->type == KEY_BOOL && room->all[i].given) {
			*(bool *)value = !*(bool *)value;
		} else if (row->type == KEY_CUSTOM && room->all[i].text) {
			const struct key_place place = {.option = room->all[i].name};

			status = row->custom->set(value, room->all[i].text, &place, err);
		}
	}
	return status;
}
