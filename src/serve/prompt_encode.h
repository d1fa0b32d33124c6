/* The tokens of a prompt. */
#pragma once

#include "base/json_text.h"
#include "serve/served.h"

/* The tokens of prompt number i; token ids in the request are moved, not copied. Release them even after a failure. */
bool prompt_encode(const struct served *model, struct request *request, size_t i, struct tokens *tokens,
		   struct api_error *error);

/* A prompt or conversation as token ids, their text, and the number of characters before each token. */
bool answer_tokens(struct json_text *text, const struct served *model, const char *body, size_t size,
		   struct api_error *error);
