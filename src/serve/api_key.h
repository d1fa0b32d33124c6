/* The key that clients must show. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* The first line of a file, to be released with free(). A file without one is refused. */
rosa_status api_key_load(const char *path, char **key, rosa_error *err);

/* Whether the header "Authorization: Bearer KEY" has the key. How long this takes depends on the length of what is
 * given and not on how much of it is right. */
bool api_key_fits(const char *key, const char *authorization);
