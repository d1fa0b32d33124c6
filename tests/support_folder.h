/* A folder of a test's own, with names for two files in it. */
#pragma once

#include <stddef.h>

struct folder {
	char path[64], file[96], other[96];
};

/* Setup and teardown of a test; *state is a struct folder. The teardown fails if more than the two files is left. */
int folder_enter(void **state);
int folder_leave(void **state);

size_t folder_entries(const struct folder *folder);

/* The file is then just these bytes. */
void file_put(const char *path, const void *data, size_t size);
