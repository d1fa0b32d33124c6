/* The sources of an adapter (option `source`): which symbol streams its layers match to find what to read. */
#pragma once

#include "model/keys.h"

enum source_kind {
	SOURCE_OWN,        /* the layer's own q and k, as in the paper */
	SOURCE_TOKENS,     /* token ids */
	SOURCE_EMBEDDINGS, /* signs of a fixed random projection of token embeddings */
	SOURCE_LAYER       /* q and k of one layer, for it and the layers above */
};

#define SOURCES_MOST 4

struct adapter_source {
	enum source_kind kind;
	uint32_t layer; /* of SOURCE_LAYER, else 0 */
};

/* Whether the places of a source are a function of the tokens alone, known before the first layer. */
static inline bool source_of_tokens(const struct adapter_source *source)
{
	return source->kind == SOURCE_TOKENS || source->kind == SOURCE_EMBEDDINGS;
}

struct adapter_sources {
	size_t count; /* 1 to SOURCES_MOST, no two of them the same */
	struct adapter_source all[SOURCES_MOST];
};

#define SOURCE_TEXT 64 /* bytes of "layer 65535+layer 65534+..." and its end */

/* "tokens", "layer 3", "tokens+embeddings" */
void sources_text(const struct adapter_sources *sources, char text[SOURCE_TEXT]);

/* Options of this type. */
extern const struct key_custom source_key;
