/*
 * rosatune completion: scripts that let a shell complete commands, options and their values.
 *
 * The scripts are made from the commands' own tables and hold no knowledge of their own. bash gets one function with a
 * case per command; fish a line per option. zsh reads bash's script through its bashcompinit.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/report.h"

#include <stdio.h>
#include <string.h>

enum shell { BASH, FISH, ZSH };
static const char *const shell_names[] = {[BASH] = "bash", [FISH] = "fish", [ZSH] = "zsh", NULL};

static void describe(const struct command *command, void (*print)(const struct args *args, void *context))
{
	char ask[] = "--help", *line[] = {ask};

	args_on_help(print, (void *)command);
	command->run(1, line);
}

/* The second word of a name, or NULL. */
static const char *second_word(const char *name)
{
	const char *space = strchr(name, ' ');

	return space ? space + 1 : NULL;
}

/* Whether an earlier command has the same first word. */
static bool first_word_seen(const struct command *command)
{
	size_t length = strcspn(command->name, " ");

	for (const struct command *other = commands; other < command; other++) {
		if (strcspn(other->name, " ") == length && strncmp(other->name, command->name, length) == 0)
			return true;
	}
	return false;
}

static bool is_number(const struct arg *arg)
{
	return arg->kind == ARG_NUMBER || arg->kind == ARG_SIZE || arg->kind == ARG_DECIMAL;
}

/* --------------------------------------------------------------------------------------------------------- bash -- */

/* "--tokens|-n": how a case of the shell finds an option. */
static void bash_pattern(const struct arg *arg)
{
	printf("\t\t--%s", arg->name);
	if (arg->short_name)
		printf("|-%c", arg->short_name);
	fputs(") ", stdout);
}

static void bash_command(const struct args *args, void *context)
{
	const struct command *command = context;

	printf("\t'%s')\n\t\toptions='", command->name);
	for (size_t i = 0; i < args->count; i++)
		printf("--%s ", args->options[i].name);
	puts("--help'\n\t\tcase $before in");
	for (size_t i = 0; i < args->count; i++) {
		const struct arg *arg = &args->options[i];
		if (arg->kind == ARG_CHOICE) {
			bash_pattern(arg);
			fputs("values='", stdout);
			for (const char *const *choice = arg->choices; *choice; choice++)
				printf("%s%s", choice == arg->choices ? "" : " ", *choice);
			puts("' ;;");
		} else if (arg->kind != ARG_FLAG) {
			bash_pattern(arg);
			puts(is_number(arg) ? "value=number ;;" : "value=file ;;");
		}
	}
	puts("\t\tesac\n\t\t;;");
}

/* The second words of names that begin alike, a case per first word. */
static void bash_groups(void)
{
	for (const struct command *command = commands; command->name; command++) {
		int length = (int)strcspn(command->name, " ");
		if (!second_word(command->name) || first_word_seen(command))
			continue;
		printf("\t%.*s)\n\t\tseconds='", length, command->name);
		for (const struct command *other = command; other->name; other++) {
			if (strncmp(other->name, command->name, (size_t)length + 1) == 0)
				printf("%s ", second_word(other->name));
		}
		puts("'\n\t\t;;");
	}
}

/* Command names, or their first words. */
static void print_first_words(void)
{
	for (const struct command *command = commands; command->name; command++) {
		if (!first_word_seen(command))
			printf("%.*s ", (int)strcspn(command->name, " "), command->name);
	}
}

static void print_shells(void)
{
	for (const char *const *name = shell_names; *name; name++)
		printf("%s ", *name);
}

/* The shell's arrays are filled from $( ), which bash and zsh both have; names of files may hold blanks. */
static void print_bash(void)
{
	fputs("# bash completion of rosatune, printed by 'rosatune completion bash'\n"
	      "_rosatune()\n{\n"
	      "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
	      "\tlocal command=${COMP_WORDS[1]} place=1 seconds='' options='' values='' value='' commands='",
	      stdout);
	print_first_words();
	puts("'\n\n"
	     "\t# --option=value comes as three words.\n"
	     "\tif [ \"$word\" = = ]; then\n\t\tword=\n"
	     "\telif [ \"$before\" = = ]; then\n\t\tbefore=${COMP_WORDS[COMP_CWORD - 2]}\n\tfi\n"
	     "\tCOMPREPLY=()\n"
	     "\tif [ \"$COMP_CWORD\" = 1 ]; then\n"
	     "\t\tCOMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$word\"))\n\t\treturn\n\tfi\n"
	     "\tif [ \"$command\" = help ] || [ \"$command\" = man ]; then\n"
	     "\t\tplace=2\n\t\tcommand=${COMP_WORDS[2]}\n\t\tif [ \"$COMP_CWORD\" = 2 ]; then\n"
	     "\t\t\tCOMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n\t\t\treturn\n\t\tfi\n\tfi\n"
	     "\tcase $command in");
	bash_groups();
	puts("\tesac\n\tif [ -n \"$seconds\" ]; then\n"
	     "\t\tif [ \"$COMP_CWORD\" = $((place + 1)) ]; then\n"
	     "\t\t\tCOMPREPLY=($(compgen -W \"$seconds\" -- \"$word\"))\n\t\t\treturn\n\t\tfi\n"
	     "\t\tcommand=\"$command ${COMP_WORDS[place + 1]}\"\n\tfi\n"
	     "\t[ \"$place\" = 1 ] || return\n\tcase $command in");
	for (const struct command *command = commands; command->name; command++)
		describe(command, bash_command);
	fputs("\tesac\n\tif [ \"$command\" = completion ]; then\n\t\tvalues='", stdout);
	print_shells();
	puts("'\n\tfi\n"
	     "\tif [ \"$value\" = number ]; then\n\t\treturn\n"
	     "\telif [ -z \"$value\" ] && [[ $word == -* ]]; then\n"
	     "\t\tCOMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
	     "\telif [ -n \"$values\" ]; then\n"
	     "\t\tCOMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
	     "\telse\n"
	     "\t\tlocal IFS=$'\\n'\n"
	     "\t\tcompopt -o filenames 2>/dev/null\n"
	     "\t\tCOMPREPLY=($(compgen -f -- \"$word\"))\n\tfi\n}\n"
	     "complete -F _rosatune rosatune");
}

/* --------------------------------------------------------------------------------------------------------- fish -- */

/* A word in single quotes. */
static void fish_quoted(const char *text)
{
	putchar('\'');
	for (; *text; text++) {
		if (*text == '\'' || *text == '\\')
			putchar('\\');
		putchar(*text);
	}
	putchar('\'');
}

static void fish_condition(const struct command *command)
{
	const char *second = second_word(command->name);

	printf("complete -c rosatune -n '__fish_seen_subcommand_from %.*s", (int)strcspn(command->name, " "),
	       command->name);
	printf("%s%s'", second ? "; and __fish_seen_subcommand_from " : "", second ? second : "");
}

static void fish_command(const struct args *args, void *context)
{
	for (size_t i = 0; i < args->count; i++) {
		const struct arg *arg = &args->options[i];
		fish_condition(context);
		printf(" -l %s", arg->name);
		if (arg->short_name)
			printf(" -s %c", arg->short_name);
		if (arg->kind == ARG_CHOICE) {
			fputs(" -x -a '", stdout);
			for (const char *const *choice = arg->choices; *choice; choice++)
				printf("%s ", *choice);
			putchar('\'');
		} else if (arg->kind != ARG_FLAG) {
			fputs(is_number(arg) ? " -x" : " -r", stdout);
		}
		fputs(" -d ", stdout);
		fish_quoted(arg->help);
		putchar('\n');
	}
}

static void print_fish(void)
{
	puts("# fish completion of rosatune, printed by 'rosatune completion fish'");
	for (const struct command *command = commands; command->name; command++) {
		const char *second = second_word(command->name);
		int length = (int)strcspn(command->name, " ");
		if (!first_word_seen(command)) {
			printf("complete -c rosatune -f -n __fish_use_subcommand -a %.*s", length, command->name);
			if (!second) {
				fputs(" -d ", stdout);
				fish_quoted(command->what);
			}
			putchar('\n');
		}
		if (second) {
			printf("complete -c rosatune -f -n '__fish_seen_subcommand_from %.*s' -a %s -d ", length,
			       command->name, second);
			fish_quoted(command->what);
			putchar('\n');
		}
		describe(command, fish_command);
	}
	fputs("complete -c rosatune -f -n '__fish_seen_subcommand_from completion' -a '", stdout);
	print_shells();
	puts("'");
}

/* -------------------------------------------------------------------------------------------------- the command -- */

int completion_command(int count, char **words)
{
	const char *shell = NULL;
	struct args args = {
	    .command = "completion",
	    .usage = "bash|fish|zsh",
	    .summary = "Prints a script that lets a shell complete commands, options and their values.",
	    .notes = "'make install' puts those of bash and fish in place. By hand, for bash, fish and zsh:\n"
		     "  rosatune completion bash >~/.local/share/bash-completion/completions/rosatune\n"
		     "  rosatune completion fish >~/.config/fish/completions/rosatune.fish\n"
		     "  source <(rosatune completion zsh)    # in ~/.zshrc",
	    .operand = &shell,
	    .operand_name = "SHELL",
	};
	enum args_result parsed = args_parse(&args, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	if (strcmp(shell, shell_names[ZSH]) == 0)
		puts("autoload -U +X bashcompinit && bashcompinit");
	if (strcmp(shell, shell_names[FISH]) == 0) {
		print_fish();
	} else if (strcmp(shell, shell_names[BASH]) == 0 || strcmp(shell, shell_names[ZSH]) == 0) {
		print_bash();
	} else {
		complain("completion", "%s is not known; choose from: bash, fish, zsh", shell);
		return MISUSED;
	}
	return DONE;
}
