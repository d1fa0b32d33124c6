/* Text on a terminal: what a model or a file says is shown, never obeyed. */
#pragma once

#include "cli/report.h"

#include <stddef.h>

/* Writes a text in UTF-8 to standard output at once and whole. Where that is a terminal, control characters but the end
 * of a line and the tab are escaped (\x1b); to a file or a pipe every byte goes as it is. */
bool screen_print(const char *text, size_t size, rosa_error *why);

/* The same, with control characters escaped always: for descriptions, which are read by people. */
bool screen_print_escaped(const char *text, size_t size, rosa_error *why);

/* A text, without a line's end, as it may be shown; from malloc, or NULL. */
char *screen_name(const char *text);
