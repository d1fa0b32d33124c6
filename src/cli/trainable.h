/* A model opened for training: what `models.h` is for reading. */
#pragma once

#include "cli/models.h"
#include "train/network.h"

struct trainable {
	struct model model; /* without a decoder */
	network *network;
};

/* Checkpoint, adapter, workers, backend and network, with room for gradients of the adapter and, with `backbone`, of
 * the rest. Attention is as the arguments and the adapter say; what else is in `options` is taken as it is. On failure
 * what is open is closed by trainable_close all the same. */
bool trainable_open(struct trainable *trainable, const struct model_args *args, const struct network_options *options,
		    bool backbone, rosa_error *why);
void trainable_close(struct trainable *trainable); /* safe on a zeroed one */
