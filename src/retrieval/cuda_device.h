/* A device from a table of functions that is at hand: librosatune_cuda.so's, or one of the tests'. */
#ifndef ROSATUNE_CUDA_DEVICE_H
#define ROSATUNE_CUDA_DEVICE_H

#include "retrieval/cuda/table.h"

/* As rosa_cuda_open(). `library`, closed with the device, is what dlopen() gave for the table, or NULL. */
rosa_status cuda_device_open(const struct cuda_table *table, void *library, int number, const rosa_allocator *allocator,
			     rosa_cuda **opened, rosa_error *err);

#endif
