/*
 * The way to a CUDA device: librosatune_cuda.so is loaded when one is asked for, and reached through a table of
 * functions (retrieval/cuda/table.h). Nothing here includes CUDA.
 *
 * The call with pointers into ordinary memory is the other one between two copies. Where the routes together are larger
 * than the device's memory, they go there a group at a time. Routes that the device's search gave up are gathered and
 * searched here.
 */
#define _GNU_SOURCE /* dladdr */
#include "retrieval/cuda_device.h"
#include "base/memory.h"
#include "base/status.h"
#include "retrieval/batch.h"
#include "retrieval/rules.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "librosatune_cuda.so"

/* ---- opening ---- */

/* The folder of the file that this function was loaded from, ending in '/', or "". */
static void own_folder(char *folder, size_t room)
{
	static const char here = 0; /* data, for ISO C has no conversion from functions */
	Dl_info info;
	const char *slash;

	folder[0] = 0;
	if (!dladdr(&here, &info) || !info.dli_fname)
		return;
	slash = strrchr(info.dli_fname, '/');
	if (slash && (size_t)(slash - info.dli_fname) + 2 < room)
		snprintf(folder, room, "%.*s", (int)(slash - info.dli_fname) + 1, info.dli_fname);
}

static void *load(rosa_error *err)
{
	static const char *const beside[] = {"", "../lib/", "../lib64/"};
	char folder[4096], path[4200];
	void *library = NULL;

	own_folder(folder, sizeof(folder));
	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]) && folder[0] && !library; i++) {
		snprintf(path, sizeof(path), "%s%s" LIBRARY, folder, beside[i]);
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	if (!library)
		library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		rosa_fail(err, ROSA_EDEVICE,
			  LIBRARY " cannot be loaded (%s); build with nvcc installed (cmake -DROSATUNE_CUDA=ON), or "
				  "retrieve on the CPU",
			  dlerror());
	return library;
}

rosa_status cuda_device_open(const struct cuda_table *table, void *library, int number, const rosa_allocator *allocator,
			     rosa_cuda **opened, rosa_error *err)
{
	const rosa_allocator none = {NULL, NULL};
	rosa_cuda *cuda;
	rosa_status status;

	allocator = allocator ? allocator : &none;
	cuda = memory_resize(allocator, NULL, sizeof(*cuda));
	if (!cuda)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the state of a device");
	*cuda = (rosa_cuda){.allocator = *allocator, .table = table};
	status = table->open(number, &cuda->device, err);
	if (status) {
		memory_free(allocator, cuda);
		return status;
	}
	cuda->library = library;
	*opened = cuda;
	return ROSA_OK;
}

rosa_status rosa_cuda_open(int number, const rosa_allocator *allocator, rosa_cuda **opened, rosa_error *err)
{
	const struct cuda_table *table = NULL;
	cuda_table_get *get = NULL;
	rosa_status status;
	void *library, *symbol;

	if (!opened)
		return rosa_fail(err, ROSA_EINVAL, "cuda is NULL");
	*opened = NULL;
	library = load(err);
	if (!library)
		return ROSA_EDEVICE;
	symbol = dlsym(library, CUDA_TABLE_NAME);
	memcpy(&get, &symbol, sizeof(get)); /* POSIX: the two are alike */
	if (get)
		table = get();
	if (table && table->version == CUDA_TABLE_VERSION)
		status = cuda_device_open(table, library, number, allocator, opened, err);
	else
		status = rosa_fail(err, ROSA_EDEVICE,
				   LIBRARY " is of another version than this library (%s); build both from one source",
				   rosa_version());
	if (status)
		dlclose(library);
	return status;
}

void rosa_cuda_close(rosa_cuda *cuda)
{
	rosa_allocator allocator;

	if (!cuda)
		return;
	allocator = cuda->allocator;
	cuda->table->close(cuda->device);
	if (cuda->library)
		dlclose(cuda->library);
	memory_free(&allocator, cuda);
}

rosa_status rosa_cuda_describe(const rosa_cuda *cuda, rosa_cuda_info *info, rosa_error *err)
{
	rosa_cuda_info full = {.size = sizeof(full)};

	if (!cuda || !info)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", cuda ? "info" : "cuda");
	if (info->size < sizeof(info->size))
		return rosa_fail(err, ROSA_EINVAL, "info.size is %zu; set it to sizeof(rosa_cuda_info)", info->size);
	full.size = info->size;
	snprintf(full.name, sizeof(full.name), "%s", cuda->table->name(cuda->device));
	full.milliseconds = cuda->milliseconds;
	full.handed = cuda->handed;
	memcpy(info, &full, info->size < sizeof(full) ? info->size : sizeof(full));
	return ROSA_OK;
}

/* ---- searching ---- */

/* One call, its options checked. The pointers of `plan` are the device's. */
struct call {
	rosa_cuda *cuda;
	rosa_options full;
	struct search_plan plan;
	void *stream;
};

static rosa_status begin(struct call *call, rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
			 const void *query, const void *key, const int32_t *tau, const int32_t *flips, rosa_error *err)
{
	struct route_rules rules;
	rosa_status status;

	if (!cuda || !options || !tau)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", !cuda ? "cuda" : !options ? "options" : "tau");
	status = rules_from_options(options, &call->full, &rules, err);
	if (!status)
		status = batch_check(&call->full, routes, steps, query, key, err);
	if (!status && flips)
		status = rules_check_flips(&rules, err);
	if (status)
		return status;
	call->cuda = cuda;
	call->plan = (struct search_plan){.bits = rules.bits,
					  .policy = rules.policy,
					  .fold = rules.fold,
					  .max_match = rules.max_match,
					  .delay = rules.delay,
					  .routes = routes,
					  .steps = steps,
					  .stride = steps,
					  .room = steps,
					  .build = true,
					  .effort = PLAN_EFFORT,
					  .visit = PLAN_VISIT,
					  .further = 1};
	return ROSA_OK;
}

rosa_status cuda_check_symbols(const struct search_plan *plan, const struct cuda_outcome *outcome, rosa_error *err)
{
	const bool query = outcome->bad_query != UINT64_MAX;
	const uint64_t at = query ? outcome->bad_query : outcome->bad_key;

	if (at == UINT64_MAX)
		return ROSA_OK;
	/* only the place is known */
	return rules_refuse_symbol(query ? "query symbol" : "key symbol", at / plan->stride,
				   plan->done + at % plan->stride, plan->bits, err);
}

/* Results of one route searched here, to the device. `table` has room for one route's tables. */
static rosa_status put_route(const struct call *call, size_t r, size_t i, const int32_t *tau, const int32_t *length,
			     const rosa_flips *flips, int32_t *table, rosa_error *err)
{
	const struct search_plan *plan = &call->plan;
	const struct cuda_table *device = call->cuda->table;
	const size_t steps = plan->steps, row = steps * sizeof(int32_t);
	rosa_status status =
	    device->copy(call->cuda->device, plan->tau + r * steps, tau + i * steps, row, call->stream, err);

	if (!status && plan->length)
		status = device->copy(call->cuda->device, plan->length + r * steps, length + i * steps, row,
				      call->stream, err);
	if (!status && plan->flips)
		status = rosa_flips_expand(flips, i, steps, table, err);
	if (!status && plan->flips)
		status = device->copy(call->cuda->device, plan->flips + r * steps * plan->bits, table, row * plan->bits,
				      call->stream, err);
	return status;
}

/* Search the `count` routes here that the device gave up. */
static rosa_status take_over(const struct call *call, const uint8_t *given_up, size_t count, rosa_error *err)
{
	const struct search_plan *plan = &call->plan;
	const struct cuda_table *device = call->cuda->table;
	const rosa_allocator *allocator = &call->cuda->allocator;
	const size_t steps = plan->steps, cells = count * steps, row = steps * symbol_size(plan->bits);
	/* one block: results, one route's tables, symbols */
	const size_t numbers = 2 * cells + (plan->flips ? steps * plan->bits : 0);
	char *memory = memory_resize(allocator, NULL, numbers * sizeof(int32_t) + 2 * count * row);
	int32_t *const tau = (void *)memory, *const length = tau + cells, *const table = length + cells;
	char *const query = memory + numbers * sizeof(int32_t), *const key = query + count * row;
	rosa_status status = ROSA_OK;
	rosa_flips flips = {.routes = 0};
	size_t i = 0;

	if (!memory)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes that the device gave up", count);
	for (size_t r = 0; r < plan->routes && !status; r++) {
		if (!given_up[r])
			continue;
		status = device->copy(call->cuda->device, query + i * row,
				      symbols_from(plan->query, plan->bits, r * steps), row, call->stream, err);
		if (!status)
			status = device->copy(call->cuda->device, key + i * row,
					      symbols_from(plan->key, plan->bits, r * steps), row, call->stream, err);
		i++;
	}
	if (!status)
		status =
		    rosa_retrieve(&call->full, count, steps, query, key, tau, length, plan->flips ? &flips : NULL, err);
	i = 0;
	for (size_t r = 0; r < plan->routes && !status; r++)
		if (given_up[r])
			status = put_route(call, r, i++, tau, length, &flips, table, err);
	rosa_flips_free(&flips);
	memory_free(allocator, memory);
	return status;
}

static rosa_status search(struct call *call, rosa_error *err)
{
	rosa_cuda *cuda = call->cuda;
	struct cuda_outcome outcome;
	size_t count = 0;
	rosa_status status = cuda->table->search(cuda->device, &call->plan, call->stream, &outcome, err);

	if (!status)
		status = cuda_check_symbols(&call->plan, &outcome, err);
	if (status)
		return status;
	for (size_t r = 0; r < call->plan.routes; r++)
		count += outcome.given_up[r] != 0;
	cuda->milliseconds += (double)outcome.milliseconds;
	cuda->handed += count;
	return count ? take_over(call, outcome.given_up, count, err) : ROSA_OK;
}

/* A call whose pointers are the device's. */
static rosa_status begin_there(struct call *call, rosa_cuda *cuda, const rosa_options *options, size_t routes,
			       size_t steps, const void *query, const void *key, int32_t *tau, int32_t *length,
			       int32_t *flips, rosa_error *err)
{
	const rosa_status status = begin(call, cuda, options, routes, steps, query, key, tau, flips, err);

	if (status)
		return status;
	call->plan.query = query;
	call->plan.key = key;
	call->plan.tau = tau;
	call->plan.length = length;
	call->plan.flips = flips;
	return ROSA_OK;
}

rosa_status rosa_cuda_retrieve_device(rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
				      const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
				      void *stream, rosa_error *err)
{
	struct call call = {.stream = stream};
	rosa_status status = begin_there(&call, cuda, options, routes, steps, query, key, tau, length, flips, err);

	if (status)
		return status;
	cuda->milliseconds = 0;
	cuda->handed = 0;
	return search(&call, err);
}

rosa_status rosa_cuda_queue(rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
			    const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
			    void *memory, size_t *bytes, void *stream, rosa_error *err)
{
	struct call call = {.stream = stream};
	rosa_status status = begin_there(&call, cuda, options, routes, steps, query, key, tau, length, flips, err);
	size_t given;

	if (status)
		return status;
	if (!bytes)
		return rosa_fail(err, ROSA_EINVAL, "bytes is NULL");
	call.plan.visit = call.plan.further = 0;
	given = *bytes;
	status = cuda->table->queue(cuda->device, &call.plan, memory, bytes, stream, err);
	if (!status && memory && given < *bytes)
		status = rosa_fail(err, ROSA_EINVAL, "memory has %zu bytes; the search of %zu routes needs %zu", given,
				   routes, *bytes);
	return status;
}

/* ---- with ordinary memory ---- */

/* Device memory of one group of routes, in one block. */
struct group {
	char *memory;
	size_t symbols, numbers, tables; /* bytes of each array, for one route */
	size_t bytes;                    /* of a route, in all */
};

/* Routes first .. first+count-1 there and back. */
static rosa_status retrieve_group(struct call *call, const struct group *group, size_t first, size_t count,
				  const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
				  rosa_error *err)
{
	const struct cuda_table *table = call->cuda->table;
	struct cuda_device *device = call->cuda->device;
	struct search_plan *plan = &call->plan;
	char *at = group->memory;
	rosa_status status;

	plan->routes = count;
	plan->tau = (void *)at;
	at += count * group->numbers;
	plan->length = length ? (void *)at : NULL;
	at += length ? count * group->numbers : 0;
	plan->flips = flips ? (void *)at : NULL;
	at += count * group->tables;
	plan->query = at;
	plan->key = at + count * group->symbols;
	status =
	    table->copy(device, at, (const char *)query + first * group->symbols, count * group->symbols, NULL, err);
	if (!status)
		status = table->copy(device, at + count * group->symbols, (const char *)key + first * group->symbols,
				     count * group->symbols, NULL, err);
	if (!status)
		status = search(call, err);
	if (!status)
		status = table->copy(device, tau + first * plan->steps, plan->tau, count * group->numbers, NULL, err);
	if (!status && length)
		status =
		    table->copy(device, length + first * plan->steps, plan->length, count * group->numbers, NULL, err);
	if (!status && flips)
		status = table->copy(device, flips + first * plan->steps * plan->bits, plan->flips,
				     count * group->tables, NULL, err);
	return status;
}

rosa_status rosa_cuda_retrieve(rosa_cuda *cuda, const rosa_options *options, size_t routes, size_t steps,
			       const void *query, const void *key, int32_t *tau, int32_t *length, int32_t *flips,
			       rosa_error *err)
{
	struct call call = {.stream = NULL};
	struct group group = {.memory = NULL};
	rosa_status status = begin(&call, cuda, options, routes, steps, query, key, tau, flips, err);
	size_t count;
	void *memory;

	if (status)
		return status;
	group.symbols = steps * symbol_size(call.plan.bits);
	group.numbers = steps * sizeof(int32_t);
	group.tables = flips ? group.numbers * call.plan.bits : 0;
	group.bytes = 2 * group.symbols + (length ? 2 : 1) * group.numbers + group.tables;
	/* half of what is free is for the search */
	count = cuda->table->free_bytes(cuda->device) / 2 / group.bytes;
	count = count < 1 ? 1 : count > routes ? routes : count;
	status = cuda->table->allocate(cuda->device, count * group.bytes, &memory, err);
	if (status)
		return status;
	group.memory = memory;
	cuda->milliseconds = 0;
	cuda->handed = 0;
	for (size_t first = 0; first < routes && !status; first += count)
		status = retrieve_group(&call, &group, first, routes - first < count ? routes - first : count, query,
					key, tau, length, flips, err);
	cuda->table->release(cuda->device, memory);
	return status;
}
