/* The subcommands, one file each. Every one takes the words after its name and returns the exit code. */
#ifndef ROSATUNE_COMMANDS_H
#define ROSATUNE_COMMANDS_H

int retrieve_command(int count, char **words);
int info_command(int count, char **words);
int generate_command(int count, char **words);
int tokenize_command(int count, char **words);
int ppl_command(int count, char **words);
int logits_command(int count, char **words);
int gradients_command(int count, char **words);
int bench_retrieve_command(int count, char **words);
int bench_model_command(int count, char **words);
int bench_train_command(int count, char **words);
int bench_products_command(int count, char **words);
int data_pack_command(int count, char **words);
int data_check_command(int count, char **words);
int adapter_info_command(int count, char **words);
int adapter_options_command(int count, char **words);
int tune_command(int count, char **words);
int mqar_command(int count, char **words);
int plot_command(int count, char **words);
int demo_command(int count, char **words);

#endif
