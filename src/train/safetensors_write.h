/* Writing safetensors files. */
#pragma once

#include "backend/format.h"
#include "base/file.h"

/* A tensor to be written. Its numbers come from a function of the caller's. */
struct tensor_source {
	const char *name;
	int dims;
	size_t shape[2];
	const void *from;
};

/* Copies `count` numbers of a tensor, beginning with number `first`, to `numbers`. */
typedef void (*tensor_fetch)(void *context, const struct tensor_source *tensor, size_t first, size_t count,
			     float *numbers);

/* One for float32 numbers on a backend, which is the context; `from` is their place there. */
void fetch_from_backend(void *backend, const struct tensor_source *tensor, size_t first, size_t count, float *numbers);

/* Writes a whole file: the tensors in this order, as FORMAT_F32 or FORMAT_BF16 (rounded to nearest), and metadata as
 * alternating names and values, ending with NULL. */
rosa_status safetensors_write(struct file_writer *file, const struct tensor_source *tensors, size_t count,
			      enum format format, const char *const *metadata, tensor_fetch fetch, void *context,
			      rosa_error *err);

#define SAFETENSORS_DIGEST 33

/* A checksum of the names, shapes and numbers that safetensors_write would write, as text. */
rosa_status safetensors_digest(const struct tensor_source *tensors, size_t count, enum format format,
			       tensor_fetch fetch, void *context, char text[SAFETENSORS_DIGEST], rosa_error *err);
