/*
 * The tokens of a text, and how often each of them has been seen.
 *
 * A token counts as seen when it is older than the delay: after the first `steps` tokens of a text, with t = steps - 1
 * the last of them, those at places before t - delay count. A token that stands there n times has a class, by n and by
 * how rare its id says it is. The pointer's table (pointer.h) and an adapter's seen-token head (decoder_seen.c)
 * have a number for each class.
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

#define SEEN_COUNTS  4  /* of a token seen: 1, 2 to 3, 4 to 7, and 8 or more */
#define SEEN_RANKS   15 /* ids below 64, below 192, 448, ... 2^20: vocabularies begin with what is frequent */
#define SEEN_CLASSES (1 + SEEN_COUNTS * SEEN_RANKS) /* not seen, then the table row by row */

/* The class of a token that was seen `count` times, below SEEN_CLASSES; 0: it was not. */
uint8_t seen_class(uint32_t token, uint32_t count);

/* For the control that reads at random: another token of the same rank, a different one for each. Tokens move by half
 * of those of their rank. A token counted as seen_moved(y) makes the count of x that of the token
 * pi(x) = lo + (x - lo + s / 2) mod s, where lo is the least token of its rank and s their number. */
uint32_t seen_moved(uint32_t token, size_t vocabulary);

/* A function of the tokens alone, whatever way it came to them. A zeroed one is empty and can be freed. */
struct seen {
	size_t vocabulary, delay;
	bool moved; /* each token is counted as its seen_moved */
	size_t steps, room;
	uint32_t *tokens; /* [room] */
	size_t counted;
	uint32_t *counts; /* [vocabulary]: how often each token is among the first `counted`; NULL: nothing is counted
			   */
	uint8_t *classes; /* [vocabulary] */
	size_t listed;
	uint32_t *list; /* [vocabulary]: the tokens whose count is not 0, in the order in which they came first */
};

/* Not `counting`: the tokens are only kept. */
rosa_status seen_new(struct seen *seen, size_t vocabulary, size_t delay, bool counting, rosa_error *err);
void seen_free(struct seen *seen);

/* Appends tokens, which are below the vocabulary. They are not counted yet. */
rosa_status seen_add(struct seen *seen, const uint32_t *tokens, size_t count, rosa_error *err);
/* Counts what has been seen after the first `steps` tokens, neither more nor less. */
void seen_count(struct seen *seen, size_t steps);
/* The token that token number i of the text counts as. */
uint32_t seen_counted(const struct seen *seen, size_t i);
/* Goes back to the first `steps` tokens, at most as many as there are. */
void seen_rewind(struct seen *seen, size_t steps);
/* A copy that has gone back; `to` must be empty. */
rosa_status seen_fork(const struct seen *from, size_t steps, struct seen *to, rosa_error *err);

uint64_t seen_bytes(const struct seen *seen); /* in use */
