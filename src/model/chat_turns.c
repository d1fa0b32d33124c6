/*
 * The text of a conversation only grows at its end, so a turn should cost no more than its own tokens, even if a book
 * stands before it. Two things complicate this. First, a model may generate a text in other tokens than the tokenizer
 * would choose for it; so the tokens of an answer are kept as they were generated, and only new text is encoded.
 * Second, models that write down their thoughts are trained on conversations from which earlier thoughts were removed;
 * so their answers are encoded again, without thoughts. In both cases the model reads exactly the conversation.
 *
 * The tokens of a new turn are found by counting. Every message ends with the same special token, which no content can
 * contain. So in the encoding of the whole conversation the new turn is what follows the end of the last answer.
 */
#include "model/chat_turns.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

void chat_turns_clear(struct chat_turns *turns)
{
	conversation_free(&turns->conversation);
	tokens_free(&turns->said);
	turns->answered = false;
}

/* Encodes the conversation with up to two more messages and, if `answer`, the beginning of an answer. */
static rosa_status encode(const struct chat_turns *turns, const struct chat_message *more, size_t count, bool answer,
			  struct tokens *tokens, rosa_error *err)
{
	const struct conversation *conversation = &turns->conversation;
	struct chat_message *all = malloc((conversation->count + count + 1) * sizeof(*all));
	rosa_status status;

	*tokens = (struct tokens){0};
	if (!all)
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for %zu messages", conversation->count + count);
	for (size_t i = 0; i < conversation->count + count; i++)
		all[i] = i < conversation->count ? conversation->all[i] : more[i - conversation->count];
	status = chat_encode(turns->tokenizer, turns->format, all, conversation->count + count, answer, turns->think,
			     tokens, err);
	free(all);
	if (status != ROSA_OK)
		tokens_free(tokens);
	return status;
}

/* The index after the n-th last end of a message; 0 if there are fewer. */
static size_t after_end(const struct chat_turns *turns, const struct tokens *tokens, size_t n)
{
	const int64_t end = chat_end(turns->tokenizer, turns->format);

	for (size_t i = tokens->count; i > 0; i--) {
		if ((int64_t)tokens->ids[i - 1] == end && --n == 0)
			return i;
	}
	return 0;
}

/* The new turn in the tokens of a conversation, without memory of its own: after the last answer, which `ends_after`
 * ends follow or are part of. */
static struct tokens new_turn(const struct chat_turns *turns, const struct tokens *tokens, size_t ends_after)
{
	const size_t begin = turns->answered ? after_end(turns, tokens, ends_after) : 0;

	return (struct tokens){tokens->ids + begin, tokens->count - begin, 0};
}

rosa_status chat_turns_next(const struct chat_turns *turns, struct tokens *tokens, size_t *lasting, rosa_error *err)
{
	static const struct chat_message later[] = {{"assistant", "."}, {"user", "."}};
	struct tokens now, then = {0};
	rosa_status status = encode(turns, NULL, 0, true, &now, err);

	*tokens = (struct tokens){0};
	if (status == ROSA_OK)
		status = encode(turns, later, 2, false, &then, err);
	if (status == ROSA_OK)
		status = tokens_add(tokens, turns->said.ids, turns->said.count, err);
	if (status == ROSA_OK) {
		const struct tokens turn = new_turn(turns, &now, 2), same = new_turn(turns, &then, 4);

		*lasting = turns->said.count + tokens_common(&turn, same.ids, same.count);
		status = tokens_add(tokens, turn.ids, turn.count, err);
	}
	tokens_free(&now);
	tokens_free(&then);
	if (status != ROSA_OK)
		tokens_free(tokens);
	return status;
}

bool chat_turns_rewrite(const struct chat_turns *turns)
{
	return turns->format->style == CHAT_QWEN3;
}

/* Whether later turns contain the answer in the tokens in which it was generated. */
static bool lasts(const struct chat_turns *turns, const struct answer *answer)
{
	return answer->end != ANSWER_STOP && !(chat_turns_rewrite(turns) && strstr(answer->text.data, "</think>"));
}

/* However the answer ended, its message ends with the end token, which is unread in any case. */
static rosa_status keep_tokens(struct chat_turns *turns, const struct answer *answer, const struct tokens *tokens,
			       rosa_error *err)
{
	const uint32_t end = (uint32_t)chat_end(turns->tokenizer, turns->format);
	rosa_status status;

	turns->said.count = 0;
	status = tokens_add(&turns->said, tokens->ids, tokens->count - (answer->end == ANSWER_END), err);
	return status == ROSA_OK ? tokens_add(&turns->said, &end, 1, err) : status;
}

/* Encodes the last turn and its answer as later turns contain them. */
static rosa_status keep_text(struct chat_turns *turns, rosa_error *err)
{
	static const struct chat_message later[] = {{"user", "."}};
	struct tokens again;
	rosa_status status = encode(turns, later, 1, false, &again, err);

	if (status != ROSA_OK)
		return status;
	const struct tokens turn = new_turn(turns, &again, 4);

	status = tokens_add(&turns->said, turn.ids, after_end(turns, &turn, 2), err);
	tokens_free(&again);
	return status;
}

rosa_status chat_turns_answer(struct chat_turns *turns, const struct answer *answer, const struct tokens *tokens,
			      bool whole, rosa_error *err)
{
	rosa_status status = conversation_add(&turns->conversation, "assistant", strlen("assistant"), answer->text.data,
					      answer->text.size, err);

	if (status == ROSA_OK)
		status =
		    whole && lasts(turns, answer) ? keep_tokens(turns, answer, tokens, err) : keep_text(turns, err);
	turns->answered = turns->answered || status == ROSA_OK;
	return status;
}
