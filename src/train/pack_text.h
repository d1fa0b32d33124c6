/* Long texts in pieces that give the same tokens. */
#pragma once

#include "model/tokenizer.h"

/* `text` is the beginning of a longer text. Returns a place in its second half where it can be cut without changing its
 * tokens; 0: none was found, and more of the text is needed. */
size_t pack_text_cut(const tokenizer *tokenizer, const char *text, size_t size, bool special);
