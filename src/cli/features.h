/* The optional parts of this build. */
#ifndef ROSATUNE_FEATURES_H
#define ROSATUNE_FEATURES_H

#include <stdbool.h>

/* "name: state" of each, comma-separated. */
const char *features_list(void);

/* Whether the build has a part: its state is "yes" or "built in". */
bool features_has(const char *name);

#endif
