/* Other programs: whether they are there, and what they say. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether a program of this name is in PATH. Its path goes to `path`, of `size` bytes (NULL, 0: not wanted). */
bool program_find(const char *name, char *path, size_t size);

/* Runs a program with words, the first of which is its name, and keeps the first line that it prints. It has no input
 * and its messages are dropped. False if it cannot be started or fails. */
bool program_ask(const char *const *words, char *line, size_t size);
