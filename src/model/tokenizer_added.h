/* Added tokens: texts that become tokens before any other step. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* Bytes of the longest one that is accepted. Real ones have less than 100. Every byte of a text is compared with as
 * many, so without a bound a file could make encoding take the square of its size. */
#define ADDED_LONGEST 1024

struct added_token {
	char *content; /* from malloc */
	size_t size;
	uint32_t id;
	bool special;
	bool single_word;    /* only where no letter or digit is beside it */
	bool lstrip, rstrip; /* takes in the spaces before or after it */
	size_t prefix;       /* set by added_finish: the longest other one that this one begins with, plus 1; 0: none */
};

/* Those that are looked for at one stage: in the text as it is, or in its normal form. */
struct added_tokens {
	struct added_token *all; /* after added_finish: sorted by content, each content once */
	size_t count, room;
	bool first[256]; /* bytes that one of them begins with */
};

/* The content is copied. Empty ones are left out, and of equal ones all but that of the lowest id. */
rosa_status added_put(struct added_tokens *added, const struct added_token *token, rosa_error *err);
void added_finish(struct added_tokens *added);
void added_free(struct added_tokens *added); /* safe on a zeroed one */

/* A walk through the added tokens of one text. */
struct added_search {
	const struct added_tokens *added;
	const char *text;
	size_t size;
	bool special; /* whether special ones count */
	/* Zero at the beginning: */
	size_t from;       /* where to look on */
	size_t done;       /* where the last one ended, spaces included */
	size_t spaces_end; /* where the last row of spaces ended that was looked at from the left */
};

/* A token in a text, with the spaces that it takes in. */
struct added_match {
	uint32_t id;
	size_t start, end;
};

/* The next one: the first, and of those that begin there the longest. False if there is none. */
bool added_next(struct added_search *search, struct added_match *match);
