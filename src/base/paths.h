/* Paths of files and folders. */
#pragma once

#include <stdbool.h>

/* A path by value: there is nothing to free, and making one cannot fail. One that is too long is cut to a length that
 * the system still refuses (PATH_MAX, 4096 bytes with the end). */
struct path {
	char text[4097];
};

struct path path_of(const char *text);
struct path path_join(const char *folder, const char *name);
struct path path_folder(const char *path); /* the folder of a file: all before the last slash, or "." */
/* A file of that name in a folder, or in the folder of a file. */
struct path path_beside(const char *path, const char *name);

bool path_ends_in(const char *path, const char *end); /* ".gguf" */
bool path_exists(const char *path);                   /* of any kind */
bool path_is_file(const char *path);
bool path_is_folder(const char *path);
