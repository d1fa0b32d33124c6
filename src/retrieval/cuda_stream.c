/*
 * Retrieval as the steps come, on a CUDA device: memory for the routes' histories and indexes, and the routes that come
 * back.
 *
 * All routes have room for the same number of steps. When it is used up, their histories move to memory with twice the
 * room, and the indexes, which can be made from the histories, are made anew: over a whole stream every context is
 * indexed about twice. How many rungs an index has depends on the route, so a call that builds them waits between its
 * two parts, and each route gets the memory of its own rungs.
 *
 * A route that the device gives up is searched here from then on, by a stream of the processor. Its history is made
 * from the runs on the device. Where query runs began makes no difference to later answers and is not kept there: each
 * is given one step, and the last one all that are left.
 */
#include "base/memory.h"
#include "base/status.h"
#include "retrieval/cuda_device.h"
#include "retrieval/rules.h"
#include "retrieval/stream.h"

#define LEAST_ROOM 256

/* Routes that were given up by the same call. */
struct handed {
	struct handed *next;
	rosa_stream *stream;
	size_t count;
	size_t routes[]; /* in ascending order */
};

/* Memory of the device that is replaced, not kept, where more is needed. */
struct block {
	void *memory;
	size_t bytes;
};

struct rosa_cuda_stream {
	rosa_cuda *cuda;
	rosa_options options;
	struct search_plan plan; /* `done`: the steps so far */
	bool built;              /* the indexes are those of the histories */
	bool broken;             /* routes that were given up could not be taken over */
	struct block history, states, index, scratch, piece;
	rosa_workers *workers; /* for `handed`, unless the caller has some */
	struct handed *handed;
};

/* ---- memory ---- */

static void block_free(const rosa_cuda *cuda, struct block *block)
{
	if (block->memory)
		cuda->table->release(cuda->device, block->memory);
	*block = (struct block){NULL, 0};
}

static rosa_status block_reserve(const rosa_cuda *cuda, struct block *block, size_t bytes, rosa_error *err)
{
	rosa_status status;

	if (block->bytes >= bytes)
		return ROSA_OK;
	block_free(cuda, block);
	status = cuda->table->allocate(cuda->device, bytes, &block->memory, err);
	if (!status)
		block->bytes = bytes;
	return status;
}

rosa_status rosa_cuda_stream_new(rosa_cuda *cuda, const rosa_options *options, size_t routes, rosa_cuda_stream **stream,
				 rosa_error *err)
{
	rosa_cuda_stream *new;
	struct route_rules rules;
	rosa_options full;
	rosa_status status;
	struct search_state *states;

	if (!cuda || !options || !stream)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", !cuda ? "cuda" : !options ? "options" : "stream");
	*stream = NULL;
	status = rules_from_options(options, &full, &rules, err);
	if (status)
		return status;
	if (!routes || routes > INT32_MAX)
		return rosa_fail(err, ROSA_EINVAL, "%zu routes; a stream on a device has 1 to %d", routes, INT32_MAX);
	new = memory_resize(&full.allocator, NULL, sizeof(*new));
	states = memory_resize(&full.allocator, NULL, routes * sizeof(*states));
	if (!new || !states) {
		memory_free(&full.allocator, new);
		memory_free(&full.allocator, states);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a stream of %zu routes", routes);
	}
	memset(states, 0, routes * sizeof(*states));
	*new = (rosa_cuda_stream){.cuda = cuda,
				  .options = full,
				  .plan = {.bits = rules.bits,
					   .policy = rules.policy,
					   .fold = rules.fold,
					   .max_match = rules.max_match,
					   .delay = rules.delay,
					   .routes = routes,
					   .effort = PLAN_EFFORT,
					   .visit = PLAN_VISIT,
					   .further = 1}};
	status = block_reserve(cuda, &new->states, routes * sizeof(*states), err);
	if (!status)
		status =
		    cuda->table->copy(cuda->device, new->states.memory, states, routes * sizeof(*states), NULL, err);
	new->plan.states = new->states.memory;
	memory_free(&full.allocator, states);
	if (status) {
		rosa_cuda_stream_free(new);
		return status;
	}
	*stream = new;
	return ROSA_OK;
}

void rosa_cuda_stream_free(rosa_cuda_stream *stream)
{
	rosa_allocator allocator;

	if (!stream)
		return;
	allocator = stream->options.allocator;
	for (struct handed *next, *group = stream->handed; group; group = next) {
		next = group->next;
		rosa_stream_free(group->stream);
		memory_free(&allocator, group);
	}
	rosa_workers_free(stream->workers);
	block_free(stream->cuda, &stream->history);
	block_free(stream->cuda, &stream->states);
	block_free(stream->cuda, &stream->index);
	block_free(stream->cuda, &stream->scratch);
	block_free(stream->cuda, &stream->piece);
	memory_free(&allocator, stream);
}

/* Histories with room for `steps`. */
static rosa_status grow(rosa_cuda_stream *stream, size_t steps, void *queue, rosa_error *err)
{
	const rosa_cuda *cuda = stream->cuda;
	const struct search_plan *old = &stream->plan;
	struct search_plan plan = *old;
	struct block history = {NULL, 0};
	rosa_status status;

	for (plan.room = LEAST_ROOM; plan.room < steps; plan.room *= 2)
		;
	plan_lay_out(&plan);
	block_free(cuda, &stream->index); /* so that there need not be memory for both */
	stream->built = false;
	status = block_reserve(cuda, &history, plan.routes * plan.history_bytes, err);
	plan.histories = history.memory;
	/* each array, as long as it was */
	const size_t from[] = {old->key_words, old->query_words, old->key_start, old->key_count, old->history_bytes};
	const size_t to[] = {plan.key_words, plan.query_words, plan.key_start, plan.key_count};
	for (size_t i = 0; i < 4 && old->done && !status; i++)
		status = cuda->table->copy_rows(cuda->device, plan.histories + to[i], plan.history_bytes,
						old->histories + from[i], old->history_bytes, from[i + 1] - from[i],
						plan.routes, queue, err);
	if (status) {
		block_free(cuda, &history);
		return status;
	}
	block_free(cuda, &stream->history);
	stream->history = history;
	stream->plan = plan;
	return ROSA_OK;
}

/* What the routes are at, in ordinary memory; the caller frees it. */
static rosa_status get_states(const rosa_cuda_stream *stream, void *queue, struct search_state **states,
			      rosa_error *err)
{
	const rosa_allocator *allocator = &stream->options.allocator;
	const size_t bytes = stream->plan.routes * sizeof(**states);
	rosa_status status;

	*states = memory_resize(allocator, NULL, bytes);
	if (!*states)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the states of %zu routes", stream->plan.routes);
	status = stream->cuda->table->copy(stream->cuda->device, *states, stream->plan.states, bytes, queue, err);
	if (status) {
		memory_free(allocator, *states);
		*states = NULL;
	}
	return status;
}

/* Memory for the rungs that the routes have chosen. */
static rosa_status lay_out_indexes(rosa_cuda_stream *stream, void *queue, rosa_error *err)
{
	const rosa_cuda *cuda = stream->cuda;
	struct search_plan *const plan = &stream->plan;
	struct search_state *states;
	rosa_status status = get_states(stream, queue, &states, err);
	size_t bytes = 0;

	if (status)
		return status;
	for (size_t r = 0; r < plan->routes; r++) {
		states[r].index = bytes;
		bytes += states[r].gone ? 0 : (states[r].top + 1) * plan->index_bytes;
	}
	status = block_reserve(cuda, &stream->index, bytes, err);
	if (!status)
		status =
		    cuda->table->copy(cuda->device, plan->states, states, plan->routes * sizeof(*states), queue, err);
	plan->indexes = stream->index.memory;
	memory_free(&stream->options.allocator, states);
	return status;
}

/* ---- routes that come back ---- */

/* Rows of the routes of a group, dense here and spread there; routes that follow each other are copied together. */
static rosa_status move_rows(const rosa_cuda_stream *stream, const struct handed *group, char *here, char *there,
			     size_t size, bool back, void *queue, rosa_error *err)
{
	const rosa_cuda *cuda = stream->cuda;
	const size_t row = stream->plan.steps * size, pitch = stream->plan.stride * size;
	rosa_status status = ROSA_OK;

	for (size_t i = 0, rows; i < group->count && !status; i += rows) {
		char *const at = there + group->routes[i] * pitch;

		for (rows = 1; i + rows < group->count && group->routes[i + rows] == group->routes[i] + rows; rows++)
			;
		if (back)
			status =
			    cuda->table->copy_rows(cuda->device, at, pitch, here + i * row, row, row, rows, queue, err);
		else
			status =
			    cuda->table->copy_rows(cuda->device, here + i * row, row, at, pitch, row, rows, queue, err);
	}
	return status;
}

/* The steps of this call, for a group of routes. */
static rosa_status push_group(const rosa_cuda_stream *stream, const struct handed *group, void *queue, rosa_error *err)
{
	const struct search_plan *plan = &stream->plan;
	const rosa_allocator *allocator = &stream->options.allocator;
	const size_t cells = group->count * plan->steps, size = symbol_size(plan->bits);
	char *const memory = memory_resize(allocator, NULL, 2 * cells * (sizeof(int32_t) + size));
	int32_t *const tau = (void *)memory, *const length = tau + cells;
	char *const query = (char *)(length + cells), *const key = query + cells * size;
	rosa_status status;

	if (!memory)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes that the device gave up", group->count);
	status = move_rows(stream, group, query, (char *)plan->query, size, false, queue, err);
	if (!status)
		status = move_rows(stream, group, key, (char *)plan->key, size, false, queue, err);
	if (!status)
		status = rosa_stream_push(group->stream, plan->steps, query, key, 0, tau, length, NULL, err);
	if (!status)
		status = move_rows(stream, group, (char *)tau, (char *)plan->tau, sizeof(*tau), true, queue, err);
	if (!status && plan->length)
		status =
		    move_rows(stream, group, (char *)length, (char *)plan->length, sizeof(*length), true, queue, err);
	memory_free(allocator, memory);
	return status;
}

static uint32_t packed_symbol(const struct search_plan *plan, const uint64_t *words, size_t run)
{
	const size_t bit = (run << plan->cell_shift) + 64;

	return (uint32_t)(words[bit / 64] >> bit % 64 & (((uint64_t)1 << plan->cell) - 1));
}

/* One route's symbols before this call, from its history. */
static void unpack(const struct search_plan *plan, const char *history, const struct search_state *state, void *query,
		   void *key)
{
	const uint64_t *const query_words = (const void *)(history + plan->query_words);
	const uint64_t *const key_words = (const void *)(history + plan->key_words);
	const uint32_t *const key_start = (const void *)(history + plan->key_start);

	for (size_t t = 0, run = 0; t < plan->done; t++) {
		const size_t query_run = t < state->query_runs ? t : state->query_runs - 1;

		run += run + 1 < state->key_runs && key_start[run + 1] == t;
		symbol_set(query, plan->bits, t, packed_symbol(plan, query_words, query_run));
		symbol_set(key, plan->bits, t, packed_symbol(plan, key_words, run));
	}
}

/* Bring a group's stream to where the routes were before this call. */
static rosa_status push_history(const rosa_cuda_stream *stream, const struct handed *group, void *queue,
				rosa_error *err)
{
	const struct search_plan *plan = &stream->plan;
	const rosa_cuda *cuda = stream->cuda;
	const rosa_allocator *allocator = &stream->options.allocator;
	const size_t row = plan->done * symbol_size(plan->bits);
	char *const memory = memory_resize(allocator, NULL, plan->history_bytes + 2 * group->count * row);
	char *const query = memory + plan->history_bytes, *const key = query + group->count * row;
	struct search_state *states = NULL;
	rosa_status status;

	status = memory ? get_states(stream, queue, &states, err)
			: rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes that the device gave up", group->count);
	for (size_t i = 0; i < group->count && !status; i++) {
		const size_t r = group->routes[i];

		status = cuda->table->copy(cuda->device, memory, plan->histories + r * plan->history_bytes,
					   plan->history_bytes, queue, err);
		if (!status)
			unpack(plan, memory, &states[r], query + i * row, key + i * row);
	}
	if (!status)
		status = rosa_stream_push(group->stream, plan->done, query, key, 0, NULL, NULL, NULL, err);
	memory_free(allocator, states);
	memory_free(allocator, memory);
	return status;
}

/* A group of the `count` routes that this call has given up. */
static rosa_status take_over(rosa_cuda_stream *stream, const uint8_t *given_up, size_t count, void *queue,
			     rosa_error *err)
{
	const rosa_allocator *allocator = &stream->options.allocator;
	struct handed *const group = memory_resize(allocator, NULL, sizeof(*group) + count * sizeof(group->routes[0]));
	rosa_status status = ROSA_OK;

	if (!group)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu routes that the device gave up", count);
	*group = (struct handed){.next = stream->handed};
	stream->handed = group;
	for (size_t r = 0; r < stream->plan.routes; r++)
		if (given_up[r])
			group->routes[group->count++] = r;
	if (!stream->options.workers) {
		status = rosa_workers_new(stream->options.threads, allocator, &stream->workers, err);
		stream->options.workers = stream->workers;
	}
	if (!status)
		status = rosa_stream_new(&stream->options, count, &group->stream, err);
	return status || !stream->plan.done ? status : push_history(stream, group, queue, err);
}

/* ---- steps ---- */

static rosa_status check_push(const rosa_cuda_stream *stream, size_t steps, const void *query, const void *key,
			      size_t stride, const int32_t *tau, rosa_error *err)
{
	if (!stream || !query || !key || !tau)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL",
				 !stream  ? "stream"
				 : !query ? "query"
				 : !key   ? "key"
					  : "tau");
	if (stream->broken)
		return rosa_fail(err, ROSA_EINVAL,
				 "a call on this stream failed after its steps had been taken; make "
				 "a new one");
	if (!steps)
		return rosa_fail(err, ROSA_EINVAL, "0 steps; push at least one");
	if (stride && stride < steps)
		return rosa_fail(err, ROSA_EINVAL, "stride %zu is less than the %zu steps of a row", stride, steps);
	if (steps > ROSA_MAX_STEPS - stream->plan.done)
		return rosa_fail(err, ROSA_EINVAL, "%zu steps after %zu; a stream holds at most %zu", steps,
				 stream->plan.done, ROSA_MAX_STEPS);
	return ROSA_OK;
}

/* Take the steps of the plan and answer them on the device. */
static rosa_status search(rosa_cuda_stream *stream, void *queue, struct cuda_outcome *outcome, rosa_error *err)
{
	const rosa_cuda *cuda = stream->cuda;
	struct search_plan *const plan = &stream->plan;
	rosa_status status = cuda->table->start(cuda->device, plan, queue, err);

	if (!status && plan->done + plan->steps > plan->room)
		status = grow(stream, plan->done + plan->steps, queue, err);
	if (status)
		return status;
	plan_lay_out(plan);
	plan->build = !stream->built;
	stream->built = false;
	status = block_reserve(cuda, &stream->scratch, plan->routes * plan->scratch_bytes, err);
	plan->scratches = stream->scratch.memory;
	if (!status && plan->build)
		status = block_reserve(cuda, &stream->index, (plan->routes << plan->slot_bits) * sizeof(uint32_t), err);
	plan->counts = stream->index.memory;
	if (!status)
		status = cuda->table->take(cuda->device, plan, queue, err);
	if (!status && plan->build)
		status = lay_out_indexes(stream, queue, err);
	if (!status)
		status = cuda->table->serve(cuda->device, plan, queue, outcome, err);
	if (status)
		return status;
	status = cuda_check_symbols(plan, outcome, err);
	stream->built = !status || !plan->build;
	return status;
}

static rosa_status push(rosa_cuda_stream *stream, void *queue, rosa_error *err)
{
	struct search_plan *const plan = &stream->plan;
	struct cuda_outcome outcome;
	size_t count = 0;
	rosa_status status = search(stream, queue, &outcome, err);

	if (status)
		return status;
	for (size_t r = 0; r < plan->routes; r++)
		count += outcome.given_up[r] != 0;
	if (count)
		status = take_over(stream, outcome.given_up, count, queue, err);
	stream->cuda->milliseconds = (double)outcome.milliseconds;
	stream->cuda->handed = 0;
	for (const struct handed *group = stream->handed; group && !status; group = group->next) {
		status = push_group(stream, group, queue, err);
		stream->cuda->handed += group->count;
	}
	plan->done += plan->steps;
	stream->broken = status != ROSA_OK;
	return status;
}

rosa_status rosa_cuda_stream_push_device(rosa_cuda_stream *stream, size_t steps, const void *query, const void *key,
					 size_t stride, int32_t *tau, int32_t *length, void *queue, rosa_error *err)
{
	const rosa_status status = check_push(stream, steps, query, key, stride, tau, err);

	if (status)
		return status;
	stream->plan.steps = steps;
	stream->plan.stride = stride ? stride : steps;
	stream->plan.query = query;
	stream->plan.key = key;
	stream->plan.tau = tau;
	stream->plan.length = length;
	return push(stream, queue, err);
}

rosa_status rosa_cuda_stream_push(rosa_cuda_stream *stream, size_t steps, const void *query, const void *key,
				  size_t stride, int32_t *tau, int32_t *length, rosa_error *err)
{
	rosa_status status = check_push(stream, steps, query, key, stride, tau, err);
	const struct cuda_table *table;
	struct cuda_device *device;
	size_t routes, symbols, numbers, step = sizeof(int32_t);
	char *piece;

	if (status)
		return status;
	table = stream->cuda->table;
	device = stream->cuda->device;
	routes = stream->plan.routes;
	stride = stride ? stride : steps;
	symbols = steps * symbol_size(stream->plan.bits);
	numbers = steps * step;
	status = block_reserve(stream->cuda, &stream->piece, 2 * routes * (symbols + numbers), err);
	if (status)
		return status;
	/* results first: they are the wider numbers */
	piece = stream->piece.memory;
	stream->plan.steps = stream->plan.stride = steps;
	stream->plan.tau = (void *)piece;
	stream->plan.length = length ? (void *)(piece + routes * numbers) : NULL;
	stream->plan.query = piece + 2 * routes * numbers;
	stream->plan.key = piece + 2 * routes * numbers + routes * symbols;
	status = table->copy_rows(device, (char *)stream->plan.query, symbols, query,
				  stride * symbol_size(stream->plan.bits), symbols, routes, NULL, err);
	if (!status)
		status = table->copy_rows(device, (char *)stream->plan.key, symbols, key,
					  stride * symbol_size(stream->plan.bits), symbols, routes, NULL, err);
	if (!status)
		status = push(stream, NULL, err);
	if (!status)
		status =
		    table->copy_rows(device, tau, stride * step, stream->plan.tau, numbers, numbers, routes, NULL, err);
	if (!status && length)
		status = table->copy_rows(device, length, stride * step, stream->plan.length, numbers, numbers, routes,
					  NULL, err);
	return status;
}

rosa_status rosa_cuda_stream_describe(const rosa_cuda_stream *stream, rosa_stream_info *info, rosa_error *err)
{
	struct search_state *states;
	rosa_stream_info full;
	rosa_status status = stream_info_check(stream, info, err);

	if (status)
		return status;
	full = (rosa_stream_info){
	    .size = info->size,
	    .routes = stream->plan.routes,
	    .steps = stream->plan.done,
	    .bits = (int)stream->plan.bits,
	    .policy = stream->plan.policy,
	    .fold = stream->plan.fold,
	    .max_match = stream->plan.max_match == UINT32_MAX ? 0 : stream->plan.max_match,
	    .bytes = stream->history.bytes + stream->states.bytes + stream->index.bytes + stream->scratch.bytes +
		     stream->piece.bytes,
	    .delay = stream->plan.delay,
	};
	status = get_states(stream, NULL, &states, err);
	if (status)
		return status;
	for (size_t r = 0; r < stream->plan.routes; r++) {
		full.key_runs += states[r].gone ? 0 : states[r].key_runs;
		full.query_runs += states[r].gone ? 0 : states[r].query_runs;
	}
	memory_free(&stream->options.allocator, states);
	for (const struct handed *group = stream->handed; group && !status; group = group->next) {
		rosa_stream_info part = {.size = sizeof(part)};

		status = rosa_stream_describe(group->stream, &part, err);
		full.key_runs += part.key_runs;
		full.query_runs += part.query_runs;
		full.bytes += part.bytes;
		full.ordered += group->count;
	}
	if (!status)
		memcpy(info, &full, info->size < sizeof(full) ? info->size : sizeof(full));
	return status;
}
