/*
 * A text's past, one block of steps after the other.
 *
 * Within a block the value symbols of a route are neighbours: the look-ups of a route share cache lines.
 */
#include "rosa/past.h"
#include "backend/backend.h"
#include "base/draw.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

rosa_status past_new(struct past *past, size_t routes, const rosa_options *options, rosa_error *err)
{
	memset(past, 0, sizeof(*past));
	past->routes = routes;
	return rosa_stream_new(options, routes, &past->stream, err);
}

void past_free(struct past *past)
{
	rosa_stream_free(past->stream);
	for (size_t i = 0; i < past->block_count; i++)
		free(past->blocks[i]);
	free(past->blocks);
	memset(past, 0, sizeof(*past));
}

/* Room for `steps` steps in all. */
static rosa_status reserve(struct past *past, size_t steps, rosa_error *err)
{
	const size_t need = (steps + PAST_BLOCK - 1) / PAST_BLOCK;

	if (need > past->block_count) {
		uint16_t **blocks = realloc(past->blocks, need * sizeof(*blocks));

		if (!blocks)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the values of %zu steps", steps);
		past->blocks = blocks;
	}
	while (past->block_count < need) {
		uint16_t *block = malloc(past->routes * PAST_BLOCK * sizeof(*block));

		if (!block)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for the values of %zu steps", steps);
		past->blocks[past->block_count++] = block;
	}
	return ROSA_OK;
}

static uint16_t *value_at(const struct past *past, size_t route, size_t step)
{
	return past->blocks[step / PAST_BLOCK] + route * PAST_BLOCK + step % PAST_BLOCK;
}

/* Copy `count` values of a route between the blocks, from step `first` on, and a row. */
static void copy_values(const struct past *past, size_t route, size_t first, size_t count, uint16_t *row, bool in)
{
	while (count) {
		const size_t here = PAST_BLOCK - first % PAST_BLOCK, some = here < count ? here : count;
		uint16_t *kept = value_at(past, route, first);

		memcpy(in ? kept : row, in ? row : kept, some * sizeof(*row));
		first += some;
		row += some;
		count -= some;
	}
}

/* Replaces the destinations of a route, from step `first` on, as a control wants them. */
static void redirect(struct past_control control, size_t route, size_t first, size_t steps, int32_t *tau)
{
	for (size_t i = 0; i < steps; i++) {
		const uint64_t before = first + i; /* earlier steps; where something was found there is one */

		if (control.reads == READS_NOTHING)
			tau[i] = -1;
		else if (control.reads == READS_RANDOM && tau[i] >= 0)
			tau[i] = (int32_t)(draw_long(control.seed, route, before) % before);
	}
}

rosa_status past_find(struct past *past, size_t steps, const uint16_t *q, const uint16_t *k, const uint16_t *v,
		      struct past_control control, uint32_t *found, rosa_error *err)
{
	int32_t *tau = (int32_t *)found; /* each is replaced by what stands there */
	rosa_status status = reserve(past, past->steps + steps, err);

	if (status == ROSA_OK)
		status = rosa_stream_push(past->stream, steps, q, k, steps, tau, NULL, NULL, err);
	if (status != ROSA_OK)
		return status;
	for (size_t r = 0; r < past->routes; r++) {
		copy_values(past, r, past->steps, steps, (uint16_t *)v + r * steps, true);
		redirect(control, r, past->steps, steps, tau + r * steps);
		for (size_t i = r * steps; i < (r + 1) * steps; i++)
			found[i] = tau[i] < 0 ? 0 : BACKEND_FOUND | *value_at(past, r, (size_t)tau[i]);
	}
	past->steps += steps;
	return ROSA_OK;
}

uint64_t past_bytes(const struct past *past)
{
	rosa_stream_info info = {.size = sizeof(info)};

	if (!past->stream || rosa_stream_describe(past->stream, &info, NULL) != ROSA_OK)
		return 0;
	return info.bytes + past->block_count * (sizeof(*past->blocks) + past->routes * PAST_BLOCK * sizeof(uint16_t));
}

void past_values(const struct past *past, size_t route, uint16_t *values)
{
	copy_values(past, route, 0, past->steps, values, false);
}

rosa_status past_restore(struct past *past, rosa_stream *stream, size_t routes, size_t steps, rosa_error *err)
{
	memset(past, 0, sizeof(*past));
	past->stream = stream;
	past->routes = routes;
	past->steps = steps;
	return reserve(past, steps, err);
}

void past_set_values(struct past *past, size_t route, const uint16_t *values)
{
	copy_values(past, route, 0, past->steps, (uint16_t *)values, true);
}
