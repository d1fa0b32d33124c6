/* safetensors files, written. */
#ifndef ROSATUNE_SAFETENSORS_WRITE_H
#define ROSATUNE_SAFETENSORS_WRITE_H

#include "base/file.h"

/* A tensor of float32 to be written. Where its numbers come from is the caller's affair. */
struct tensor_source {
	const char *name;
	int dims;
	size_t shape[2];
	const void *from;
};

/* Copies `count` numbers of a tensor, beginning with number `first`, to `numbers`. */
typedef void (*tensor_fetch)(void *context, const struct tensor_source *tensor, size_t first, size_t count,
			     float *numbers);

/* All of a file: the tensors in this order, and metadata as names and values by turns, ending with NULL. */
rosa_status safetensors_write(struct file_writer *file, const struct tensor_source *tensors, size_t count,
			      const char *const *metadata, tensor_fetch fetch, void *context, rosa_error *err);

#endif
