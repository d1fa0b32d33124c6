/*
 * The read-out alone: from destinations and value symbols to y.
 *
 * It runs the backend's `read`, as the layer does. That writes float32; for bfloat16 it is done some steps at a time,
 * and these are rounded. y is e0, e1 or 0, so rounding y and rounding e0 and e1 beforehand are the same.
 */
#include "backend/convert.h"
#include "backend/cpu_parts.h"
#include "base/status.h"
#include "retrieval/rules.h"
#include "rosa/arguments.h"
#include "rosa/destinations.h"
#include "rosa/scratch.h"

#include <stdatomic.h>
#include <string.h>

#define PIECE ((size_t)256)  /* steps gathered by one piece of work */
#define BLOCK ((size_t)2048) /* steps that are rounded at a time */

/* What `count` steps of one batch entry read. */
struct gathering {
	size_t steps, value_steps, routes, bits, words;
	int width; /* of a destination */
	const void *read;
	const uint16_t *value; /* of the entry, [routes][value_steps] */
	size_t first, count;   /* first: the destination of route 0 at the first of these steps */
	uint64_t *to;          /* [count][words] */
	float *weight;         /* [routes][count]: 1, or 0 where nothing was found */
	atomic_bool broken;
};

static void gather_piece(void *context, size_t piece, unsigned worker)
{
	struct gathering *all = context;
	const size_t first = piece * PIECE, count = all->count - first < PIECE ? all->count - first : PIECE;
	int32_t tau[PIECE];
	bool good = true;

	(void)worker;
	memset(all->to + first * all->words, 0, count * all->words * sizeof(*all->to));
	for (size_t r = 0; r < all->routes; r++) {
		const uint16_t *value = all->value + r * all->value_steps;
		const size_t word = r * all->bits / 64, shift = r * all->bits % 64;

		destinations_load(tau, all->read, all->first + r * all->steps + first, count, all->width);
		for (size_t i = 0; i < count; i++) {
			const bool there = (uint32_t)tau[i] < all->value_steps;
			const uint64_t symbol = there ? value[tau[i]] : 0;
			uint64_t *row = all->to + (first + i) * all->words + word;

			good &= there || tau[i] == -1;
			row[0] |= symbol << shift;
			if (shift + all->bits > 64)
				row[1] |= symbol >> (64 - shift);
			all->weight[r * all->count + first + i] = there;
		}
	}
	if (!good)
		atomic_store(&all->broken, true);
}

/* What rosa_read is given, checked. */
struct call {
	rosa_dtype dtype;
	size_t batch, channels;
	const uint16_t *value;
	const float *e0, *e1;
	char *y;
};

static rosa_status read_all(const struct call *call, const rosa_options *options, struct gathering *all,
			    struct scratch *scratch, rosa_error *err)
{
	const size_t block = call->dtype == ROSA_FLOAT32 || all->steps < BLOCK ? all->steps : BLOCK;
	const size_t bytes = activation_size(call->dtype);
	float *wide = call->dtype == ROSA_FLOAT32 ? NULL : scratch_floats(scratch, block * call->channels);
	struct reads reads = {.links = 1, .routes = &all->routes};
	struct cpu_backend cpu;

	reads.bits = all->to = scratch_take(scratch, block * all->words, sizeof(*all->to));
	reads.weight = all->weight = scratch_floats(scratch, block * all->routes);
	if (scratch->short_of_memory)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to read %zu steps of %zu channels", all->steps,
				 call->channels);
	cpu_backend_borrow(options->workers, &cpu);
	for (size_t b = 0; b < call->batch; b++) {
		all->value = call->value + b * all->routes * all->value_steps;
		for (size_t t = 0; t < all->steps; t += block) {
			char *y = call->y + (b * all->steps + t) * call->channels * bytes;

			all->first = b * all->routes * all->steps + t;
			all->count = all->steps - t < block ? all->steps - t : block;
			pool_run(cpu.pool, (all->count + PIECE - 1) / PIECE, gather_piece, all, NULL);
			cpu.backend.ops->read(&cpu.backend, all->count, call->channels, &reads, call->e0, call->e1,
					      wide ? wide : (float *)(void *)y);
			if (wide)
				cpu_narrow(&cpu, call->dtype, all->count * call->channels, wide, y);
		}
	}
	return ROSA_OK;
}

rosa_status rosa_read(const rosa_options *options, rosa_dtype dtype, size_t batch, size_t steps, size_t channels,
		      const uint16_t *value, size_t value_steps, const void *read, const float *e0, const float *e1,
		      void *y, rosa_error *err)
{
	const struct call call = {dtype, batch, channels, value, e0, e1, y};
	struct gathering all = {.steps = steps, .value_steps = value_steps, .read = read};
	struct route_rules rules;
	rosa_options full;
	struct scratch scratch = {0};
	rosa_workers *own = NULL;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = activations_check(dtype, batch, steps, channels, rules.bits, err);
	if (status)
		return status;
	if (!value || !read || !e0 || !e1 || !y)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL",
				 !value  ? "value"
				 : !read ? "read"
				 : !e0   ? "e0"
				 : !e1   ? "e1"
					 : "y");
	if (!value_steps || value_steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu value steps; there must be 1 to %zu", value_steps,
				 ROSA_MAX_STEPS);
	all.bits = rules.bits;
	all.routes = channels / rules.bits;
	all.words = bit_words(channels);
	all.width = rosa_width(value_steps);
	scratch.allocator = &full.allocator;
	if (!full.workers)
		status = rosa_workers_new(full.threads, &full.allocator, &own, err);
	if (own)
		full.workers = own;
	if (!status)
		status = read_all(&call, &full, &all, &scratch, err);
	rosa_workers_free(own);
	scratch_free(&scratch);
	if (!status && atomic_load(&all.broken))
		status = rosa_fail(err, ROSA_EINVAL, "read has a destination that is not below the %zu value steps",
				   value_steps);
	return status;
}
