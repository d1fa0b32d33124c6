/* Other programs: whether they are there, and what they say. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether a program of this name is in PATH. Its path goes to `path`, of `size` bytes (NULL, 0: not wanted). */
bool program_find(const char *name, char *path, size_t size);

/* Runs a program with words, the first of which is its name, and with these as its standard input, output and error. A
 * signal to us asks it to end. *status is as waitpid has it. Returns 0, or the code of errno why it did not start. */
int program_run(const char *const *words, const int streams[3], int *status);

/* Runs a program with words, the first of which is its name, and keeps the first line that it prints. It has no input
 * and its messages are dropped. False if it cannot be started or fails. */
bool program_ask(const char *const *words, char *line, size_t size);
