/* The pieces of a text, within which tokens are merged. */
#pragma once

#include "model/pretokenize_search.h"

/* What becomes of a match, and of the text between two. */
enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };

struct split_step {
	struct expression expression;
	enum split_behavior behavior;
	bool invert; /* a match is what does not match */
};

#define SPLIT_MAX_STEPS 16

/* Steps, each of which cuts the pieces of the one before. */
struct pretokenizer {
	struct split_step steps[SPLIT_MAX_STEPS];
	size_t count;
	bool prefix_space; /* pieces that come to step `space_at` without a space in front get one */
	size_t space_at;
};

/* What GPT-2 splits by, and all byte-level tokenizers that name no expression of their own. */
extern const char gpt2_regex[];

/* A regular expression as tokenizer.json has it. */
rosa_status pretokenizer_add_split(struct pretokenizer *pretokenizer, const char *regex, size_t size,
				   enum split_behavior behavior, bool invert, rosa_error *err);
/* A piece of text as it is. */
rosa_status pretokenizer_add_literal(struct pretokenizer *pretokenizer, const char *text, size_t size,
				     enum split_behavior behavior, bool invert, rosa_error *err);
/* Numerals of any script, each alone if `individual`. */
rosa_status pretokenizer_add_digits(struct pretokenizer *pretokenizer, bool individual, rosa_error *err);
void pretokenizer_free(struct pretokenizer *pretokenizer); /* safe on a zeroed one */

/* Called with every piece in turn; a failure stops the work. */
typedef rosa_status piece_sink(void *context, const char *piece, size_t size, rosa_error *err);

/* `text` is UTF-8: a whole text or a part of the one that `search` was made for. */
rosa_status pretokenize(const struct pretokenizer *pretokenizer, struct search *search, const char *text, size_t size,
			piece_sink *sink, void *context, rosa_error *err);
