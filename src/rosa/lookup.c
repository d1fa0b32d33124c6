/* Destinations of whole sequences, and what stands there. */
#include "rosa/lookup.h"
#include "backend/backend.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "rosa/destinations.h"

#include <stdatomic.h>

static rosa_status reserve(const rosa_options *options, void **block, size_t *have, size_t need, const char *what,
			   size_t steps, rosa_error *err)
{
	void *grown;

	if (need <= *have)
		return ROSA_OK;
	memory_free(&options->allocator, *block);
	*block = NULL;
	*have = 0;
	grown = memory_resize(&options->allocator, NULL, need);
	if (!grown)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the %s of %zu steps", what, steps);
	*block = grown;
	*have = need;
	return ROSA_OK;
}

rosa_status lookup_reserve(const rosa_options *options, const struct lookup_shape *shape, struct lookup *lookup,
			   rosa_error *err)
{
	return reserve(options, &lookup->read, &lookup->read_bytes,
		       shape->count * shape->routes * shape->steps * (size_t)rosa_width(shape->steps), "destinations",
		       shape->steps, err);
}

void lookup_free(const rosa_options *options, struct lookup *lookup)
{
	memory_free(&options->allocator, lookup->read);
	memory_free(&options->allocator, lookup->flips);
	*lookup = (struct lookup){0};
}

rosa_status lookup_find(const rosa_options *options, const rosa_learning *learning, const uint64_t *seeds,
			const struct lookup_shape *shape, const uint16_t *query, const uint16_t *key,
			struct lookup *lookup, rosa_error *err)
{
	const size_t steps = shape->steps, width = (size_t)rosa_width(steps);
	const size_t row_bytes = (size_t)(options->bits + 1) * width;
	const bool flips = learning && learning->qk_grad == ROSA_QK_FLIPS;
	const bool draws = learning && (learning->explore > 0 || (flips && learning->flip_share < 1));
	const bool by_sequence = draws && seeds;
	const size_t calls = by_sequence ? shape->count : 1, routes = shape->count / calls * shape->routes;
	rosa_learning mine = learning ? *learning : (rosa_learning)ROSA_LEARNING_INIT;
	rosa_status status = ROSA_OK;
	char *tables;

	if (flips)
		status =
		    reserve(options, &lookup->flips, &lookup->flips_bytes,
			    rosa_count_runs(shape->count * shape->routes, steps, query, options->bits, options->fold) *
				row_bytes,
			    "counterfactual tables", steps, err);
	tables = lookup->flips;
	for (size_t i = 0; i < calls && status == ROSA_OK; i++) {
		const size_t at = i * routes * steps;

		if (by_sequence)
			mine.seed = seeds[i];
		status = rosa_find(options, learning ? &mine : NULL, routes, steps, query + at, key + at,
				   (char *)lookup->read + at * width, NULL, tables, err);
		if (flips && i + 1 < calls)
			tables += rosa_count_runs(routes, steps, query + at, options->bits, options->fold) * row_bytes;
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------- values -- */

#define BLOCK 256 /* destinations widened at once */

struct gathering {
	size_t steps, value_steps;
	int width;
	const void *read;
	const uint16_t *value;
	uint32_t *found;
	atomic_bool broken;
};

static void gather_row(void *context, size_t row, unsigned worker)
{
	struct gathering *gathering = context;
	const size_t steps = gathering->steps;
	const uint16_t *value = gathering->value + row * gathering->value_steps;
	uint32_t *found = gathering->found + row * steps;
	int32_t tau[BLOCK];
	bool good = true;

	(void)worker;
	for (size_t first = 0; first < steps; first += BLOCK) {
		const size_t count = steps - first < BLOCK ? steps - first : BLOCK;

		destinations_load(tau, gathering->read, row * steps + first, count, gathering->width);
		for (size_t i = 0; i < count; i++) {
			const bool there = (uint32_t)tau[i] < gathering->value_steps;

			found[first + i] = there ? BACKEND_FOUND | value[tau[i]] : 0;
			good &= there || tau[i] == -1;
		}
	}
	if (!good)
		atomic_store(&gathering->broken, true);
}

bool lookup_gather(struct pool *pool, size_t rows, size_t steps, const void *read, const uint16_t *value,
		   size_t value_steps, uint32_t *found)
{
	struct gathering gathering = {.steps = steps,
				      .value_steps = value_steps,
				      .width = rosa_width(value_steps),
				      .read = read,
				      .value = value,
				      .found = found};

	pool_run(pool, rows, gather_row, &gathering, NULL);
	return !atomic_load(&gathering.broken);
}
