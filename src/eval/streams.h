/* Symbol streams made by rule: the ones the benchmark offers and the hostile ones the tests insist on. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Kinds are numbered 0 .. stream_count() - 1. */
int stream_count(void);
const char *stream_name(int kind); /* "uniform", "sticky", ... */
const char *stream_what(int kind); /* one line, for help texts */
int stream_find(const char *name); /* -1 if there is none of that name */

/* Fill one route's query and key, `steps` symbols below 2^bits each. The same arguments give the same symbols on every
 * machine. */
void stream_fill(int kind, int bits, uint64_t seed, size_t steps, uint16_t *query, uint16_t *key);

/* Makes symbols of few values into symbols below 2^bits: each value is replaced by another, different ones by different
 * ones, spread over the range. A stream filled with 2 bits and spread over 16 uses 4 of the 65,536 values. */
void stream_spread(int bits, size_t steps, uint16_t *symbols);
