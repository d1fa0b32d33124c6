/* Data as the value of a key: a path, or a list of paths or of {"path": ..., "weight": ...}. */
#pragma once

#include "model/keys.h"
#include "train/dataset.h"

/* Where training data comes from. */
struct key_data {
	struct dataset_source *sources; /* paths are from malloc */
	size_t count, room;
};

/* Of a KEY_CUSTOM whose target is a struct key_data. */
extern const struct key_custom data_key;
