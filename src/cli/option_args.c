/* Command-line options for the rows of an adapter's option tables. */
#include "cli/option_args.h"

#include <stdio.h>
#include <string.h>

/* The value that an option has unless given, as its help shows it. */
static void describe_default(const struct key *row, const void *value, char text[48])
{
	switch (row->type) {
	case KEY_SIZE:
		snprintf(text, 48, "%llu", (unsigned long long)*(const uint64_t *)value);
		break;
	case KEY_FLOAT:
		snprintf(text, 48, "%g", (double)*(const float *)value);
		break;
	case KEY_CHOICE:
		snprintf(text, 48, "%s", row->choices[*(const int *)value]);
		break;
	default:
		*text = '\0';
	}
}

size_t option_args_add(struct option_args *room, const struct key_table *table, struct adapter_options *values,
		       struct arg *to)
{
	const size_t before = room->count;

	for (size_t i = 0; i < table->count && room->count < OPTION_ARGS_MOST; i++, room->count++) {
		const struct key *row = &table->rows[i];
		void *value = (char *)values + row->offset;
		char fallback[48], *name = room->all[room->count].name, *help = room->all[room->count].help;
		struct arg *arg = to++;

		describe_default(row, value, fallback);
		snprintf(name, sizeof(room->all[0].name), "%s%s", row->type == KEY_BOOL ? "no-" : "", row->name);
		for (char *at = name; *at; at++)
			*at = *at == '_' ? '-' : *at;
		*arg = (struct arg){.name = name, .target = value, .help = help};
		switch (row->type) {
		case KEY_SIZE:
			arg->kind = ARG_SIZE;
			arg->value = "N";
			arg->min = (uint64_t)row->least;
			arg->max = (uint64_t)row->most;
			break;
		case KEY_FLOAT:
			arg->kind = ARG_DECIMAL;
			arg->value = "X";
			arg->least = row->least;
			arg->most = row->most;
			break;
		case KEY_CHOICE:
			arg->kind = ARG_CHOICE;
			arg->value = "WORD";
			arg->choices = row->choices;
			break;
		default: /* KEY_BOOL: the tables have no others */
			arg->kind = ARG_FLAG;
			arg->target = &room->all[room->count].given;
			room->all[room->count].off = value;
		}
		if (row->type == KEY_BOOL)
			snprintf(help, sizeof(room->all[0].help), "turn off: %s", row->help);
		else
			snprintf(help, sizeof(room->all[0].help), "%s (default %s)", row->help, fallback);
	}
	return room->count - before;
}

void option_args_apply(const struct option_args *room)
{
	for (size_t i = 0; i < room->count; i++)
		if (room->all[i].off && room->all[i].given)
			*room->all[i].off = false;
}
