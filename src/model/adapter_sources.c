/* The sources of an adapter, read from text and written as text. */
#include "model/adapter_sources.h"

#include "base/words.h"

#include <stdio.h>
#include <string.h>

#define LAYERS_MOST 65536

static const char *const names[] = {
    [SOURCE_OWN] = "own", [SOURCE_TOKENS] = "tokens", [SOURCE_EMBEDDINGS] = "embeddings", [SOURCE_LAYER] = "layer"};

void sources_text(const struct adapter_sources *sources, char text[SOURCE_TEXT])
{
	size_t used = 0;

	*text = '\0';
	for (size_t i = 0; i < sources->count && used < SOURCE_TEXT; i++) {
		const struct adapter_source *source = &sources->all[i];

		used += (size_t)snprintf(text + used, SOURCE_TEXT - used, "%s%s", i ? "+" : "", names[source->kind]);
		if (source->kind == SOURCE_LAYER && used < SOURCE_TEXT)
			used += (size_t)snprintf(text + used, SOURCE_TEXT - used, " %u", source->layer);
	}
}

/* One source from the text between two plus signs. */
static bool parse(const char *text, size_t length, struct adapter_source *source)
{
	const size_t prefix = strlen("layer ");
	char word[SOURCE_TEXT];
	uint64_t number;

	if (length >= sizeof(word))
		return false;
	memcpy(word, text, length);
	word[length] = '\0';
	for (int kind = SOURCE_OWN; kind < SOURCE_LAYER; kind++) {
		if (strcmp(word, names[kind]) == 0) {
			*source = (struct adapter_source){(enum source_kind)kind, 0};
			return true;
		}
	}
	if (strncmp(word, "layer ", prefix) != 0 || !words_number(word + prefix, false, &number) ||
	    number >= LAYERS_MOST)
		return false;
	*source = (struct adapter_source){SOURCE_LAYER, (uint32_t)number};
	return true;
}

static rosa_status set_sources(void *target, const char *text, const struct key_place *place, rosa_error *err)
{
	struct adapter_sources sources = {.count = 0};

	for (const char *at = text;; at++) {
		const size_t length = strcspn(at, "+");
		struct adapter_source *source = &sources.all[sources.count];

		if (sources.count == SOURCES_MOST)
			return keys_refuse(place, err, "is %.60s; a layer has up to %d sources", text, SOURCES_MOST);
		if (!parse(at, length, source))
			return keys_refuse(place, err,
					   "is %.60s; choose from: own, tokens, embeddings, layer N; several are "
					   "joined by +, as in tokens+embeddings",
					   text);
		for (size_t i = 0; i < sources.count; i++)
			if (sources.all[i].kind == source->kind && sources.all[i].layer == source->layer)
				return keys_refuse(place, err, "is %.60s; name each source once", text);
		sources.count++;
		at += length;
		if (!*at)
			break;
	}
	*(struct adapter_sources *)target = sources;
	return ROSA_OK;
}

static rosa_status read_sources(void *target, struct json value, const struct key_place *place, rosa_error *err)
{
	const char *text;

	if (json_kind(value) != JSON_IS_STRING)
		return keys_refuse(place, err, "must be a string, as \"tokens\" or \"tokens+layer 3\"");
	if (json_as_string(value, &text, err) != ROSA_OK)
		return ROSA_EFORMAT;
	return set_sources(target, text, place, err);
}

static void write_sources(const void *target, struct json_text *text)
{
	char words[SOURCE_TEXT];

	sources_text(target, words);
	json_text_string(text, words);
}

static void free_sources(void *target)
{
	(void)target;
}

const struct key_custom source_key = {set_sources, read_sources, write_sources, free_sources, "source", "tokens"};
