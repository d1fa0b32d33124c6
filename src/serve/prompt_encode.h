/* The tokens of a prompt. */
#pragma once

#include "base/json_text.h"
#include "serve/served.h"

/* The tokens of prompt number i; those that are given as ids are taken over. They are to be released even after a
 * failure. */
bool prompt_encode(const struct served *model, struct request *request, size_t i, struct tokens *tokens,
		   struct api_error *error);

/* What a prompt or a conversation becomes: ids, the text of them, and how many of its characters stand before each. */
bool answer_tokens(struct json_text *text, const struct served *model, const char *body, size_t size,
		   struct api_error *error);
