/* What a tokenizer is made of, for the files that make one. */
#pragma once

#include "model/bpe.h"
#include "model/pretokenize.h"
#include "model/tokenizer_added.h"

struct tokenizer {
	struct bpe bpe;
	struct pretokenizer pretokenizer;
	bool byte_level;                     /* cut into bytes at last, as everything here is */
	bool nfc;                            /* texts are brought into normal form C */
	struct added_tokens raw, normalized; /* found in the text before and after that */
	int64_t bos;                         /* -1: none is added */
	char *template;                      /* of conversations; NULL: none */
};

/* An empty one. */
rosa_status tokenizer_new(tokenizer **made, rosa_error *err);

/* A token that is recognised in texts: in those as they are, or in their normal form. */
rosa_status tokenizer_add(tokenizer *tokenizer, const struct added_token *token, bool normalized, rosa_error *err);

/* After all parts are there. */
rosa_status tokenizer_finish(tokenizer *tokenizer, rosa_error *err);

rosa_status tokenizer_set_template(tokenizer *tokenizer, const char *text, size_t size, rosa_error *err);

/* Puts "NAME: " before the message of an error that does not know the file; returns `status`. */
rosa_status tokenizer_blame(rosa_status status, const char *name, rosa_error *err);
