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
#include "base/status.h"
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
	unsigned long long bad_query, bad_key;
};

static struct cuda_device only;
static size_t largest = SIZE_MAX; /* of allocations that do not fail */

static rosa_status open_only(int number, struct cuda_device **device, rosa_error *err)
{
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
	return "one thread";
}

static size_t free_bytes(struct cuda_device *device)
{
	return device->free_bytes;
}

static rosa_status allocate(struct cuda_device *device, size_t size, void **memory, rosa_error *err)
{
	*memory = NULL;
	if (size > largest)
		return rosa_fail(err, ROSA_ENOMEM, "no memory");
	*memory = must_alloc(size);
	memset(*memory, 0xa5, size); /* as a device leaves it: anything */
	return ROSA_OK;
}

static void release(struct cuda_device *device, void *memory)
{
	free(memory);
}

static rosa_status copy(struct cuda_device *device, void *to, const void *from, size_t size, void *stream,
			rosa_error *err)
{
	memcpy(to, from, size);
	return ROSA_OK;
}

static rosa_status copy_rows(struct cuda_device *device, void *to, size_t to_pitch, const void *from, size_t from_pitch,
			     size_t size, size_t rows, void *stream, rosa_error *err)
{
	for (size_t i = 0; i < rows; i++)
		copy(device, (char *)to + i * to_pitch, (const char *)from + i * from_pitch, size, stream, err);
	return ROSA_OK;
}

static rosa_status search(struct cuda_device *device, struct search_plan *plan, void *stream,
			  struct cuda_outcome *outcome, rosa_error *err)
{
	unsigned long long bad_query = UINT64_MAX, bad_key = UINT64_MAX;
	struct team_board board;
	const struct team team = {.size = 1, .warps = 1, .board = &board};
	char *memory, *near;

	assert_true(plan->routes <= sizeof(device->given_up));
	plan->given_up = device->given_up;
	plan->bad_query = &bad_query;
	plan->bad_key = &bad_key;
	plan->effort = device->effort;
	plan->narrow = plan->steps < 65536 && !device->wide;
	plan_lay_out(plan);
	memory = test_alloc(plan->bytes);
	near = device->near ? test_alloc(plan->index_bytes) : NULL;
	for (size_t r = 0; r < plan->routes; r++) {
		if (plan->narrow)
			search16_search(plan, &team, r, memory, near);
		else
			search32_search(plan, &team, r, memory, near);
	}
	*outcome = (struct cuda_outcome){device->given_up, bad_query, bad_key, 1};
	return ROSA_OK;
}

/* Searches at once; more work than any route is entitled to elsewhere is no reason to give up. */
static rosa_status queue(struct cuda_device *device, struct search_plan *plan, void *memory, size_t *bytes,
			 void *stream, rosa_error *err)
{
	const size_t given = memory ? *bytes : 0;
	struct cuda_outcome outcome;

	*bytes = 1000;
	if (given < *bytes)
		return ROSA_OK;
	assert_int_equal(search(device, plan, stream, &outcome, err), ROSA_OK);
	for (size_t r = 0; r < plan->routes; r++)
		assert_int_equal(outcome.given_up[r], 0);
	return ROSA_OK;
}

static rosa_status start(struct cuda_device *device, struct search_plan *plan, void *stream, rosa_error *err)
{
	assert_true(plan->routes <= sizeof(device->given_up));
	memset(device->given_up, 0xff, sizeof(device->given_up));
	device->bad_query = device->bad_key = UINT64_MAX;
	plan->given_up = device->given_up;
	plan->bad_query = &device->bad_query;
	plan->bad_key = &device->bad_key;
	plan->effort = device->effort;
	return ROSA_OK;
}

static rosa_status take(struct cuda_device *device, const struct search_plan *plan, void *stream, rosa_error *err)
{
	struct team_board board;
	const struct team team = {.size = 1, .warps = 1, .board = &board};

	for (size_t r = 0; r < plan->routes; r++)
		search_take(plan, &team, r);
	return ROSA_OK;
}

static rosa_status serve(struct cuda_device *device, const struct search_plan *plan, void *stream,
			 struct cuda_outcome *outcome, rosa_error *err)
{
	struct team_board board;
	const struct team team = {.size = 1, .warps = 1, .board = &board};

	for (size_t r = 0; r < plan->routes; r++)
		search_serve(plan, &team, r);
	*outcome = (struct cuda_outcome){device->given_up, device->bad_query, device->bad_key, 1};
	return ROSA_OK;
}

static const struct cuda_table table = {
    CUDA_TABLE_VERSION, open_only, close_only, name,  free_bytes, allocate, release, copy,
    copy_rows,          search,    queue,      start, take,       serve};

TEST_CLOSER(close_cuda, rosa_cuda_close)

static rosa_cuda *open_as(struct cuda_device device)
{
	rosa_cuda *cuda = NULL;

	only = device;
	must(cuda_device_open(&table, NULL, 0, NULL, &cuda, &err));
	test_later(close_cuda, cuda);
	return cuda;
}

static rosa_cuda *open_plain(uint32_t effort)
{
	return open_as((struct cuda_device){.effort = effort, .free_bytes = SIZE_MAX});
}

/* ---- against the oracle ---- */

static rosa_status on_device(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			     const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed,
			     rosa_error *err)
{
	rosa_cuda_info info = {.size = sizeof(info)};
	rosa_status status = rosa_cuda_retrieve(context, options, routes, steps, query, key, tau, length, flips, err);

	assert_int_equal(rosa_cuda_describe(context, &info, err), ROSA_OK);
	assert_string_equal(info.name, "one thread");
	*handed = info.handed;
	return status;
}

static void check(struct cuda_device device, uint64_t seed, size_t rounds, size_t longest)
{
	rosa_cuda *cuda = open_as(device);

	assert_int_equal(grid_run(on_device, cuda, seed, test_rounds(rounds), longest, true), 0);
}

TEST(test_grid)
{
	check((struct cuda_device){PLAN_EFFORT, false, true, SIZE_MAX, {0}, 0, 0}, 1, 4, 5000);
}

/* Wide numbers, the highest rung beside the others, and little memory: one or two routes at a time. */
TEST(test_wide)
{
	check((struct cuda_device){PLAN_EFFORT, true, false, 16384, {0}, 0, 0}, 2, 1, 2000);
}

/* Teams that give up early: what they leave is taken over. */
TEST(test_giving_up)
{
	check((struct cuda_device){0, false, false, SIZE_MAX, {0}, 0, 0}, 3, 1, 2000);
}

/* ---- queued ---- */

static rosa_status queued(void *context, const rosa_options *options, size_t routes, size_t steps, const void *query,
			  const void *key, int32_t *tau, int32_t *length, int32_t *flips, size_t *handed,
			  rosa_error *err)
{
	char memory[1000];
	size_t bytes = 0;
	rosa_status status =
	    rosa_cuda_queue(context, options, routes, steps, query, key, tau, length, flips, NULL, &bytes, NULL, err);

	*handed = 0;
	if (status)
		return status;
	assert_int_equal(bytes, sizeof(memory));
	return rosa_cuda_queue(context, options, routes, steps, query, key, tau, length, flips, memory, &bytes, NULL,
			       err);
}

/* With the allowance that makes teams give up above: nothing is counted here. */
TEST(test_queued)
{
	assert_int_equal(grid_run(queued, open_plain(0), 7, test_rounds(1), 2000, true), 0);
}

/* ---- streams ---- */

static void check_stream(uint32_t effort, uint64_t seed, size_t rounds, size_t longest)
{
	rosa_cuda *cuda = open_plain(effort);

	assert_int_equal(grid_run(grid_pieces, cuda, seed, test_rounds(rounds), longest, false), 0);
}

TEST(test_streams)
{
	check_stream(PLAN_EFFORT, 4, 4, 5000);
}

/* Routes that are given up, at once or after some steps, and go on by the processor from there. */
TEST(test_streams_given_up)
{
	check_stream(0, 5, 2, 3001);
	check_stream(12, 6, 2, 3001);
}

/* A push that is refused, for a symbol or for memory, changes nothing. */
TEST(test_stream_refused)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = 0, .seed = 3, .routes = 3, .steps = 900};
	rosa_cuda *cuda = open_plain(PLAN_EFFORT);
	rosa_cuda_stream *stream = NULL;
	int32_t tau[3 * 900], length[3 * 900];
	uint16_t bad[3 * 40];
	size_t short_of_memory = 0;

	trial.options.bits = 2;
	trial_make(&trial);
	trial_solve(&trial);
	must(rosa_cuda_stream_new(cuda, &trial.options, trial.routes, &stream, &err));
	for (size_t t = 0, piece = 1; t < trial.steps; t += piece, piece = 1 + (piece * 7 + 3) % 40) {
		const uint16_t *const query = trial.query + t, *const key = trial.key + t;

		piece = piece < trial.steps - t ? piece : trial.steps - t;
		for (size_t i = 0; i < 3 * piece; i++)
			bad[i] = i % 4;
		bad[2 * piece] = 4;
		for (largest = 0; largest < 65536; largest += 1024)
			if (rosa_cuda_stream_push(stream, piece, bad, bad, 0, tau, NULL, &err) == ROSA_ENOMEM)
				short_of_memory++;
			else
				must_fail(err.status, ROSA_ESYMBOL, "query symbol at route 2");
		largest = SIZE_MAX;
		must(rosa_cuda_stream_push(stream, piece, query, key, trial.steps, tau + t, length + t, &err));
	}
	assert_true(short_of_memory > 1);
	expect_all(&trial, "a stream", "tau", 0, trial.steps, 1, tau, trial.steps, trial.tau);
	expect_all(&trial, "a stream", "length", 0, trial.steps, 1, length, trial.steps, trial.length);
	rosa_cuda_stream_free(stream);
}

/* ---- refusals ---- */

TEST(test_symbols)
{
	rosa_cuda *cuda = open_plain(PLAN_EFFORT);
	rosa_options options = ROSA_OPTIONS_INIT;
	uint16_t query[40] = {0}, key[40] = {0};
	int32_t tau[40];

	options.bits = 3;
	key[27] = 8;
	must_fail(rosa_cuda_retrieve(cuda, &options, 2, 20, query, key, tau, NULL, NULL, &err), ROSA_ESYMBOL,
		  "key symbol at route 1, step 7 does not fit into 3 bits");
	query[3] = 9;
	must_fail(rosa_cuda_retrieve_device(cuda, &options, 2, 20, query, key, tau, NULL, NULL, NULL, &err),
		  ROSA_ESYMBOL, "query symbol at route 0, step 3");
}

TEST(test_arguments)
{
	rosa_cuda *cuda = open_plain(PLAN_EFFORT);
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_cuda_info info = {.size = 0};
	uint32_t symbols[4] = {0};
	int32_t tau[4], flips[80];
	rosa_cuda_stream *stream = NULL;
	size_t few = 999;

	must_fail(rosa_cuda_retrieve(NULL, &options, 1, 4, symbols, symbols, tau, NULL, NULL, &err), ROSA_EINVAL,
		  "cuda is NULL");
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 4, symbols, symbols, NULL, NULL, NULL, &err), ROSA_EINVAL,
		  "tau is NULL");
	must_fail(rosa_cuda_queue(cuda, &options, 1, 4, symbols, symbols, tau, NULL, NULL, symbols, NULL, NULL, &err),
		  ROSA_EINVAL, "bytes is NULL");
	must_fail(rosa_cuda_queue(cuda, &options, 1, 4, symbols, symbols, tau, NULL, NULL, symbols, &few, NULL, &err),
		  ROSA_EINVAL, "memory has 999 bytes; the search of 1 routes needs 1000");
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 0, symbols, symbols, tau, NULL, NULL, &err), ROSA_EINVAL,
		  "0 steps");
	options.bits = 20;
	must_fail(rosa_cuda_retrieve(cuda, &options, 1, 4, symbols, symbols, tau, NULL, flips, &err), ROSA_EINVAL,
		  "counterfactuals");
	must_fail(rosa_cuda_describe(cuda, &info, &err), ROSA_EINVAL, "info.size is 0");
	must_fail(rosa_cuda_stream_new(cuda, &options, 0, &stream, &err), ROSA_EINVAL, "0 routes");
	must(rosa_cuda_stream_new(cuda, &options, 1, &stream, &err));
	must_fail(rosa_cuda_stream_push(stream, 0, symbols, symbols, 0, tau, NULL, &err), ROSA_EINVAL, "0 steps");
	must_fail(rosa_cuda_stream_push(stream, 4, symbols, symbols, 3, tau, NULL, &err), ROSA_EINVAL,
		  "stride 3 is less than the 4 steps");
	must_fail(rosa_cuda_stream_push(stream, 4, symbols, symbols, 0, NULL, NULL, &err), ROSA_EINVAL, "tau is NULL");
	must(rosa_cuda_stream_push(stream, 4, symbols, symbols, 0, tau, NULL, &err));
	must_fail(rosa_cuda_stream_push(stream, ROSA_MAX_STEPS, symbols, symbols, 0, tau, NULL, &err), ROSA_EINVAL,
		  "a stream holds at most");
	rosa_cuda_stream_free(stream);
	rosa_cuda_stream_free(NULL);
	must_fail(rosa_cuda_open(0, NULL, NULL, &err), ROSA_EINVAL, "cuda is NULL");
	rosa_cuda_close(NULL);
}

/* The library itself, if it was built: with a device or without one it must say what it is up to. */
TEST(test_real_device)
{
	rosa_cuda *cuda = NULL;
	rosa_status status = rosa_cuda_open(0, NULL, &cuda, &err);

	if (status)
		must_fail(status, ROSA_EDEVICE, "retrieve on the CPU");
	rosa_cuda_close(cuda);
}
