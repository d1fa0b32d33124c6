/* The places of the text that were read to choose each token of an answer. */
#pragma once

#include "base/json_text.h"
#include "model/decoder.h"
#include "model/pointer.h"

struct answer_place {
	size_t position; /* of a token of the text, the first being 0 */
	unsigned length; /* of the match, in tokens */
	double weight;   /* of the pointer: its share of the probability; of the adapter: the mean gain of its layers */
	bool by_pointer; /* else by the adapter */
	bool hit;        /* the token there is the one that was chosen */
};

struct answer_token {
	uint32_t id;
	size_t position, offset; /* in the text in tokens; in the answer in characters */
	size_t first;            /* index of its first place; its places end at the `first` of the next token */
};

/* A zeroed one is empty. */
struct answer_places {
	struct answer_token *tokens;
	size_t count, room;
	struct answer_place *all;
	size_t place_count, place_room;
};

/* What one step found, before it is known which token is chosen. */
struct step_places {
	struct pointer_links found; /* count 0: nothing, or no pointer */
	double shares[POINTER_LINKS];
	struct token_place read[TOKEN_PLACES];
	size_t reads;
};

/* Appends the token that was chosen at a step. `ids` is the whole text, which ends with it. */
rosa_status answer_places_add(struct answer_places *places, const struct step_places *step, const uint32_t *ids,
			      size_t count, size_t offset, rosa_error *err);
/* The tokens from number `from` on as a JSON array. */
void answer_places_put(const struct answer_places *places, size_t from, struct json_text *text);
void answer_places_free(struct answer_places *places); /* safe on a zeroed one */
