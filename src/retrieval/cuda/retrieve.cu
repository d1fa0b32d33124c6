/*
 * Retrieval on a CUDA device: the kernel, its memory, and the table of functions by which the library reaches them.
 *
 * A team (team.h) is a block, and it takes one route after the other, so the memory that is needed is that of the
 * blocks that run at the same time, not that of all routes. Streams of up to 16,384 steps have the highest rung of
 * their index in shared memory, with four blocks on a multiprocessor: 512 routes are then searched all at once by the
 * 132 multiprocessors of an H200. Longer ones use more of it, and from some 37,000 steps on the index lies in device
 * memory.
 *
 * A block has as many threads as a chunk has steps. Where routes are so few that they would leave multiprocessors idle,
 * threads and chunks are two or four times as many: a search waits for memory most of the time.
 *
 * A call of a stream is two kernels, each with a block per route, for all of a route's memory is its own.
 */
#include "retrieval/cuda/search.h"
#include "retrieval/cuda/table.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_THREADS SEARCH_CHUNK /* of a block, which is a team */
#define MOST_THREADS  1024         /* where there are few routes; registers must be left for so many */
#define SPARE_BYTES   ((size_t)64 << 20)

/* What teams report, on the device and, after the search, in pinned memory. */
struct outcome {
	unsigned long long bad_query, bad_key;
	uint8_t given_up[8]; /* and more: [routes] */
};

#define OUTCOME_BYTES(plan) (offsetof(struct outcome, given_up) + (plan)->routes)

struct cuda_device {
	int number;
	int processors;
	size_t shared_bytes; /* that a block may have */
	char *memory;        /* of the teams */
	size_t memory_bytes;
	struct outcome *outcome, *device_outcome;
	size_t routes; /* that the outcomes have room for */
	cudaEvent_t begin, end;
	struct cudaDeviceProp properties;
};

/* ---- the kernel ---- */

template <bool narrow>
__global__ void __launch_bounds__(MOST_THREADS)
    search_routes(const __grid_constant__ struct search_plan plan, char *memory, bool use_near)
{
	extern __shared__ char near[] __attribute__((aligned(128)));
	__shared__ struct team_board board;
	const struct team team = {threadIdx.x, blockDim.x, threadIdx.x / 32, blockDim.x / 32, threadIdx.x % 32, &board};

	memory += blockIdx.x * plan.bytes;
	for (size_t r = blockIdx.x; r < plan.routes; r += gridDim.x) {
		if (narrow)
			search16_search(&plan, &team, r, memory, use_near ? near : NULL);
		else
			search32_search(&plan, &team, r, memory, use_near ? near : NULL);
	}
}

__global__ void __launch_bounds__(MOST_THREADS) take_routes(const __grid_constant__ struct search_plan plan)
{
	__shared__ struct team_board board;
	const struct team team = {threadIdx.x, blockDim.x, threadIdx.x / 32, blockDim.x / 32, threadIdx.x % 32, &board};

	search_take(&plan, &team, blockIdx.x);
}

__global__ void __launch_bounds__(MOST_THREADS) serve_routes(const __grid_constant__ struct search_plan plan)
{
	__shared__ struct team_board board;
	const struct team team = {threadIdx.x, blockDim.x, threadIdx.x / 32, blockDim.x / 32, threadIdx.x % 32, &board};

	search_serve(&plan, &team, blockIdx.x);
}

/* ---- failures ---- */

static rosa_status fail(rosa_error *err, rosa_status status, const char *what, cudaError_t error)
{
	if (err) {
		err->status = status;
		snprintf(err->message, sizeof(err->message), "CUDA: %s: %s", what, cudaGetErrorString(error));
	}
	cudaGetLastError(); /* forget it, unless it is one that stays */
	return status;
}

static rosa_status check(rosa_error *err, const char *what, cudaError_t error)
{
	if (error == cudaSuccess)
		return ROSA_OK;
	return fail(err, error == cudaErrorMemoryAllocation ? ROSA_ENOMEM : ROSA_EDEVICE, what, error);
}

/* The caller's current device is given back to it after each call. */
struct selected {
	int before;
	rosa_status status;

	selected(const struct cuda_device *device, rosa_error *err)
	{
		cudaGetDevice(&before);
		status = check(err, "choosing the device", cudaSetDevice(device->number));
	}
	~selected()
	{
		cudaSetDevice(before);
	}
};

/* ---- the table ---- */

static void device_close(struct cuda_device *device)
{
	if (!device)
		return;
	struct selected selected(device, NULL);

	cudaFree(device->memory);
	cudaFree(device->device_outcome);
	cudaFreeHost(device->outcome);
	if (device->begin)
		cudaEventDestroy(device->begin);
	if (device->end)
		cudaEventDestroy(device->end);
	free(device);
}

static rosa_status device_open(int number, struct cuda_device **opened, rosa_error *err)
{
	struct cuda_device *device;
	int count = 0, shared = 0;
	cudaError_t error = cudaGetDeviceCount(&count);
	rosa_status status;

	*opened = NULL;
	if (error == cudaErrorInsufficientDriver || (error == cudaSuccess && count == 0))
		error = cudaErrorNoDevice;
	if (error != cudaSuccess)
		return fail(err, ROSA_EDEVICE, "no device can be used; install NVIDIA's driver, or retrieve on the CPU",
			    error);
	if (number < 0 || number >= count) {
		if (err) {
			err->status = ROSA_EINVAL;
			snprintf(err->message, sizeof(err->message), "CUDA device %d; there are %d, counted from 0",
				 number, count);
		}
		return ROSA_EINVAL;
	}
	device = (struct cuda_device *)calloc(1, sizeof(*device));
	if (!device)
		return fail(err, ROSA_ENOMEM, "the device's state", cudaErrorMemoryAllocation);
	device->number = number;
	struct selected selected(device, err);

	status = selected.status;
	if (!status)
		status = check(err, "asking for the device's properties",
			       cudaGetDeviceProperties(&device->properties, number));
	if (!status)
		status = check(err, "asking for shared memory",
			       cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number));
	if (!status)
		status = check(err, "making an event", cudaEventCreate(&device->begin));
	if (!status)
		status = check(err, "making an event", cudaEventCreate(&device->end));
	if (status) {
		device_close(device);
		return status;
	}
	device->processors = device->properties.multiProcessorCount;
	device->shared_bytes = (size_t)shared;
	*opened = device;
	return ROSA_OK;
}

static const char *device_name(const struct cuda_device *device)
{
	return device->properties.name;
}

static size_t device_free_bytes(struct cuda_device *device)
{
	struct selected selected(device, NULL);
	size_t free_bytes = 0, total;

	cudaMemGetInfo(&free_bytes, &total);
	return free_bytes;
}

static rosa_status device_allocate(struct cuda_device *device, size_t size, void **memory, rosa_error *err)
{
	struct selected selected(device, err);
	char what[128];

	*memory = NULL;
	snprintf(what, sizeof(what), "%zu MiB of device memory; retrieve fewer routes at a time, or on the CPU",
		 (size >> 20) + 1);
	return selected.status ? selected.status : check(err, what, cudaMalloc(memory, size));
}

static void device_release(struct cuda_device *device, void *memory)
{
	struct selected selected(device, NULL);

	cudaFree(memory);
}

static rosa_status device_copy(struct cuda_device *device, void *to, const void *from, size_t size, void *stream,
			       rosa_error *err)
{
	struct selected selected(device, err);
	rosa_status status = selected.status;

	if (!status)
		status =
		    check(err, "copying", cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, (cudaStream_t)stream));
	return status ? status : check(err, "copying", cudaStreamSynchronize((cudaStream_t)stream));
}

static rosa_status device_copy_rows(struct cuda_device *device, void *to, size_t to_pitch, const void *from,
				    size_t from_pitch, size_t size, size_t rows, void *stream, rosa_error *err)
{
	struct selected selected(device, err);
	rosa_status status = selected.status;

	if (!status)
		status = check(err, "copying rows",
			       cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, size, rows, cudaMemcpyDefault,
						 (cudaStream_t)stream));
	return status ? status : check(err, "copying rows", cudaStreamSynchronize((cudaStream_t)stream));
}

/* Room for the outcomes of that many routes, on both sides. */
static rosa_status reserve_outcome(struct cuda_device *device, size_t routes, rosa_error *err)
{
	rosa_status status;

	if (device->routes >= routes)
		return ROSA_OK;
	cudaFree(device->device_outcome);
	cudaFreeHost(device->outcome);
	device->device_outcome = NULL;
	device->outcome = NULL;
	device->routes = 0;
	status = check(err, "memory for the outcome",
		       cudaMalloc((void **)&device->device_outcome, sizeof(struct outcome) + routes));
	if (!status)
		status = check(err, "pinned memory for the outcome",
			       cudaMallocHost((void **)&device->outcome, sizeof(struct outcome) + routes));
	if (!status)
		device->routes = routes;
	return status;
}

/* Memory for up to *blocks teams; fewer where there is not enough. */
static rosa_status reserve_memory(struct cuda_device *device, const struct search_plan *plan, int *blocks,
				  rosa_error *err)
{
	size_t free_bytes, total, most;
	rosa_status status;
	char what[128];

	if (device->memory_bytes >= plan->bytes * (size_t)*blocks)
		return ROSA_OK;
	cudaFree(device->memory);
	device->memory = NULL;
	device->memory_bytes = 0;
	status = check(err, "asking for free memory", cudaMemGetInfo(&free_bytes, &total));
	if (status)
		return status;
	most = free_bytes > SPARE_BYTES ? (free_bytes - SPARE_BYTES) / plan->bytes : 0;
	if (most < 1)
		most = 1;
	if ((size_t)*blocks > most)
		*blocks = (int)most;
	snprintf(what, sizeof(what), "%zu MiB of device memory for a route of %zu steps; retrieve on the CPU",
		 (plan->bytes >> 20) + 1, plan->steps);
	status = check(err, what, cudaMalloc((void **)&device->memory, plan->bytes * (size_t)*blocks));
	if (!status)
		device->memory_bytes = plan->bytes * (size_t)*blocks;
	return status;
}

/* A search begins: the clock, and outcomes that say nothing yet. */
static rosa_status begin(struct cuda_device *device, struct search_plan *plan, cudaStream_t queue, rosa_error *err)
{
	const rosa_status status = reserve_outcome(device, plan->routes, err);

	if (status)
		return status;
	plan->given_up = device->device_outcome->given_up;
	plan->bad_query = &device->device_outcome->bad_query;
	plan->bad_key = &device->device_outcome->bad_key;
	cudaEventRecord(device->begin, queue);
	return check(err, "the outcome", cudaMemsetAsync(device->device_outcome, 0xff, OUTCOME_BYTES(plan), queue));
}

/* Its kernels have been started: wait for them. */
static rosa_status end(struct cuda_device *device, const struct search_plan *plan, cudaStream_t queue,
		       struct cuda_outcome *outcome, rosa_error *err)
{
	rosa_status status = check(err, "starting the search", cudaGetLastError());

	cudaEventRecord(device->end, queue);
	if (!status)
		status = check(err, "the outcome",
			       cudaMemcpyAsync(device->outcome, device->device_outcome, OUTCOME_BYTES(plan),
					       cudaMemcpyDeviceToHost, queue));
	if (!status)
		status = check(err, "searching", cudaStreamSynchronize(queue));
	if (status)
		return status;
	outcome->given_up = device->outcome->given_up;
	outcome->bad_query = device->outcome->bad_query;
	outcome->bad_key = device->outcome->bad_key;
	cudaEventElapsedTime(&outcome->milliseconds, device->begin, device->end);
	return ROSA_OK;
}

/* Choose how many threads a block has, and how many blocks run at once: the largest that leave no route waiting, else
 * small ones. A search waits for memory most of the time, so what few routes leave idle goes into larger teams. */
static rosa_status choose_blocks(const struct cuda_device *device, const void *kernel, size_t near_bytes, size_t routes,
				 int *threads, int *blocks, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (*threads = MOST_THREADS; !status; *threads /= 2) {
		int on_processor = 0;

		status =
		    check(err, "asking how many blocks run at once",
			  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&on_processor, kernel, *threads, near_bytes));
		*blocks = (on_processor > 0 ? on_processor : 1) * device->processors;
		if ((size_t)*blocks >= routes || *threads <= LEAST_THREADS)
			break;
	}
	if ((size_t)*blocks > routes)
		*blocks = (int)routes;
	return status;
}

/* How the search of a batch is started. */
struct start {
	void (*kernel)(const struct search_plan, char *, bool);
	int threads, blocks;
	size_t near_bytes;

	void queue(const struct search_plan *plan, char *memory, cudaStream_t stream) const
	{
		kernel<<<(unsigned)blocks, (unsigned)threads, near_bytes, stream>>>(*plan, memory, near_bytes != 0);
	}
};

/* Lay out the memory of a batch and choose the blocks that search it. */
static rosa_status arrange(const struct cuda_device *device, struct search_plan *plan, struct start *start,
			   rosa_error *err)
{
	rosa_status status;

	plan->narrow = plan->steps < 65536;
	plan_lay_out(plan);
	start->kernel = plan->narrow ? search_routes<true> : search_routes<false>;
	start->near_bytes = plan->index_bytes + 4096 <= device->shared_bytes ? plan->index_bytes : 0;
	status = check(
	    err, "reserving shared memory",
	    cudaFuncSetAttribute(start->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)start->near_bytes));
	if (!status)
		status = choose_blocks(device, (const void *)start->kernel, start->near_bytes, plan->routes,
				       &start->threads, &start->blocks, err);
	return status;
}

static rosa_status device_search(struct cuda_device *device, struct search_plan *plan, void *stream,
				 struct cuda_outcome *outcome, rosa_error *err)
{
	const cudaStream_t queue = (cudaStream_t)stream;
	struct selected selected(device, err);
	rosa_status status = selected.status;
	struct start start;

	if (!status)
		status = arrange(device, plan, &start, err);
	if (!status)
		status = reserve_memory(device, plan, &start.blocks, err);
	if (!status)
		status = begin(device, plan, queue, err);
	if (status)
		return status;
	start.queue(plan, device->memory, queue);
	return end(device, plan, queue, outcome, err);
}

static rosa_status device_queue(struct cuda_device *device, struct search_plan *plan, void *memory, size_t *bytes,
				void *stream, rosa_error *err)
{
	const size_t given = memory ? *bytes : 0;
	struct selected selected(device, err);
	rosa_status status = selected.status;
	struct outcome *outcome;
	struct start start;
	size_t teams;

	if (!status)
		status = arrange(device, plan, &start, err);
	if (status)
		return status;
	teams = plan->bytes * (size_t)start.blocks;
	*bytes = teams + OUTCOME_BYTES(plan);
	if (given < *bytes)
		return ROSA_OK;
	outcome = (struct outcome *)((char *)memory + teams);
	plan->given_up = outcome->given_up;
	plan->bad_query = &outcome->bad_query;
	plan->bad_key = &outcome->bad_key;
	start.queue(plan, (char *)memory, (cudaStream_t)stream);
	return check(err, "starting the search", cudaGetLastError());
}

static rosa_status device_start(struct cuda_device *device, struct search_plan *plan, void *stream, rosa_error *err)
{
	struct selected selected(device, err);

	return selected.status ? selected.status : begin(device, plan, (cudaStream_t)stream, err);
}

/* Threads of a team that works on some steps of a stream; single steps need few. */
static rosa_status choose_threads(const struct cuda_device *device, const void *kernel, const struct search_plan *plan,
				  int *threads, rosa_error *err)
{
	int blocks;

	return plan->steps > LEAST_THREADS ? choose_blocks(device, kernel, 0, plan->routes, threads, &blocks, err)
					   : ROSA_OK;
}

static rosa_status device_take(struct cuda_device *device, const struct search_plan *plan, void *stream,
			       rosa_error *err)
{
	struct selected selected(device, err);
	rosa_status status = selected.status;
	int threads = LEAST_THREADS;

	if (!status)
		status = choose_threads(device, (const void *)take_routes, plan, &threads, err);
	if (status)
		return status;
	take_routes<<<(unsigned)plan->routes, (unsigned)threads, 0, (cudaStream_t)stream>>>(*plan);
	return check(err, "taking the steps", cudaGetLastError());
}

static rosa_status device_serve(struct cuda_device *device, const struct search_plan *plan, void *stream,
				struct cuda_outcome *outcome, rosa_error *err)
{
	struct selected selected(device, err);
	rosa_status status = selected.status;
	int threads = LEAST_THREADS;

	if (!status)
		status = choose_threads(device, (const void *)serve_routes, plan, &threads, err);
	if (status)
		return status;
	serve_routes<<<(unsigned)plan->routes, (unsigned)threads, 0, (cudaStream_t)stream>>>(*plan);
	return end(device, plan, (cudaStream_t)stream, outcome, err);
}

extern "C" __attribute__((visibility("default"))) const struct cuda_table *rosatune_cuda_table(void)
{
	static const struct cuda_table table = {CUDA_TABLE_VERSION, device_open,     device_close,   device_name,
						device_free_bytes,  device_allocate, device_release, device_copy,
						device_copy_rows,   device_search,   device_queue,   device_start,
						device_take,        device_serve};

	return &table;
}
