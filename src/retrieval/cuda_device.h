/* An opened device, for the files that use one: cuda_device.c and cuda_stream.c. */
#pragma once

#include "retrieval/cuda/table.h"

struct rosa_cuda {
	rosa_allocator allocator;
	void *library;
	const struct cuda_table *table;
	struct cuda_device *device;
	double milliseconds; /* of the last call */
	uint64_t handed;
};

/* ROSA_ESYMBOL if a search met a symbol that was out of range. */
rosa_status cuda_check_symbols(const struct search_plan *plan, const struct cuda_outcome *outcome, rosa_error *err);

/* As rosa_cuda_open(), with a table of functions that is at hand: librosatune_cuda.so's, or one of the tests'.
 * `library`, closed with the device, is what dlopen() gave for the table, or NULL. */
rosa_status cuda_device_open(const struct cuda_table *table, void *library, int number, const rosa_allocator *allocator,
			     rosa_cuda **opened, rosa_error *err);
