/* What CMake found is known from one header, which a build by hand may lack. */
#include "cli/features.h"

#include <string.h>

#if defined(__has_include)
#if __has_include("rosatune_config.h")
#include "rosatune_config.h"
#endif
#endif

#ifndef ROSATUNE_FEATURES
#define ROSATUNE_FEATURES ""
#endif

const char *features_list(void)
{
	return ROSATUNE_FEATURES;
}

bool features_has(const char *name)
{
	size_t length = strlen(name);

	for (const char *at = ROSATUNE_FEATURES; *at; at += strspn(at, ", ")) {
		if (strncmp(at, name, length) == 0 && strncmp(at + length, ": ", 2) == 0) {
			const char *state = at + length + 2;
			return strncmp(state, "yes", 3) == 0 || strncmp(state, "built in", 8) == 0;
		}
		at += strcspn(at, ",");
	}
	return false;
}
