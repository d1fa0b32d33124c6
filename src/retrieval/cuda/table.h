/*
 * What librosatune_cuda.so offers to the library: a table of functions, found by one name.
 *
 * The library is built without CUDA and loads that file when it is asked for a device (retrieval/cuda_device.c), so one
 * build runs with and without a driver. Both sides include this header, and CUDA_TABLE_VERSION changes with it.
 * Pointers named device_ point to memory of the device. Streams are a cudaStream_t as void *.
 */
#pragma once

#include "rosatune.h"

#include "retrieval/cuda/plan.h"

#define CUDA_TABLE_VERSION 3
#define CUDA_TABLE_NAME    "rosatune_cuda_table"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_device;

/* What a search leaves to its caller. `given_up` belongs to the device and is valid until its next search. */
struct cuda_outcome {
	const uint8_t *given_up;     /* [routes], nonzero: the results of this route are worthless */
	uint64_t bad_query, bad_key; /* the first symbol out of range, counted over all routes; UINT64_MAX: none */
	float milliseconds;          /* between the beginning and the end of the search on the device */
};

struct cuda_table {
	unsigned version;
	rosa_status (*open)(int number, struct cuda_device **device, rosa_error *err);
	void (*close)(struct cuda_device *device);
	const char *(*name)(const struct cuda_device *device);
	size_t (*free_bytes)(struct cuda_device *device);
	/* Memory. Copies go in any direction and have been done when they return; `copy_rows` copies `rows` rows of
	 * `size` bytes that begin `to_pitch` and `from_pitch` bytes after each other. */
	rosa_status (*allocate)(struct cuda_device *device, size_t size, void **device_memory, rosa_error *err);
	void (*release)(struct cuda_device *device, void *device_memory);
	rosa_status (*copy)(struct cuda_device *device, void *to, const void *from, size_t size, void *stream,
			    rosa_error *err);
	rosa_status (*copy_rows)(struct cuda_device *device, void *to, size_t to_pitch, const void *from,
				 size_t from_pitch, size_t size, size_t rows, void *stream, rosa_error *err);
	/* Search all routes of a batch: the plan's rules, sizes and device pointers have been filled in. Waits for the
	 * end. */
	rosa_status (*search)(struct cuda_device *device, struct search_plan *plan, void *stream,
			      struct cuda_outcome *outcome, rosa_error *err);
	/* The same without waiting, in memory of the caller's: *bytes becomes what the search needs, and where that is
	 * there, it is queued. */
	rosa_status (*queue)(struct cuda_device *device, struct search_plan *plan, void *memory, size_t *bytes,
			     void *stream, rosa_error *err);
	/* A call of a stream: the clock starts, steps are taken, then answered (search_template.h). The plan has been
	 * laid out when it is given to `take`. `serve` alone waits; before it nothing but memory may be asked of the
	 * device. */
	rosa_status (*start)(struct cuda_device *device, struct search_plan *plan, void *stream, rosa_error *err);
	rosa_status (*take)(struct cuda_device *device, const struct search_plan *plan, void *stream, rosa_error *err);
	rosa_status (*serve)(struct cuda_device *device, const struct search_plan *plan, void *stream,
			     struct cuda_outcome *outcome, rosa_error *err);
};

typedef const struct cuda_table *cuda_table_get(void);

#ifdef __cplusplus
}
#endif
