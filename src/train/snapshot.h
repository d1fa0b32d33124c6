/* What a checkpoint holds of a network: the adapter, the backbone if it is trained, and the optimiser's moments. */
#pragma once

#include "train/network.h"
#include "train/run_folder.h"

/* The files, with the names that other programs expect. The first two are an adapter folder, as the Python
 * package writes and reads it; the next two a model folder of Hugging Face. */
#define SNAPSHOT_ADAPTER_CONFIG "adapter_config.json"
#define SNAPSHOT_ADAPTER        "adapter_model.safetensors"
#define SNAPSHOT_MODEL_CONFIG   "config.json"
#define SNAPSHOT_MODEL          "model.safetensors"
#define SNAPSHOT_TOKENIZER      "tokenizer.gguf" /* of a model that came from a GGUF file */
#define SNAPSHOT_MOMENTS        "optimizer.safetensors"

struct snapshot {
	struct parameters *parameters;
	const struct model_config *config;
	const struct network_options *options;
	const float *scales;            /* of the adapters, [layers] */
	bool backbone;                  /* it has been trained, and is saved too */
	const struct checkpoint *model; /* whose tokenizer is saved beside the backbone; NULL: none is */
};

rosa_status snapshot_write(const struct snapshot *snapshot, struct checkpoint_writer *writer, rosa_error *err);

/* Reads the values of all files that are there. They must include every parameter of the adapter. */
rosa_status snapshot_read_values(const struct checkpoint_found *found, struct parameters *parameters, rosa_error *err);
/* Reads the scales of the adapters, [layers]; 1 where there is no adapter. */
rosa_status snapshot_read_scales(const struct checkpoint_found *found, size_t layers, float *scales, rosa_error *err);
/* Reads the moments of the parameters that are trained. */
rosa_status snapshot_read_moments(const struct checkpoint_found *found, struct parameters *parameters, rosa_error *err);
