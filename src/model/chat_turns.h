/* The tokens of a conversation that goes on, turn by turn. */
#pragma once

#include "model/answer.h"
#include "model/conversation.h"

/* The first three fields are set by the owner; the rest of a new one is zero. */
struct chat_turns {
	const tokenizer *tokenizer;
	const struct chat_format *format;
	bool think;
	struct conversation conversation; /* all messages, from the first to the last */
	struct tokens said;               /* its tokens, up to the end of the last answer */
	bool answered;                    /* `said` contains an answer of this conversation */
};

void chat_turns_clear(struct chat_turns *turns); /* no messages, no tokens; nothing is left to free */

/* The tokens of the whole conversation, which ends with a user's message, up to where the answer begins. *lasting: how
 * many of them will also begin the tokens of later turns. On failure `tokens` has nothing to free. */
rosa_status chat_turns_next(const struct chat_turns *turns, struct tokens *tokens, size_t *lasting, rosa_error *err);

/* Adds the answer to the conversation and to `said`. `tokens`: those of chat_turns_next and of the answer. `whole`: all
 * those of chat_turns_next last. */
rosa_status chat_turns_answer(struct chat_turns *turns, const struct answer *answer, const struct tokens *tokens,
			      bool whole, rosa_error *err);

/* Whether the tokens of an answer may not last, however it ends. */
bool chat_turns_rewrite(const struct chat_turns *turns);
