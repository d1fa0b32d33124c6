/* An adapter folder, as the Python package writes it: adapter_config.json and adapter_model.safetensors. */
#ifndef ROSATUNE_ADAPTER_H
#define ROSATUNE_ADAPTER_H

#include "model/checkpoint.h"

struct adapter_layer {
	/* Projections are [out][in], as PyTorch has them; q == k where they are shared. All NULL: no adapter here. */
	const struct tensor *q, *k, *v, *out, *e0, *e1;
	const struct tensor *a0; /* pre fusion, else NULL */
};

struct adapter {
	char *path;
	int bits;
	rosa_fusion fusion;
	rosa_policy policy;
	bool fold;
	uint32_t max_match;           /* 0: no cut */
	size_t window, sinks;         /* of the attention it was trained with */
	size_t first_global_layers;   /* layers at the front that are global and have no adapter */
	struct adapter_layer *layers; /* [checkpoint's layers] */
	size_t layer_count;
	uint64_t parameters;

	struct safetensors file;
	struct mapping mapping;
	char *tensors_path;
};

/* Opens an adapter for a model; one that was made for another shape is refused, naming file and field. */
rosa_status adapter_open(const char *path, const struct checkpoint *checkpoint, struct adapter *adapter,
			 rosa_error *err);
void adapter_close(struct adapter *adapter); /* safe on a zeroed one */

#endif
