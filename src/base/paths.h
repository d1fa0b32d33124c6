/* Paths of files and folders. */
#pragma once

#include <stdbool.h>

/* Results are from malloc; NULL if there is no memory. */
char *path_join(const char *folder, const char *name);
char *path_folder(const char *path); /* the folder of a file: all before the last slash, or "." */

bool path_ends_in(const char *path, const char *end); /* ".gguf" */
bool path_exists(const char *path);                   /* of any kind */
bool path_is_file(const char *path);
bool path_is_folder(const char *path);
