/* Conversations for training: their tokens, and which of them are the model's to say. */
#pragma once

#include "model/chat.h"

/* How a model's conversations look, found once. */
struct answers {
	const tokenizer *tokenizer;
	struct chat_format format;
	uint32_t start, end; /* tokens that begin and end every message */
	char *prompt;        /* what stands before an answer, from `start` on, as bytes */
	size_t prompt_size;  /* with the opening of a thought, where the template opens one */
	size_t plain_size;   /* without it */
};

/* A model without a chat template that is known here is refused. The tokenizer must stay. */
rosa_status answers_init(struct answers *answers, const tokenizer *tokenizer, rosa_error *err);
void answers_free(struct answers *answers); /* safe on a zeroed one */

/* Appends the tokens of a conversation, as chat_encode gives them. *counts, from malloc, has a byte for each of these:
 * 1 for the tokens of what an assistant said and for the end of it, 0 for all others. A conversation without an answer
 * is refused. May be called from several threads at once. On failure `tokens` is as it was and *counts NULL. */
rosa_status answers_encode(const struct answers *answers, const struct chat_message *messages, size_t count,
			   struct tokens *tokens, uint8_t **counts, rosa_error *err);
