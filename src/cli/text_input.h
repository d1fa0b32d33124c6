/* Text that a user gives (a file, standard input, an argument, a line) and gets. */
#pragma once

#include "base/json_text.h"
#include "base/text.h"
#include "cli/report.h"

/* text_append, for conditions. */
bool text_add(struct text *text, const char *name, const char *bytes, size_t size, bool lossy, rosa_error *why);

/* Appends all of a file, decompressed if it is .gz, .xz or .zst (which its content tells); "-" is standard input. */
bool text_add_file(struct text *text, const char *path, bool lossy, rosa_error *why);

/* Writes to standard output at once and whole, whatever signals come. */
bool text_print(const char *data, size_t size, rosa_error *why);

/* The same for JSON, which is freed. */
bool json_print(struct json_text *text, rosa_error *why);
