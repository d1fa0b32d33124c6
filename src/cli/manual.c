/*
 * rosatune man: a command's manual page, from the same table as its help.
 *
 * The build runs this for every command and puts what a table cannot hold (docs/man/) behind it, see scripts/manual.
 * Lines of a summary or of notes that begin with a space are an example or a list and stay as they are; others are
 * filled by the formatter.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/report.h"
#include "rosatune.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Text as roff takes it: a dash is a dash, not a hyphen, and no line begins a request. */
static void put_text(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if ((text[i] == '.' || text[i] == '\'') && i == 0)
			fputs("\\&", stdout);
		if (text[i] == '-')
			fputs("\\-", stdout);
		else if (text[i] == '\\')
			fputs("\\e", stdout);
		else
			putchar(text[i]);
	}
}

static void put(const char *text)
{
	put_text(text, strlen(text));
}

static void put_paragraphs(const char *text)
{
	bool example = false;

	while (*text) {
		size_t length = strcspn(text, "\n");
		if (length > 0 && example != (text[0] == ' ')) {
			example = !example;
			puts(example ? ".PP\n.EX" : ".EE\n.PP");
		}
		if (length > 0)
			put_text(text, length);
		else if (!example)
			fputs(".PP", stdout);
		putchar('\n');
		text += length + (text[length] == '\n');
	}
	if (example)
		puts(".EE");
}

/* "-m, --model PATH", in bold and italics. */
static void put_option(char short_name, const char *name, const char *value)
{
	fputs("\\fB", stdout);
	if (short_name)
		printf("\\-%c\\fR, \\fB", short_name);
	fputs("\\-\\-", stdout);
	put(name);
	fputs("\\fR", stdout);
	if (value) {
		fputs(" \\fI", stdout);
		put(value);
		fputs("\\fR", stdout);
	}
}

static void put_synopsis_option(const struct arg *arg)
{
	printf("%s\\fB\\-\\-", arg->required ? "" : "[");
	put(arg->name);
	fputs("\\fR", stdout);
	if (arg->value) {
		fputs("\\~\\fI", stdout);
		put(arg->value);
		fputs("\\fR", stdout);
	}
	printf("%s%s\n", arg->required ? "" : "]", arg->kind == ARG_TEXTS ? "..." : "");
}

static void put_synopsis(const struct args *args)
{
	puts(".SH SYNOPSIS\n.nh\n.ad l");
	fputs(".B rosatune ", stdout);
	put(args->command);
	putchar('\n');
	for (int required = 1; required >= 0; required--) {
		for (size_t i = 0; i < args->count; i++) {
			if (args->options[i].required == (required == 1))
				put_synopsis_option(&args->options[i]);
		}
		if (required && args->operand_name)
			printf("\\fI%s\\fR%s\n", args->operand_name, args->operands ? "..." : "");
	}
	puts(".ad b\n.hy");
}

static void put_options(const struct args *args)
{
	puts(".SH OPTIONS");
	for (size_t i = 0; i < args->count; i++) {
		const struct arg *arg = &args->options[i];
		puts(".TP");
		put_option(arg->short_name, arg->name, arg->value);
		putchar('\n');
		putchar(toupper((unsigned char)arg->help[0]));
		put(arg->help + 1);
		puts(".");
	}
	puts(".TP");
	put_option('h', "help", NULL);
	puts("\nShow the help.");
}

static void print_page(const struct args *args, void *context)
{
	const struct command *command = context;

	fputs(".TH ROSATUNE\\-", stdout);
	for (const char *c = command->name; *c; c++)
		fputs(*c == ' ' ? "\\-" : (char[]){(char)toupper((unsigned char)*c), '\0'}, stdout);
	printf(" 1 \"\" \"rosatune %s\" \"User Commands\"\n.SH NAME\nrosatune\\-", rosa_version());
	for (const char *c = command->name; *c; c++)
		fputs(*c == ' ' ? "\\-" : (char[]){*c, '\0'}, stdout);
	fputs(" \\- ", stdout);
	put(command->what);
	putchar('\n');
	put_synopsis(args);
	puts(".SH DESCRIPTION");
	put_paragraphs(args->summary);
	put_options(args);
	if (args->notes) {
		puts(".SH NOTES");
		put_paragraphs(args->notes);
	}
}

int man_command(int count, char **words)
{
	struct arg_words names;
	struct args args = {
	    .command = "man",
	    .usage = "COMMAND",
	    .summary = "Prints the manual page of a command, in the form that man(1) reads.",
	    .notes = "To read a page that is not installed:\n  rosatune man generate | man -l -",
	    .operands = &names,
	    .operand_name = "COMMAND",
	};
	enum args_result parsed = args_parse(&args, count, words);
	char ask[] = "--help", *line[] = {ask};
	int used;

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	const struct command *command = command_find((int)names.count, names.all, &used);
	if (!command)
		return command_unknown((int)names.count, names.all);
	if ((size_t)used != names.count) {
		complain("man", "unexpected argument %s after the command's name", names.all[used]);
		return MISUSED;
	}
	args_on_help(print_page, (void *)command);
	return command->run(1, line);
}
