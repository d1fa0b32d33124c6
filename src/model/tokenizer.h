/* Text to tokens and back: byte-level byte pair encoding. */
#pragma once

#include "model/gguf.h"

typedef struct tokenizer tokenizer;

/* From a Hugging Face tokenizer.json, whole in memory; `name` is the file's, for messages. */
rosa_status tokenizer_from_json(const char *text, size_t size, const char *name, tokenizer **made, rosa_error *err);
/* From the metadata of a GGUF file. */
rosa_status tokenizer_from_gguf(const struct gguf *gguf, const char *name, tokenizer **made, rosa_error *err);
/* Whichever is there: PATH is a GGUF file, a tokenizer.json, or a folder or a .safetensors file with one beside it. */
rosa_status tokenizer_open(const char *path, tokenizer **made, rosa_error *err);
/* The one that came with a model. With more tokens than the model has, it is refused. */
struct checkpoint;
rosa_status checkpoint_tokenizer(const struct checkpoint *checkpoint, tokenizer **made, rosa_error *err);
void tokenizer_free(tokenizer *tokenizer); /* safe on NULL */

/* Number of ids: one more than the greatest. */
size_t tokenizer_size(const tokenizer *tokenizer);

struct tokens {
	uint32_t *ids; /* from malloc */
	size_t count, room;
};

/* Appends the tokens of a text of less than 2 GB. Bytes that are not UTF-8 are refused, naming the place. `special`:
 * added tokens that are marked special are recognised in the text (those that are not special always are); without it
 * their characters are text like any other. Adds no begin-of-text token. Ids are those of Hugging Face's tokenizers. On
 * failure `tokens` is as it was. May be called from several threads at once. */
rosa_status tokenizer_encode(const tokenizer *tokenizer, const char *text, size_t size, bool special,
			     struct tokens *tokens, rosa_error *err);
/* A whole text of valid UTF-8 into empty `tokens`, special tokens recognised, after the token that begins every text
 * where the tokenizer has one. On failure `tokens` has nothing to free. */
rosa_status tokenizer_encode_text(const tokenizer *tokenizer, const char *text, size_t size, struct tokens *tokens,
				  rosa_error *err);
/* Room for more ids, and more ids. */
rosa_status tokens_reserve(struct tokens *tokens, size_t more, rosa_error *err);
rosa_status tokens_add(struct tokens *tokens, const uint32_t *ids, size_t count, rosa_error *err);
/* How many of the first tokens are those of `ids` too. */
size_t tokens_common(const struct tokens *tokens, const uint32_t *ids, size_t count);
void tokens_free(struct tokens *tokens); /* safe on a zeroed one */

/* The bytes of a token: what decoding appends for it, not always whole characters. Length 0 for ids that are not
 * there. */
const char *tokenizer_bytes(const tokenizer *tokenizer, uint32_t id, size_t *length);
bool tokenizer_is_special(const tokenizer *tokenizer, uint32_t id);
/* The id of a token by its content, e.g. "<|im_end|>"; -1 if there is none. */
int64_t tokenizer_find(const tokenizer *tokenizer, const char *content);
/* The text's first token where the tokenizer adds one by itself (Llama 3); -1: it adds none. */
int64_t tokenizer_bos(const tokenizer *tokenizer);
/* The chat template that came with the tokenizer (tokenizer_config.json, chat_template.jinja or GGUF), or NULL. */
const char *tokenizer_template(const tokenizer *tokenizer);

/* Bytes that make no whole character yet. A zeroed one is a beginning. */
struct decoding {
	char held[4];
	size_t count;
};

/* Decodes one more token into `out` (room for at least tokenizer_longest bytes), whole characters only; what cannot
 * become one any more is written as U+FFFD. Special tokens become text only if `special`. Returns the number of bytes.
 * `finish` writes what is left at the end. */
size_t decode_token(const tokenizer *tokenizer, struct decoding *decoding, uint32_t id, bool special, char *out);
size_t decode_finish(struct decoding *decoding, char *out);
/* The most bytes that either of them writes: a bad byte becomes three. */
size_t tokenizer_longest(const tokenizer *tokenizer);
