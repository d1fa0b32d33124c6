/* Words from a person, and for one: misspelt names, numbers with units, lines of a screen. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name nearest to a misspelt word, or NULL if none is near. `names` ends with NULL. */
const char *words_nearest(const char *word, const char *const *names);

/* A number from digits; with `units` k, M and G (powers of 1024) may follow. False if it is not a number, or too large.
 */
bool words_number(const char *text, bool units, uint64_t *number);

/* How many bytes of a text, ASCII, go on the next line of a screen whose text begins in column `indent`: all of it if
 * it fits, else up to a space, which is dropped. */
#define SCREEN_COLUMNS 110
size_t words_line(const char *text, size_t indent);
