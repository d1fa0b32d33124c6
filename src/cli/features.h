/* The optional parts of this build. */
#pragma once

#include <stdbool.h>

/* "name: state" of each, comma-separated. */
const char *features_list(void);

/* Whether the build has a part: its state is "yes" or "built in". */
bool features_has(const char *name);
