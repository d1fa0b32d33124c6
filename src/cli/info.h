/* What `rosatune info` prints, as text or as JSON. */
#pragma once

#include "model/adapter.h"

#define INFO_CONTEXTS 16

/* Tensors of one format. */
struct info_format {
	size_t tensors;
	uint64_t numbers, bytes;
};

/* An adapter that is there, or one that could be. */
struct info_adapter {
	bool there;
	struct adapter_options options;
	size_t layers;
	uint64_t parameters, bytes;
	double index, values; /* bytes per token, in all layers */
	double index_fixed;   /* bytes of the index of an empty text */
	double keys;          /* bytes of the keys of the seen-token head, at most */
};

/* Bytes needed to read a text in one of the ways. In double, since the sizes of a hostile file may overflow integers.
 */
struct info_memory {
	double weights, cache, adapter, index, values;
};

enum info_way { INFO_GLOBAL, INFO_WINDOW, INFO_ROSA };
#define INFO_WAYS 3

struct info {
	const struct checkpoint *checkpoint;
	const struct adapter *adapter; /* NULL: none */
	uint64_t parameters, bytes;
	struct info_format formats[FORMAT_COUNT];
	struct info_adapter added;
	size_t window, sinks, global_layers;
	double kv_bytes; /* per token, of the keys and values of all layers in float16 */
	size_t context_count;
	uint64_t contexts[INFO_CONTEXTS];
	struct info_memory memory[INFO_CONTEXTS][INFO_WAYS];
	bool list; /* all tensors */
};

double info_total(const struct info_memory *memory);

/* Of the activations that weights are multiplied by: 32 (float32), or 16 if some formats round them. */
int info_activation_bits(const struct info *info);

void info_print_text(const struct info *info);
bool info_print_json(const struct info *info, rosa_error *why);
