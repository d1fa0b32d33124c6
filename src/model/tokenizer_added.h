/* Added tokens: pieces of text that are tokens before anything else happens to it. */
#ifndef ROSATUNE_TOKENIZER_ADDED_H
#define ROSATUNE_TOKENIZER_ADDED_H

#include "rosatune.h"

#include <stdbool.h>

struct added_token {
	char *content; /* from malloc */
	size_t size;
	uint32_t id;
	bool special;
	bool single_word;    /* only where no letter or digit is beside it */
	bool lstrip, rstrip; /* takes the spaces before or after it in */
};

/* Those that are looked for at one stage: in the text as it is, or in its normal form. */
struct added_tokens {
	struct added_token *all; /* sorted by content after added_finish */
	size_t count, room;
	bool first[256]; /* bytes that one of them begins with */
};

/* Takes over nothing: content is copied. Empty ones are left out. */
rosa_status added_put(struct added_tokens *added, const struct added_token *token, rosa_error *err);
void added_finish(struct added_tokens *added);
void added_free(struct added_tokens *added); /* safe on a zeroed one */

/* The part of a text that an added token takes, and the text before it. */
struct added_match {
	uint32_t id;
	size_t start, end;
};

/* The next token in `text` from `from` on, the first and of those the longest; `done` is where the one before ended,
 * spaces included. Special ones only count if `special`. False if there is none. *next is where to look on. */
bool added_find(const struct added_tokens *added, const char *text, size_t size, size_t from, size_t done, bool special,
		struct added_match *match, size_t *next);

#endif
