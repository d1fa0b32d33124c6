/* An adapter folder, as `rosatune tune` and the Python package write it: adapter_config.json and
 * adapter_model.safetensors. */
#pragma once

#include "model/adapter_options.h"
#include "model/checkpoint.h"

#define ADAPTER_CONFIG  "adapter_config.json"
#define ADAPTER_TENSORS "adapter_model.safetensors"

struct adapter_layer {
	/* Projections are [out][in], as PyTorch has them. All NULL: no adapter here. */
	const struct tensor *v, *out;
	const struct tensor *q, *k;       /* NULL where the layer has none; q == k where they are shared */
	const struct tensor *e0, *e1;     /* [width], or [reads][width] where the layer has several reads */
	const struct tensor *gain;        /* [rows][ADAPTER_GAINS]; NULL: none */
	const struct tensor *gate, *bias; /* [width] and [1] of the gate; NULL: none */
	const struct tensor *a0;          /* pre fusion, else NULL */
	float scale;                      /* of what is read: units of the residual stream; 1: none */
};

/* The seen-token head; all NULL: there is none. */
struct adapter_seen {
	const struct tensor *table;       /* [SEEN_COUNTS][SEEN_RANKS] */
	const struct tensor *gate;        /* [width] */
	const struct tensor *query, *key; /* [rank][width] */
};

struct adapter {
	size_t format;    /* of its configuration */
	struct path path; /* of the folder itself, also where a run was named */
	struct adapter_options options;
	char *base_name;              /* of the model it was trained with; NULL: not recorded */
	char model_type[32];          /* of that model, as its config.json says it */
	size_t width;                 /* of that model */
	size_t steps;                 /* of its training; 0: not recorded */
	struct adapter_layer *layers; /* [checkpoint's layers] */
	size_t layer_count;
	struct adapter_seen seen;
	uint64_t parameters;

	struct safetensors file;
	struct mapping mapping;
	struct path tensors_path;
};

/* Opens an adapter for a model; one that was made for another shape is refused, naming file and field. `path` is an
 * adapter folder or a run's folder (see adapter_find). checkpoint NULL: without a model, whatever the shape. */
rosa_status adapter_open(const char *path, const struct checkpoint *checkpoint, struct adapter *adapter,
			 rosa_error *err);
/* The parameters of a layer that has an adapter with these options. */
uint64_t adapter_layer_parameters(const struct adapter_options *options, size_t layer, size_t width);

void adapter_close(struct adapter *adapter); /* safe on a zeroed one */

/* Whether a layer has an adapter. */
static inline bool adapter_has(const struct adapter *adapter, size_t layer)
{
	return layer < adapter->layer_count && adapter->layers[layer].v;
}

/* Whether an adapter was, going by the names, trained with another model than the one at path `model`; if so, a
 * sentence for the user. Names are compared without folders, endings, case and punctuation, and one may continue the
 * other, so that a quantised file of the same model passes. */
bool adapter_notice(const struct adapter *adapter, const char *model, char *text, size_t size);
