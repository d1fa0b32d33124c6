/* Searches by regular expressions, compared with PCRE2 alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether search_next finds the same matches in a text, one after the other, as PCRE2 finds in the whole of it. Without
 * `jit`, search_next uses PCRE2's interpreter as well. An expression that is refused, or takes too many steps, agrees.
 */
bool searches_agree(const char *regex, size_t regex_size, const char *text, size_t size, bool jit);
