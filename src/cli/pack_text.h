/* Long texts in pieces that give the same tokens. */
#ifndef ROSATUNE_PACK_TEXT_H
#define ROSATUNE_PACK_TEXT_H

#include "model/tokenizer.h"

/* A place in the second half of a text, which goes on behind what is given, where it can be cut without a change of
 * its tokens; 0: none was found, and more of the text is needed. */
size_t pack_text_cut(const tokenizer *tokenizer, const char *text, size_t size, bool special);

#endif
