/* Small tokenizers, made in memory. */
#pragma once

#include "model/tokenizer.h"

/* A tokenizer.json: tokens 0 to 255 are the single bytes, and each merge makes the next id. Parts are JSON; NULL: the
 * usual. */
struct recipe {
	const char *merges;        /* spelled, "t h,th e": two sides with a space, a comma between merges */
	bool pairs;                /* merges are written as pairs of strings */
	const char *model;         /* further fields of the model, with a comma at the end */
	const char *added;         /* an array */
	const char *normalizer;    /* null */
	const char *pre_tokenizer; /* ByteLevel with GPT-2's expression */
	const char *post_processor, *decoder;
	const char *without; /* a byte that gets no token, by its spelling */
};

/* For TEST_GROUP: ends the program as if its tests had passed where the build lacks a library that tokenizers need, and
 * says which. */
int recipe_needed(void **state);

/* Memory of the test. */
char *recipe_json(const struct recipe *recipe);

/* The tokenizer, which is closed with the test; a failure ends that. */
tokenizer *recipe_make(const struct recipe *recipe);

/* Whether a text gives these ids, "1 2 3"; the test ends with both if not. */
void expect_ids(const tokenizer *tokenizer, const char *text, const char *ids);
/* The same with special tokens as text. */
void expect_plain_ids(const tokenizer *tokenizer, const char *text, const char *ids);
