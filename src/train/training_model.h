/* The model that a run trains, opened as its configuration says. */
#pragma once

#include "model/checkpoint.h"
#include "train/network.h"
#include "train/tune_config.h"

struct training_model {
	struct checkpoint checkpoint;
	rosa_workers *workers;
	struct backend *backend;
	network *network;
	char notice[512]; /* of adapter_notice, or empty */
};

/* With the adapter that the configuration names, or a new one. `threads` 0: one per processor. What is open after a
 * failure is closed by training_model_close. */
rosa_status training_model_open(const struct tune_config *config, int threads, struct training_model *model,
				rosa_error *err);
void training_model_close(struct training_model *model); /* safe on a zeroed one */
