/* The subcommands, one file each. Every one takes the words after its name and returns the exit code. */
#pragma once

#include <stdio.h>

struct command {
	const char *name; /* one word or two */
	const char *what; /* what it does, for the list of commands */
	int (*run)(int count, char **words);
};

extern const struct command commands[]; /* ends with a name of NULL */

/* The command whose name begins the words, and how many of the words are its name. NULL: there is none. */
const struct command *command_find(int count, char **words, int *used);

/* Runs the command that the words name. */
int command_run(int count, char **words);

/* Says on stderr that no command has this name, and which may have been meant. Returns the exit code. */
int command_unknown(int count, char **words);

void commands_help(FILE *to);

int retrieve_command(int count, char **words);
int info_command(int count, char **words);
int generate_command(int count, char **words);
int chat_command(int count, char **words);
int serve_command(int count, char **words);
int tokenize_command(int count, char **words);
int ppl_command(int count, char **words);
int recall_command(int count, char **words);
int eval_command(int count, char **words);
int score_command(int count, char **words);
int report_command(int count, char **words);
int pointer_fit_command(int count, char **words);
int logits_command(int count, char **words);
int gradients_command(int count, char **words);
int bench_retrieve_command(int count, char **words);
int bench_model_command(int count, char **words);
int bench_adapter_command(int count, char **words);
int bench_train_command(int count, char **words);
int bench_products_command(int count, char **words);
int data_pack_command(int count, char **words);
int data_check_command(int count, char **words);
int adapter_info_command(int count, char **words);
int adapter_export_command(int count, char **words);
int adapter_options_command(int count, char **words);
int tune_command(int count, char **words);
int mqar_command(int count, char **words);
int plot_command(int count, char **words);
int demo_command(int count, char **words);
int doctor_command(int count, char **words);
int help_command(int count, char **words);
int man_command(int count, char **words);
int completion_command(int count, char **words);
