/* The layers that have an adapter, read from text and written as text. */
#include "model/adapter_layers.h"

#include "base/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool layers_empty(const struct adapter_layers *layers)
{
	uint64_t any = !layers->named;

	for (size_t i = 0; i < ADAPTED_MOST / 64; i++)
		any |= layers->bits[i];
	return !any;
}

bool layers_have(const struct adapter_layers *layers, size_t layer)
{
	return !layers->named || (layer < ADAPTED_MOST && layers->bits[layer / 64] >> layer % 64 & 1);
}

void layers_add(struct adapter_layers *layers, size_t layer)
{
	layers->named = true;
	if (layer < ADAPTED_MOST)
		layers->bits[layer / 64] |= (uint64_t)1 << layer % 64;
}

static rosa_status add_new(struct adapter_layers *layers, uint64_t layer, const struct key_place *place,
			   rosa_error *err)
{
	if (layer >= ADAPTED_MOST)
		return keys_refuse(place, err, "names layer %llu; layers with an adapter are below %d",
				   (unsigned long long)layer, ADAPTED_MOST);
	if (layers->named && layers_have(layers, layer))
		return keys_refuse(place, err, "names layer %llu twice", (unsigned long long)layer);
	layers_add(layers, layer);
	return ROSA_OK;
}

static rosa_status refuse_text(const char *text, const struct key_place *place, rosa_error *err)
{
	return keys_refuse(place, err, "is %.60s; give all, or numbers of layers such as 0,3,6", text);
}

static rosa_status set_layers(void *target, const char *text, const struct key_place *place, rosa_error *err)
{
	const bool all = strcmp(text, "all") == 0;
	struct adapter_layers layers = {.named = !all};
	rosa_status status = ROSA_OK;

	for (const char *at = text; !all && status == ROSA_OK; at++) {
		const size_t length = strcspn(at, ",");
		char word[16];
		uint64_t layer;

		snprintf(word, sizeof(word), "%.*s", length < sizeof(word) ? (int)length : 0, at);
		if (!words_number(word, false, &layer))
			return refuse_text(text, place, err);
		status = add_new(&layers, layer, place, err);
		at += length;
		if (!*at)
			break;
	}
	if (status == ROSA_OK)
		*(struct adapter_layers *)target = layers;
	return status;
}

static rosa_status read_layers(void *target, struct json value, const struct key_place *place, rosa_error *err)
{
	struct adapter_layers layers = {.named = true};
	const char *text;
	rosa_status status = ROSA_OK;

	if (json_kind(value) == JSON_IS_STRING && json_as_string(value, &text, err) == ROSA_OK)
		return strcmp(text, "all") == 0 ? set_layers(target, text, place, err) : refuse_text(text, place, err);
	if (json_kind(value) != JSON_IS_ARRAY)
		return keys_refuse(place, err, "must be \"all\", or a list of layers such as [0, 3, 6]");
	for (size_t i = 0; i < json_count(value) && status == ROSA_OK; i++) {
		double number = -1;

		if (json_as_number(json_at(value, i), &number, err) != ROSA_OK || number < 0 || number > KEY_EXACT ||
		    number != floor(number))
			return keys_refuse(place, err, "has an entry that is no number of a layer");
		status = add_new(&layers, (uint64_t)number, place, err);
	}
	if (status == ROSA_OK)
		*(struct adapter_layers *)target = layers;
	return status;
}

static void write_layers(const void *target, struct json_text *text)
{
	const struct adapter_layers *layers = target;
	const char *between = "";

	if (!layers->named) {
		json_text_string(text, "all");
		return;
	}
	json_text_add(text, "[");
	for (size_t i = 0; i < ADAPTED_MOST; i++) {
		if (!layers_have(layers, i))
			continue;
		json_text_add(text, "%s%zu", between, i);
		between = ", ";
	}
	json_text_add(text, "]");
}

static void free_layers(void *target)
{
	(void)target;
}

const struct key_custom layers_key = {set_layers, read_layers, write_layers, free_layers, "layers", "all"};
