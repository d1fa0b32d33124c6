/* Conversations as the text a model was trained on. */
#pragma once

#include "model/tokenizer.h"

enum chat_style {
	CHAT_NONE,
	CHAT_ML,    /* <|im_start|>role\n...<|im_end|>\n : SmolLM2 and others */
	CHAT_QWEN3, /* the same with thoughts, which are dropped from earlier answers */
	CHAT_LLAMA3 /* <|start_header_id|>role<|end_header_id|>\n\n...<|eot_id|> */
};

struct chat_message {
	const char *role; /* "system", "user", "assistant" */
	const char *content;
};

struct chat_format {
	enum chat_style style;
	char *system;     /* what the template says where no system message is given; NULL: nothing */
	char *preamble;   /* what it puts before every system message: Llama 3.1's dates; NULL: nothing */
	bool opens_think; /* answers begin inside a thought: the template opens it */
};

/* The style of a tokenizer, by its template and tokens; CHAT_NONE if it has none that is known here. */
rosa_status chat_format_of(const tokenizer *tokenizer, struct chat_format *format, rosa_error *err);
void chat_format_free(struct chat_format *format);

/* The tokens of a conversation, ready for the model's answer (`answer`) or not. `think` false asks Qwen3 to answer
 * without thoughts. Contents are text: special tokens in them are not recognised. But for that, equals what
 * transformers' apply_chat_template gives, with the date that the template names for today where it has one (Llama
 * 3.1 and later): the same conversation gives the same tokens on every day. */
rosa_status chat_encode(const tokenizer *tokenizer, const struct chat_format *format,
			const struct chat_message *messages, size_t count, bool answer, bool think,
			struct tokens *tokens, rosa_error *err);

/* The token that ends an answer; -1: none. */
int64_t chat_end(const tokenizer *tokenizer, const struct chat_format *format);
