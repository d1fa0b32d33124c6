/* How a model's makers advise to sample from it. */
#pragma once

#include "model/checkpoint.h"

/* Negative: not said. */
struct generation_config {
	double temperature; /* 0: always the likeliest token */
	double top_k;       /* 0: all */
	double top_p, min_p, repetition;
};

/* From generation_config.json beside the weights, or from a GGUF file's metadata (general.sampling.*). Where there is
 * neither, nothing is said. A value out of range is refused by name. */
rosa_status generation_config_read(const struct checkpoint *checkpoint, struct generation_config *config,
				   rosa_error *err);
