/* Stop strings over a stream of text. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

typedef struct stopping stopping;

/* The strings are copied. None of them may be empty; there may be none at all. */
rosa_status stopping_new(const char *const *strings, size_t count, stopping **made, rosa_error *err);
void stopping_free(stopping *stopping); /* safe on NULL */

/* The maximum number of bytes that are held back. `out` must have room for the size of the input plus this. */
size_t stopping_longest(const stopping *stopping);

/* Takes more text and writes to `out` what cannot be part of a stop string any more; the rest is held back. Returns the
 * number of bytes written. Once a stop string is complete nothing of it or after it is ever written. */
size_t stopping_take(stopping *stopping, const char *text, size_t size, char *out);

/* Whether a stop string was found. */
bool stopping_done(const stopping *stopping);

/* Ends the text: writes what is still held back (at most stopping_longest bytes) and resets the state. */
size_t stopping_finish(stopping *stopping, char *out);
