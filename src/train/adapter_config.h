/* The adapter_config.json of an adapter folder, written. */
#pragma once

#include "model/adapter.h"

/* What it says besides the version. */
struct adapter_description {
	const char *model_type, *base_name; /* of the model; base_name NULL: not recorded */
	size_t width, layer_count;          /* of the model */
	const struct adapter_options *options;
	uint64_t steps;      /* of training */
	const char *digest;  /* of the tensors */
	const float *scales; /* [layer_count]: of what the layers read; NULL: all 1 */
};

void adapter_config_write(const struct adapter_description *description, struct json_text *text);
