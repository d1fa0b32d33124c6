/*
 * rosatune: finds the subcommand and hands over.
 *
 * Commands stand in one table, a name of one or two words each, from which dispatch, help and the answer to a misspelt
 * name are made. Output that could not be written (a full disk behind a redirection) is noticed here, once for all
 * commands, since a program that lost its output has not succeeded.
 */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "base/words.h"
#include "rosatune.h"

#if defined(__has_include)
#if __has_include("rosatune_config.h")
#include "rosatune_config.h"
#endif
#endif

#include <errno.h>
#include <stdio.h>
#include <string.h>

#ifndef ROSATUNE_FEATURES
#define ROSATUNE_FEATURES ""
#endif

static const struct command {
	const char *name, *what;
	int (*run)(int count, char **words);
} commands[] = {
    {"retrieve", "find the destinations of symbol files", retrieve_command},
    {"info", "describe a model, and the memory it takes", info_command},
    {"generate", "read a text with a model and go on with it, or chat", generate_command},
    {"tokenize", "turn text into a model's tokens, and back", tokenize_command},
    {"ppl", "measure how well a model foresees a text", ppl_command},
    {"logits", "compute what a model expects after every token", logits_command},
    {"gradients", "compute the gradient of a model's loss", gradients_command},
    {"bench retrieve", "measure the speed and the memory of retrieval", bench_retrieve_command},
    {"bench model", "measure how fast a model reads and writes", bench_model_command},
    {"bench train", "measure how fast a model learns", bench_train_command},
    {"bench products", "measure how fast weights are multiplied", bench_products_command},
    {"data pack", "turn texts into token shards for training", data_pack_command},
    {"data check", "check token shards thoroughly", data_check_command},
    {"adapter info", "describe an adapter", adapter_info_command},
    {"adapter options", "list the options of an adapter", adapter_options_command},
    {"tune", "train a ROSA adapter, and the model if asked", tune_command},
    {"mqar", "train a small decoder to recall, and compare", mqar_command},
    {"plot", "draw the curves of training from its logs", plot_command},
    {"demo", "show retrieval at work on a text", demo_command},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *to)
{
	fputs("usage: rosatune COMMAND [options]\n\n"
	      "Exact suffix retrieval over binary symbols (ROSA).\n\ncommands:\n",
	      to);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(to, "  %-20s  %s\n", commands[i].name, commands[i].what);
	fputs("\n'rosatune COMMAND --help' explains a command, 'rosatune --version' the build.\n"
	      "Exit codes: 0 done, 1 failed while running, 2 wrong usage, 130 interrupted.\n",
	      to);
}

static void print_version(void)
{
	printf("rosatune %s\n", rosa_version());
	printf("instruction set: %s\n", rosa_pack_isa());
	if (ROSATUNE_FEATURES[0])
		printf("optional: %s\n", ROSATUNE_FEATURES);
}

/* The number of words of the command's name if the command line begins with them, else 0. */
static int matches(const char *name, int count, char **words)
{
	const char *space = strchr(name, ' ');
	size_t first = space ? (size_t)(space - name) : strlen(name);

	if (count < 1 || strlen(words[0]) != first || strncmp(words[0], name, first) != 0)
		return 0;
	if (!space)
		return 1;
	return count >= 2 && strcmp(words[1], space + 1) == 0 ? 2 : 0;
}

/* Only the first of a name of two words was given, or with another second one: "bench", "bench foo". */
static int explain_group(int count, char **words)
{
	bool asked = count > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0);
	const char *seconds[COMMANDS + 1];
	size_t length = strlen(words[0]), found = 0;

	for (size_t i = 0; i < COMMANDS; i++) {
		if (strncmp(commands[i].name, words[0], length) == 0 && commands[i].name[length] == ' ')
			seconds[found++] = commands[i].name + length + 1;
	}
	seconds[found] = NULL;
	if (found == 0)
		return -1;
	if (asked) {
		for (size_t i = 0; i < found; i++)
			printf("usage: rosatune %s %s [options]\n", words[0], seconds[i]);
		return DONE;
	}
	const char *near = count > 1 ? words_nearest(words[1], seconds) : NULL;
	if (count > 1)
		complain(words[0], "unknown command %s, did you mean 'rosatune %s %s'?", words[1], words[0],
			 near ? near : seconds[0]);
	else
		complain(words[0], "what shall it do? try 'rosatune %s %s --help'", words[0], seconds[0]);
	return MISUSED;
}

static int explain_unknown(const char *word)
{
	const char *kind = word[0] == '-' ? "option" : "command";
	const char *names[COMMANDS + 3];
	char firsts[COMMANDS][32];
	size_t count = 0;

	for (; count < COMMANDS; count++) {
		snprintf(firsts[count], sizeof(firsts[count]), "%.*s", (int)strcspn(commands[count].name, " "),
			 commands[count].name);
		names[count] = firsts[count];
	}
	names[count++] = "--help";
	names[count++] = "--version";
	names[count] = NULL;
	const char *near = words_nearest(word, names);
	if (near)
		complain(NULL, "unknown %s %s, did you mean %s?", kind, word, near);
	else
		complain(NULL, "unknown %s %s; 'rosatune --help' lists those there are", kind, word);
	return MISUSED;
}

static int dispatch(int count, char **words)
{
	if (count == 0) {
		print_help(stderr);
		return MISUSED;
	}
	if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0 || strcmp(words[0], "help") == 0) {
		print_help(stdout);
		return DONE;
	}
	if (strcmp(words[0], "--version") == 0) {
		print_version();
		return DONE;
	}
	for (size_t i = 0; i < COMMANDS; i++) {
		int used = matches(commands[i].name, count, words);
		if (used)
			return commands[i].run(count - used, words + used);
	}
	int code = explain_group(count, words);
	return code >= 0 ? code : explain_unknown(words[0]);
}

int main(int argc, char **argv)
{
	int code = dispatch(argc > 0 ? argc - 1 : 0, argv + 1);

	if (fflush(stdout) != 0 || ferror(stdout)) {
		complain(NULL, "cannot write to standard output: %s", strerror(errno));
		return code == DONE ? FAILED : code;
	}
	return code;
}
