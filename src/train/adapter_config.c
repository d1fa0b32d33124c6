/* The adapter_config.json of an adapter folder, written as adapter.c and the Python package read it. */
#include "train/adapter_config.h"

#include <inttypes.h>

#define FORMAT 2

void adapter_config_write(const struct adapter_description *d, struct json_text *text)
{
	struct adapter_options options = *d->options;

	options.layers = (struct adapter_layers){.named = true}; /* also where they were not named */
	for (size_t i = 0; i < d->layer_count; i++)
		if (adapter_covers(d->options, i))
			layers_add(&options.layers, i);
	json_text_add(text, "{\n  \"format\": %d,\n  \"rosatune_version\": \"%s\",\n", FORMAT, rosa_version());
	json_text_add(text, "  \"base_model_name_or_path\": ");
	json_text_string(text, d->base_name);
	json_text_add(text,
		      ",\n  \"base_model\": {\n    \"model_type\": \"%s\",\n    \"hidden_size\": %zu,\n"
		      "    \"num_hidden_layers\": %zu\n  },\n  \"steps\": %" PRIu64 ",\n  \"options\": {",
		      d->model_type, d->width, d->layer_count, d->steps);
	keys_write(&adapter_option_keys, &options, 0, "    ", text);
	json_text_add(text, "\n  },\n  \"scales\": [");
	for (size_t i = 0; i < d->layer_count; i++) {
		json_text_key(text, NULL);
		json_text_float(text, d->scales ? d->scales[i] : 1);
	}
	json_text_add(text, "],\n  \"tensors\": \"%s\"\n}\n", d->digest);
}
