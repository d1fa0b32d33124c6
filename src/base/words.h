/* Words typed by a person: misspelt names, and numbers with units. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name nearest to a misspelt word, or NULL if none is near. `names` ends with NULL. */
const char *words_nearest(const char *word, const char *const *names);

/* A number from digits; with `units` k, M and G (powers of 1024) may follow. False if it is not a number, or too large.
 */
bool words_number(const char *text, bool units, uint64_t *number);
