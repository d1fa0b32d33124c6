/* Regular expressions of tokenizers, rewritten for PCRE2. */
#pragma once

#include "rosatune.h"

/* Code points that Unicode assigned after version 14. */
struct unicode_range {
	uint32_t first, last;
	char category[3]; /* "Lo" */
};

extern const struct unicode_range unicode_additions[]; /* by code point */
extern const size_t unicode_additions_count;

/* `regex`, written for Oniguruma, so that PCRE2 with PCRE2_UTF and PCRE2_UCP finds the same. *pattern is from malloc.
 * What would mean something else there is refused by name. */
rosa_status pattern_translate(const char *regex, size_t size, char **pattern, size_t *pattern_size, rosa_error *err);
