/* The API key that clients must send. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* The first line of a file, to be released with free(). A file without one is refused. */
rosa_status api_key_load(const char *path, char **key, rosa_error *err);

/* Whether the header "Authorization: Bearer KEY" has the key. The time depends on the length of the given key, not on
 * how many of its characters are correct. */
bool api_key_fits(const char *key, const char *authorization);
