/*
 * Retrieval on CUDA devices, executed by the processor.
 *
 * The device is a table of functions as librosatune_cuda.so has one, with ordinary memory and teams of one thread
 * (retrieval/cuda/team.h). What the threads of a block do together is not seen here, that takes a device
 * (cuda_retrieve.c). The rest is the same code: the search, which is held against the oracle wherever the tests run,
 * and what lies around it.
 */
#include "retrieval/cuda/search.h"
#include "retrieval/cuda_device.h"
#include "support_grid.h"
#include "support_test.h"
#include "support_trial.h"

/* ---- the device ---- */

/* Set by a test before it opens the device. */
struct cuda_device {
	uint32_t effort;
	bool wide; /* numbers of 32 bits for short streams too */
	bool near; /* a rung in other memory */
	size_t free_bytes;
	uint8_t given_up[64];
};

static struct cuda_device only;

static rosa_status open_only(int number, struct cuda_device **device, rosa_error *err)
{
	(void)err;
	assert_int_equal(number, 0);
	*device = &only;
	return ROSA_OK;
}

static void close_only(struct cuda_device *device)
{
	assert_ptr_equal(device, &only);
}

static const char *name(const struct cuda_device *device)
{
	(void)device;
	return "one thread";
}

static size_t free_bytes(struct cuda_device *device)
{
	return device->free_bytes;
}

static rosa_status allocate(struct cuda_device *device, size_t size, void **memory, rosa_error *err)
{
	(void)device;
	(void)err;
	*memory = must_alloc(size);
	return ROSA_OK;
}

static void release(struct cuda_device *device, void *memory)
{
	(void)device;
	free(memory);
}

static rosa_status copy(struct cuda_device *device, void *to, const void *from, size_t size, void *stream,
			rosa_error *err)
{
	(void)device;
	(void)stream;
	(void)err;
	memcpy(to, from, size);
	return ROSA_OK;
}

static rosa_status search(struct cuda_device *device, struct search_plan *plan, void *stream,
			  struct cuda_outcome *outcome, rosa_error *err)
{
	unsigned long long bad_query = UINT64_MAX, bad_key = UINT64_MAX;
	struct team_board board;
	const struct team team = {.size = 1, .warps = 1, .board = &board};
	char *memory, *near;

	(void)stream;
	(void)err;
	assert_true(plan->routes <= sizeof(device->given_up));
	plan->given_up = device->given_up;
	plan->bad_query = &bad_query;
	plan->bad_key = &bad_key;
	plan->effort = device->effort;
	plan->narrow = plan->steps < 65536 && !device->wide;
	plan_lay_out(plan);
	memory = must_alloc(plan->bytes);
	near = device->near ? must_alloc(plan->index_bytes) : NULL;
	for (size_t r = 0; r < plan->routes; r++) {
		if (plan->narrow)
			search16_search(plan, &team, r, memory, near);
		else
			search32_search(plan, &team, r, memory, near);
	}
	free(near);
	free(memory);
	*outcome = (struct cuda_outcome){device->given_up, bad_query, bad_key, 1};
	return ROSA_OK;
}

static const struct cuda_table table = {CUDA_TABLE_VERSION, open_only, close_only, name,  free_bytes,
					allocate,           release,   copy,       search};

static rosa_cuda *open_as(struct cuda_device device)
{
	rosa_cuda *cuda = NULL;
	rosa_error err;

	only = device;
	must(cuda_device_open(&table, NULL, 0, NULL, &cuda, &err), &err);
	return cuda;
}

/* ---- against the oracle ---- */

static rosa_status on_device(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			     const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed,
			     rosa_error *err)
{
	rosa_cuda_info info = {.size = sizeof(info)};
	rosa_status status = rosa_cuda_retrieve(context, options, routes, steps, query, key, tau, length, flips, err);

	must(rosa_cuda_describe(context, &info, err), err);
	assert_string_equal(info.name, "one thread");
	*handed = info.handed;
	return status;
}

static void check(struct cuda_device device, uint64_t seed, size_t rounds, size_t longest)
{
	rosa_cuda *cuda = open_as(device);

	assert_int_equal(grid_run(on_device, cuda, seed, test_rounds(rounds), longest), 0);
	rosa_cuda_close(cuda);
}

static void test_grid(void **state)
{
	(void)state;
	check((struct cuda_device){PLAN_EFFORT, false, true, SIZE_MAX, {0}}, 1, 4, 5000);
}

/* Wide numbers, the highest rung beside the others, and little memory: one or two routes at a time. */
static void test_wide(void **state)
{
	(void)state;
	check((struct cuda_device){PLAN_EFFORT, true, false, 16384, {0}}, 2, 1, 2000);
}

/* Teams that give up early: what they leave is taken over. */
static void test_giving_up(void **state)
{
	(void)state;
	check((struct cuda_device){0, false, false, SIZE_MAX, {0}}, 3, 1, 2000);
}

/* ---- refusals ---- */

static void test_symbols(void **state)
{
	rosa_cuda *cuda = open_as((struct cuda_device){PLAN_EFFORT, false, false, SIZE_MAX, {0}});
	rosa_options options = ROSA_OPTIONS_INIT;
	uint16_t query[40] = {0}, key[40] = {0};
	int32_t tau[40];
	rosa_error err;

	(void)state;
	options.bits = 3;
	key[27] = 8;
	must_fail(rosa_cuda_retrieve(cuda, &options, 2, 20, query, key, tau, NULL, NULL, &err), ROSA_ESYMBOL, &err,
		  "key symbol at route 1, step 7 does not fit into 3 bits");
	query[3] = 9;
	must_fail(rosa_cuda_retrieve_device(cuda, &options, 2, 20, query, key, tau, NULL, NULL, NULL, &err),
		  ROSA_ESYMBOL, &err, "query symbol at route 0, step 3");
	rosa_cuda_close(cuda);
}

static void test_arguments(void **state)
{
	rosa_cuda *cuda = open_as((struct cuda_device){PLAN_EFFORT, false, false, SIZE_MAX, {0}});
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_cuda_info info = {.size = 0};
	uint32_t symbols[4] = {0};
	int32_t tau[4], flips[80];
	rosa_error err;

	(void)state;
	must_fail(rosa_cuda_retrieve(NULL, &options, 1, 4, symbols, symbols, tau, NULL, NULL, &err), ROSA_EINVAL, &err,
		  "cuda is NULL");
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 4, symbols, symbols, NULL, NULL, NULL, &err), ROSA_EINVAL, &err,
		  "tau is NULL");
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 0, symbols, symbols, tau, NULL, NULL, &err), ROSA_EINVAL, &err,
		  "0 steps");
	options.bits = 20;
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 4, symbols, symbols, tau, NULL, flips, &err), ROSA_EINVAL, &err,
		  "counterfactuals");
	must_fail(rosa_cuda_describe(cuda, &info, &err), ROSA_EINVAL, &err, "info.size is 0");
	must_fail(rosa_cuda_open(0, NULL, NULL, &err), ROSA_EINVAL, &err, "cuda is NULL");
	rosa_cuda_close(cuda);
	rosa_cuda_close(NULL);
}

/* The library itself, if it was built: with a device or without one it must say what it is up to. */
static void test_real_device(void **state)
{
	rosa_cuda *cuda = NULL;
	rosa_error err;
	rosa_status status = rosa_cuda_open(0, NULL, &cuda, &err);

	(void)state;
	if (status)
		must_fail(status, ROSA_EDEVICE, &err, "retrieve on the CPU");
	rosa_cuda_close(cuda);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_grid),    cmocka_unit_test(test_wide),      cmocka_unit_test(test_giving_up),
	    cmocka_unit_test(test_symbols), cmocka_unit_test(test_arguments), cmocka_unit_test(test_real_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
