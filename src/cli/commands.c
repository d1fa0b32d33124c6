/*
 * The commands, in one table: dispatch, help, manual, completions and the answer to a misspelt name are made from it.
 *
 * A name has one word or two. Words that only begin a name ("bench") are explained, not guessed at.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/report.h"
#include "base/words.h"

#include <stdlib.h>
#include <string.h>

const struct command commands[] = {
    {"retrieve", "find the destinations of symbol files", retrieve_command},
    {"info", "describe a model, and the memory it takes", info_command},
    {"chat", "talk with a model", chat_command},
    {"generate", "read a text with a model and continue it", generate_command},
    {"serve", "serve a model over HTTP, with OpenAI's interface", serve_command},
    {"tokenize", "turn text into a model's tokens, and back", tokenize_command},
    {"ppl", "measure how well a model predicts a text", ppl_command},
    {"recall", "measure a model's memory beyond its window", recall_command},
    {"eval", "run tasks with and without window, pointer and adapter", eval_command},
    {"report", "tabulate the results of eval", report_command},
    {"score", "score a file of existing answers", score_command},
    {"pointer fit", "fit a pointer to a model and its window", pointer_fit_command},
    {"logits", "write the logits after every token", logits_command},
    {"gradients", "compute the gradient of a model's loss", gradients_command},
    {"bench retrieve", "measure the speed and the memory of retrieval", bench_retrieve_command},
    {"bench model", "measure how fast a model reads and generates", bench_model_command},
    {"bench adapter", "measure what an adapter costs in speed", bench_adapter_command},
    {"bench train", "measure how fast a model trains", bench_train_command},
    {"bench products", "measure the speed of matrix products with weights", bench_products_command},
    {"data pack", "turn texts into token shards for training", data_pack_command},
    {"data check", "check token shards thoroughly", data_check_command},
    {"adapter info", "describe an adapter", adapter_info_command},
    {"adapter export", "copy an adapter without its optimiser", adapter_export_command},
    {"adapter options", "list the options of an adapter", adapter_options_command},
    {"tune", "train a ROSA adapter, optionally with the model", tune_command},
    {"mqar", "train small decoders on associative recall", mqar_command},
    {"plot", "draw the curves of training from its logs", plot_command},
    {"demo", "show retrieval at work on a text", demo_command},
    {"doctor", "check what this machine and this build can do", doctor_command},
    {"help", "explain a command", help_command},
    {"man", "print the manual page of a command", man_command},
    {"completion", "print the completion script of a shell", completion_command},
    {NULL, NULL, NULL},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]) - 1)

void commands_help(FILE *to)
{
	fputs("usage: rosatune COMMAND [options]\n\n"
	      "Exact suffix retrieval over binary symbols (ROSA), and language models that use it.\n\ncommands:\n",
	      to);
	for (const struct command *command = commands; command->name; command++)
		fprintf(to, "  %-20s  %s\n", command->name, command->what);
	fputs("\n'rosatune help COMMAND' explains a command, 'rosatune --version' (-V) the build.\n"
	      "Exit codes: 0 done, 1 failed while running, 2 wrong usage, 130 interrupted.\n",
	      to);
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

const struct command *command_find(int count, char **words, int *used)
{
	for (const struct command *command = commands; command->name; command++) {
		*used = matches(command->name, count, words);
		if (*used)
			return command;
	}
	return NULL;
}

/* Only the first of a name of two words was given, or with another second one: "bench", "bench foo". Returns the exit
 * code, or -1 if no name begins so. */
static int explain_group(int count, char **words)
{
	bool asked = count > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0);
	const char *seconds[COMMANDS + 1];
	size_t length = strlen(words[0]), found = 0;
	char all[256] = "";

	for (size_t i = 0; i < COMMANDS; i++) {
		if (strncmp(commands[i].name, words[0], length) != 0 || commands[i].name[length] != ' ')
			continue;
		seconds[found++] = commands[i].name + length + 1;
		if (asked)
			printf("usage: rosatune %-16s [options]   %s\n", commands[i].name, commands[i].what);
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", found > 1 ? ", " : "",
			 seconds[found - 1]);
	}
	seconds[found] = NULL;
	if (found == 0)
		return -1;
	if (asked)
		return DONE;
	const char *near = count > 1 ? words_nearest(words[1], seconds) : NULL;
	if (count > 1)
		complain(words[0], "unknown command %s, did you mean 'rosatune %s %s'?", words[1], words[0],
			 near ? near : seconds[0]);
	else
		complain(words[0], "a second word is missing: %s; 'rosatune %s --help' says what they do", all,
			 words[0]);
	return MISUSED;
}

/* What other programs call our commands. */
static const char *known_elsewhere(const char *word)
{
	static const char *const table[][2] = {{"train", "tune"},     {"finetune", "tune"},    {"fine-tune", "tune"},
					       {"perplexity", "ppl"}, {"run", "chat"},         {"complete", "generate"},
					       {"-v", "--version"},   {"version", "--version"}};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (strcmp(word, table[i][0]) == 0)
			return table[i][1];
	}
	return NULL;
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
	const char *known = known_elsewhere(word), *near = known ? known : words_nearest(word, names);
	if (near)
		complain(NULL, "unknown %s %s, did you mean %s?", kind, word, near);
	else
		complain(NULL, "unknown %s %s; 'rosatune --help' lists the commands", kind, word);
	return MISUSED;
}

int command_unknown(int count, char **words)
{
	int code = explain_group(count, words);

	return code >= 0 ? code : explain_unknown(words[0]);
}

int command_run(int count, char **words)
{
	int used;
	const struct command *command = command_find(count, words, &used);

	return command ? command->run(count - used, words + used) : command_unknown(count, words);
}

int help_command(int count, char **words)
{
	struct arg_words names;
	struct args args = {
	    .command = "help",
	    .usage = "[COMMAND]",
	    .summary = "Explains a command and its options, or lists the commands.",
	    .operands = &names,
	    .operand_name = "COMMAND",
	};
	char ask[] = "--help", *line[3] = {NULL};

	if (count == 0) {
		commands_help(stdout);
		return DONE;
	}
	enum args_result parsed = args_parse(&args, count, words);
	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	/* Of "help bench retrieve" two words are the name; what follows a name is not looked at. */
	int length = count < 2 ? count : 2;
	memcpy(line, names.all, (size_t)length * sizeof(*line));
	line[length] = ask;
	return command_run(length + 1, line);
}
