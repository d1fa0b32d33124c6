/* Searching a text by a regular expression, with a bound on the work. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* A compiled expression. Does not change once it is made, so threads may share it. */
struct expression {
	void *fast;    /* pcre2_code, as machine code where `jit` */
	void *counted; /* pcre2_code that reports every step */
	bool jit;
	char shown[80]; /* as it stands in the model's file, for messages */
};

/* From PCRE2's language. `shown` is the text that messages quote. */
rosa_status expression_compile(struct expression *expression, const char *pattern, size_t size, const char *shown,
			       size_t shown_size, rosa_error *err);
void expression_free(struct expression *expression); /* safe on a zeroed one */

/* The searches in one text: what they write on, and the steps that they may still take. */
struct search {
	void *match, *fast_limits, *counted_limits; /* of PCRE2 */
	size_t text_size, steps, steps_left;
	size_t at; /* where the last counted step was */
};

/* The text, of `size` bytes, may be searched by several expressions, whole or in pieces. */
rosa_status search_new(struct search *search, size_t size, rosa_error *err);
void search_free(struct search *search); /* safe on a zeroed one */

struct search_match {
	bool there;
	size_t start, end;
};

/* The first match from `from` on. `text` is UTF-8. Fails where the searches of this text take more than a bounded
 * number of steps for each of its bytes. */
rosa_status search_next(struct search *search, const struct expression *expression, const char *text, size_t size,
			size_t from, struct search_match *match, rosa_error *err);
