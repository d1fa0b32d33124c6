/* The input of a fuzz target as a file, for what reads files only. */
#pragma once

#include <stddef.h>

/* The path of a file with these bytes, in memory; the next call writes over it. */
const char *fuzz_file(const void *data, size_t size);
