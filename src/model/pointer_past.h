/* What a pointer searches: the token ids of a text so far. */
#pragma once

#include "model/pointer.h"

/* The look-up of one text, which grows. It is a function of the tokens alone, so a saved session, which has the
 * tokens, need not keep it. One belongs to one thread at a time. */
typedef struct pointer_past pointer_past;

/* Of a pointer only its kind, delay, links and whether it has a table are used, and only here. Ids are below
 * `vocabulary`; one above 2^20 is refused. */
rosa_status pointer_past_new(const struct pointer *pointer, size_t vocabulary, pointer_past **made, rosa_error *err);
void pointer_past_free(pointer_past *past); /* safe on NULL */

/* Appends tokens. found[i] (NULL: not wanted) is what the chain finds after tokens[i], for the token that follows it.
 * The result does not depend on how a text is divided into calls. On failure the past is of no further use. */
rosa_status pointer_past_add(pointer_past *past, const uint32_t *tokens, size_t count, struct pointer_links *found,
			     rosa_error *err);

/* Makes tokens[last] the last token, adding or taking back what that needs, and mixes what is found for the token after
 * it into the logits. `found` and `shares`, of pointer_shares, may be NULL. */
rosa_status pointer_past_mix(pointer_past *past, const struct pointer *pointer, const uint32_t *tokens, size_t last,
			     float *logits, struct pointer_links *found, double shares[POINTER_LINKS], rosa_error *err);

/* The class of each token of the vocabulary, as pointer_mix takes it, after the last token added; valid until tokens
 * are added or taken back. NULL: nothing has been seen, or the pointer has no table. */
const uint8_t *pointer_past_seen(const pointer_past *past);

/* Goes back to the first `steps` tokens; more than there are is an error. */
rosa_status pointer_past_rewind(pointer_past *past, size_t steps, rosa_error *err);

size_t pointer_past_steps(const pointer_past *past);
uint64_t pointer_past_bytes(const pointer_past *past); /* in use */
