/* Places of answers, as a list that grows and as JSON. */
#include "serve/answer_places.h"

#include "base/array.h"
#include "base/status.h"

#include <stdlib.h>

rosa_status answer_places_add(struct answer_places *places, const struct step_places *step, const uint32_t *ids,
			      size_t count, size_t offset, rosa_error *err)
{
	if (!ARRAY_RESERVE(places->tokens, places->room, places->count + 1) ||
	    !ARRAY_RESERVE(places->all, places->place_room, places->place_count + step->found.count + step->reads))
		return rosa_fail(err, ROSA_ENOMEM, "not enough memory for the places of an answer");
	const uint32_t chosen = ids[count - 1];

	places->tokens[places->count++] = (struct answer_token){chosen, count - 1, offset, places->place_count};
	for (size_t i = 0; i < step->found.count; i++)
		places->all[places->place_count++] =
		    (struct answer_place){(size_t)step->found.place[i], step->found.length[i], step->shares[i], true,
					  step->found.token[i] == chosen};
	for (size_t i = 0; i < step->reads; i++)
		places->all[places->place_count++] =
		    (struct answer_place){(size_t)step->read[i].step, step->read[i].length, (double)step->read[i].gain,
					  false, ids[step->read[i].step] == chosen};
	return ROSA_OK;
}

static void put_place(const struct answer_place *place, struct json_text *text)
{
	json_text_add(text, "{\"position\": %zu, \"length\": %u, \"by\": \"%s\", \"weight\": ", place->position,
		      place->length, place->by_pointer ? "pointer" : "adapter");
	json_text_float(text, (float)place->weight);
	json_text_add(text, ", \"hit\": %s}", place->hit ? "true" : "false");
}

void answer_places_put(const struct answer_places *places, size_t from, struct json_text *text)
{
	json_text_add(text, "[");
	for (size_t i = from; i < places->count; i++) {
		const struct answer_token *token = &places->tokens[i];
		const size_t end = i + 1 < places->count ? token[1].first : places->place_count;

		json_text_add(text, "%s{\"id\": %lu, \"position\": %zu, \"offset\": %zu, \"places\": [",
			      i > from ? ", " : "", (unsigned long)token->id, token->position, token->offset);
		for (size_t j = token->first; j < end; j++) {
			json_text_add(text, "%s", j > token->first ? ", " : "");
			put_place(&places->all[j], text);
		}
		json_text_add(text, "]}");
	}
	json_text_add(text, "]");
}

void answer_places_free(struct answer_places *places)
{
	free(places->tokens);
	free(places->all);
	*places = (struct answer_places){0};
}
