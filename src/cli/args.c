/*
 * Options.
 *
 * getopt_long would parse as much, but it neither checks ranges nor writes the help, and its messages do not say what
 * would have been right. Here a command is one table, and help and parser read the same rows, so they cannot differ.
 * Abbreviated options are refused on purpose: a script that relies on one breaks when a second option with the same
 * beginning is added. The value of a short option is the next word, never the rest of the same one: -ngl is an option
 * of another program, not -n with the value "gl".
 */
#include "cli/args.h"

#include "cli/report.h"
#include "base/paths.h"
#include "base/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_NAME 32
#define ARGS_MOST    96 /* options of one command */

/* ------------------------------------------------------------------------------------------------------- values -- */

static bool set_number(const struct args *args, const struct arg *arg, const char *text)
{
	uint64_t number;

	if (words_number(text, arg->kind == ARG_SIZE, &number) && number >= arg->min && number <= arg->max) {
		*(uint64_t *)arg->target = number;
		return true;
	}
	complain(args->command, "--%s %s: give a whole number from %llu to %llu%s", arg->name, text,
		 (unsigned long long)arg->min, (unsigned long long)arg->max,
		 arg->kind == ARG_SIZE ? " (4k and 1M are understood)" : "");
	return false;
}

/* Digits, a point and an exponent: neither "inf" nor "0x1p3", which strtod would take. */
static bool set_decimal(const struct args *args, const struct arg *arg, const char *text)
{
	char *end;
	double number = strtod(text, &end);

	if (*text && text[strspn(text, "0123456789.eE+-")] == '\0' && *end == '\0' && number >= arg->least &&
	    number <= arg->most) {
		*(float *)arg->target = (float)number;
		return true;
	}
	complain(args->command, "--%s %s: give a number from %g to %g", arg->name, text, arg->least, arg->most);
	return false;
}

static bool add_text(const struct args *args, const struct arg *arg, const char *text)
{
	struct arg_texts *texts = arg->target;

	if (texts->count == ARG_TEXTS_MOST) {
		complain(args->command, "--%s is given more than %d times; leave some out", arg->name, ARG_TEXTS_MOST);
		return false;
	}
	texts->all[texts->count++] = text;
	return true;
}

static bool set_choice(const struct args *args, const struct arg *arg, const char *text)
{
	const char *near = words_nearest(text, arg->choices);
	char list[256] = "";
	size_t used = 0;

	for (int i = 0; arg->choices[i]; i++) {
		if (strcmp(text, arg->choices[i]) == 0) {
			*(int *)arg->target = i;
			return true;
		}
	}
	if (near) {
		complain(args->command, "--%s %s is not known, did you mean %s?", arg->name, text, near);
		return false;
	}
	for (int i = 0; arg->choices[i] && used < sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", arg->choices[i]);
	if (used < sizeof(list))
		complain(args->command, "--%s %s is not known; choose from: %s", arg->name, text, list);
	else
		complain(args->command, "--%s %s is not known; 'rosatune %s --help' lists those there are", arg->name,
			 text, args->command);
	return false;
}

static bool set_value(const struct args *args, const struct arg *arg, const char *text)
{
	switch (arg->kind) {
	case ARG_NUMBER:
	case ARG_SIZE:
		return set_number(args, arg, text);
	case ARG_DECIMAL:
		return set_decimal(args, arg, text);
	case ARG_TEXTS:
		return add_text(args, arg, text);
	case ARG_CHOICE:
		return set_choice(args, arg, text);
	case ARG_TEXT:
		*(const char **)arg->target = text;
		return true;
	case ARG_FLAG:
		*(bool *)arg->target = true;
		return true;
	}
	return false;
}

/* --------------------------------------------------------------------------------------------------------- help -- */

#define HELP_COLUMN 30

static void print_option(char short_name, const char *name, const char *value, const char *help)
{
	char dashed[8] = "    ";

	if (short_name)
		snprintf(dashed, sizeof(dashed), "-%c, ", short_name);
	int width = printf("  %s--%s%s%s", dashed, name, value ? " " : "", value ? value : "");
	for (int gap = width < HELP_COLUMN ? HELP_COLUMN - width : 1; *help; help += *help == ' ') {
		const size_t size = words_line(help, (size_t)(width + gap));

		printf("%*s%.*s\n", gap, "", (int)size, help);
		help += size;
		width = 0;
		gap = HELP_COLUMN;
	}
}

static void print_help(const struct args *args, void *context)
{
	(void)context;
	printf("usage: rosatune %s %s\n\n%s\n\noptions:\n", args->command, args->usage, args->summary);
	for (size_t i = 0; i < args->count; i++) {
		const struct arg *arg = &args->options[i];
		print_option(arg->short_name, arg->name, arg->value, arg->help);
	}
	print_option('h', "help", NULL, "show this help");
	if (args->notes)
		printf("\n%s\n", args->notes);
}

static void (*describe_args)(const struct args *args, void *context) = print_help;
static void *describe_context;

void args_on_help(void (*describe)(const struct args *args, void *context), void *context)
{
	describe_args = describe;
	describe_context = context;
}

/* ------------------------------------------------------------------------------------------------------ parsing -- */

static struct arg *find(const struct args *args, const char *name, size_t length)
{
	for (size_t i = 0; i < args->count; i++) {
		const char *known = args->options[i].name;
		if (strncmp(name, known, length) == 0 && known[length] == '\0')
			return &args->options[i];
	}
	return NULL;
}

static struct arg *find_short(const struct args *args, char name)
{
	for (size_t i = 0; i < args->count; i++) {
		if (args->options[i].short_name == name)
			return &args->options[i];
	}
	return NULL;
}

/* The word as it was typed, dashes and all, up to a '='. */
static void complain_unknown(const struct args *args, const char *typed, size_t length)
{
	const char *names[ARGS_MOST + 2];
	char word[LONGEST_NAME + 1];
	size_t count = 0;

	for (; count < args->count && count < ARGS_MOST; count++)
		names[count] = args->options[count].name;
	names[count++] = "help";
	names[count] = NULL;
	snprintf(word, sizeof(word), "%.*s", (int)(length < LONGEST_NAME ? length : LONGEST_NAME), typed);
	char meaning[LONGEST_NAME + 1];
	strcpy(meaning, word + strspn(word, "-"));
	for (char *c = meaning; *c; c++)
		*c = *c == '_' ? '-' : *c; /* as Python's programs write it */
	const struct args_foreign *foreign = args_foreign(args, meaning);
	const char *meant = foreign ? foreign->ours : words_nearest(meaning, names);
	if (foreign && foreign->remark)
		complain(args->command, "unknown option %s: %s", word, foreign->remark);
	else if (foreign && foreign->operand)
		complain(args->command, "unknown option %s; give %s without an option: rosatune %s %s", word,
			 foreign->operand, args->command, args->usage);
	else if (meant)
		complain(args->command, "unknown option %s, did you mean --%s?", word, meant);
	else
		complain(args->command, "unknown option %s; 'rosatune help %s' lists the options", word, args->command);
}

/* One option at words[0], its value there too or in words[1]. Returns the words used, 0 after a mistake. */
static int parse_option(struct args *args, int count, char **words)
{
	const char *typed = words[0], *equals = strchr(typed, '=');
	size_t length = equals ? (size_t)(equals - typed) : strlen(typed);
	bool is_short = typed[1] != '-';
	struct arg *arg = !is_short     ? find(args, typed + 2, length - 2)
			  : length == 2 ? find_short(args, typed[1])
					: NULL;
	int used = 1;
	const char *value = equals ? equals + 1 : NULL;

	if (!arg) {
		complain_unknown(args, typed, length);
		return 0;
	}
	if (arg->kind == ARG_FLAG && equals) {
		complain(args->command, "--%s takes no value; leave out '=%s'", arg->name, value);
		return 0;
	}
	if (arg->kind != ARG_FLAG && !equals) {
		if (count < 2 || strncmp(words[1], "--", 2) == 0) {
			complain(args->command, "--%s needs a value: --%s %s", arg->name, arg->name, arg->value);
			return 0;
		}
		value = words[1];
		used = 2;
	}
	arg->given = true;
	return set_value(args, arg, value) ? used : 0;
}

/* The option whose value such a word probably is; NULL: none. */
static const char *option_meant(const struct args *args, const char *word)
{
	if (path_ends_in(word, ".gguf") && find(args, "model", 5))
		return "a model is given with --model";
	if (find(args, "text", 4) && !path_exists(word))
		return "a text is given with --text";
	return find(args, "file", 4) ? "a file to read is given with --file" : NULL;
}

/* A word that is no option. Returns the words used, 0 after a mistake. */
static int take_operand(struct args *args, char *word)
{
	if (args->operands) {
		args->operands->all[args->operands->count++] = word;
		return 1;
	}
	if (!args->operand || *args->operand) {
		const char *meant = option_meant(args, word), *quote = strpbrk(word, " \t\n") ? "'" : "";

		if (meant)
			complain(args->command, "unexpected argument %s%s%s; %s %s%s%s", quote, word, quote, meant,
				 quote, word, quote);
		else
			complain(args->command, "unexpected argument %s; options begin with --", word);
		return 0;
	}
	*args->operand = word;
	return 1;
}

static bool all_required(const struct args *args)
{
	if ((args->operand && !*args->operand) || (args->operands && args->operands->count == 0)) {
		complain(args->command, "%s is missing: rosatune %s %s", args->operand_name, args->command,
			 args->usage);
		return false;
	}
	for (size_t i = 0; i < args->count; i++) {
		const struct arg *arg = &args->options[i];
		if (arg->required && !arg->given) {
			complain(args->command, "--%s is missing; add --%s %s", arg->name, arg->name, arg->value);
			return false;
		}
	}
	return true;
}

enum args_result args_parse(struct args *args, int count, char **words)
{
	/* --help comes first: it is answered whatever else is wrong. */
	for (int i = 0; i < count; i++) {
		if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) {
			describe_args(args, describe_context);
			return ARGS_HELP;
		}
	}
	if (args->operands)
		*args->operands = (struct arg_words){words, 0};
	for (int used; count > 0; count -= used, words += used) {
		bool option = words[0][0] == '-' && words[0][1] != '\0'; /* "-" is standard input */
		used = option ? parse_option(args, count, words) : take_operand(args, words[0]);
		if (used == 0)
			return ARGS_WRONG;
	}
	return all_required(args) ? ARGS_OK : ARGS_WRONG;
}

bool args_given(const struct args *args, const char *name)
{
	const struct arg *arg = find(args, name, strlen(name));

	return arg && arg->given;
}
