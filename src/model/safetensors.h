/* safetensors files. */
#pragma once

#include "model/json.h"
#include "model/tensors.h"

struct safetensors {
	struct tensors tensors;
	struct json header;
};

/* Reads a file that lies in memory, as gguf_read does. F32, F16 and BF16 are read; a file with a tensor of another type
 * is refused, naming both. *file is zeroed if this fails. */
rosa_status safetensors_read(const uint8_t *data, size_t size, const char *name, struct safetensors *file,
			     rosa_error *err);
void safetensors_free(struct safetensors *file); /* safe on a zeroed one */

/* NULL if there is no such entry. */
const char *safetensors_metadata(const struct safetensors *file, const char *name);
