/* The layers that have an adapter (option `layers`): all that can have one, or those that are named. */
#pragma once

#include "model/keys.h"

#define ADAPTED_MOST 1024 /* layers with a smaller number may be named */

struct adapter_layers {
	bool named; /* else all */
	uint64_t bits[ADAPTED_MOST / 64];
};

bool layers_empty(const struct adapter_layers *layers); /* none is named */
bool layers_have(const struct adapter_layers *layers, size_t layer);
void layers_add(struct adapter_layers *layers, size_t layer);

/* Options of this type: "all" or [0, 3, 6], on a command line 0,3,6. */
extern const struct key_custom layers_key;
