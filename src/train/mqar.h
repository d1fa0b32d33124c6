/* Multi-query associative recall, as in Zoology: pairs of key and value, then keys again, whose values are asked for.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* What stands where nothing else does: token 0, any token, any token that is no name of one of the example's keys. */
enum mqar_filler { MQAR_NONE, MQAR_RANDOM, MQAR_WITHOUT_KEYS };

#define MQAR_NAME_TOKENS 8

struct mqar {
	size_t vocabulary, pairs, length;
	size_t name_tokens; /* tokens of a key's name, 1 to MQAR_NAME_TOKENS */
	size_t names;       /* different tokens that names are made of; 0: as many as there is room for */
	double power;       /* of the power law of gaps; Zoology: 0.01 */
	enum mqar_filler filler;
	bool rename; /* queries use a second name of each key, by a fixed permutation */
	uint64_t seed;
};

/* The vocabulary: 0, then the tokens of names, then those of second names if there are any, then values. */
struct mqar_words {
	size_t names;         /* tokens of names are 1 .. names, those of second names the next so many */
	size_t first_value;   /* values are from here to the end */
	size_t keys;          /* different keys: names, or pairs of them */
	size_t slot, context; /* tokens of a pair; of all pairs */
	size_t places;        /* slots after the pairs where a query may stand */
};

struct mqar_words mqar_words(const struct mqar *task);

rosa_status mqar_check(const struct mqar *task, rosa_error *err);

/* The second name of a token of a name; the token itself without `rename`. */
uint32_t mqar_second_name(const struct mqar *task, uint32_t token);

/* Example number n, a function of the task and n: tokens and targets [length], weight 1 where a value is asked for (the
 * prediction after the query's last token) and 0 elsewhere. `answer` (NULL: not wanted) [length] receives at those
 * places the position of the value in the sequence, else -1. */
void mqar_example(const struct mqar *task, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight,
		  int32_t *answer);
