/* The ROSA layer, forward. */
#include "rosa/layer.h"
#include "base/pool.h"

#include <string.h>

struct rosa_setup layer_setup(struct backend *backend, backend_multiply *multiply, size_t channels,
			      const rosa_options *options)
{
	return (struct rosa_setup){.backend = backend,
				   .multiply = multiply,
				   .channels = channels,
				   .routes = channels / (size_t)options->bits,
				   .options = *options};
}

bool layer_shared(const struct rosa_weights *weights)
{
	return weights->q.data == weights->k.data;
}

bool layer_own(const struct rosa_weights *weights)
{
	return weights->k.data != NULL;
}

/* ------------------------------------------------------------------------------------------------------- forward -- */

size_t layer_projections(const struct rosa_weights *weights, const struct rosa_rows *x, struct product *products)
{
	size_t count = 0;

	if (layer_own(weights))
		products[count++] = (struct product){&weights->q, x->q, false};
	if (!layer_shared(weights))
		products[count++] = (struct product){&weights->k, x->k, false};
	products[count++] = (struct product){&weights->v, x->v, false};
	return count;
}

void layer_symbols(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps, size_t first,
		   const struct rosa_rows *x, uint16_t *const symbols[2])
{
	const float *rows[2] = {x->q, x->k};

	for (int i = 0; i < (layer_shared(weights) ? 1 : 2); i++)
		setup->backend->ops->symbols(setup->backend, steps, setup->channels, setup->options.bits,
					     rows[i] + first * setup->channels, symbols[i], steps);
}

size_t layer_room_bits(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps)
{
	return weights->links * steps * bit_words(setup->channels);
}

static size_t gain_rows(const struct rosa_weights *weights)
{
	size_t rows = 0;

	for (size_t i = 0; i < weights->links; i++)
		rows += weights->routes[i];
	return rows;
}

size_t layer_room_weights(const struct rosa_weights *weights, size_t steps)
{
	return gain_rows(weights) * steps;
}

/* to |= bits first .. first + count - 1 of a row */
static inline void copy_bits(uint64_t *to, const uint64_t *from, size_t first, size_t count)
{
	const size_t end = first + count, last = (end - 1) / 64;

	for (size_t w = first / 64; w <= last; w++) {
		uint64_t mask = UINT64_MAX;

		if (w == first / 64)
			mask <<= first % 64;
		if (w == last)
			mask &= UINT64_MAX >> (63 - (end - 1) % 64);
		to[w] |= from[w] & mask;
	}
}

#define GATHER_STEPS ((size_t)64)    /* gathered by one piece of work */
#define WORTH_IT     ((size_t)16384) /* places from which on waking other threads pays */

struct gathering {
	const struct rosa_setup *setup;
	const struct rosa_weights *weights;
	const struct places *const *places;
	size_t sources, steps;
	const struct value_rows *values;
	const struct rosa_room *room;
};

/* One route of one read. `row` is its row of gain and weights, `c` its first channel of `width`. */
static void gather_route(const struct gathering *all, const struct places *places, size_t at, size_t link, size_t row,
			 size_t c, size_t width, size_t first, size_t count)
{
	const struct rosa_weights *weights = all->weights;
	const int32_t *tau = places->tau + at * all->steps;
	const uint8_t *length = places->length + at * all->steps;
	const size_t words = all->values->words;
	uint64_t *bits = all->room->bits + link * all->steps * words;
	float *weight = all->room->weight + row * all->steps, by_length[ROSA_GAINS];

	strength_table(weights->gain, weights->scale, row, by_length);
	for (size_t t = first; t < first + count; t++) {
		weight[t] = 0;
		if (tau[t] < 0)
			continue;
		weight[t] = by_length[weights->gain ? gain_column(length[t]) : 0];
		copy_bits(bits + t * words, value_row(all->values, (size_t)tau[t]), c, width);
	}
}

static void gather_steps(void *context, size_t piece, unsigned worker)
{
	const struct gathering *all = context;
	const size_t words = all->values->words, first = piece * GATHER_STEPS, left = all->steps - first;
	const size_t count = left < GATHER_STEPS ? left : GATHER_STEPS;
	size_t link = 0, row = 0;

	(void)worker;
	for (size_t s = 0; s < all->sources; s++) {
		const struct places *places = all->places[s];
		const size_t width = all->setup->channels / places->routes;

		for (size_t i = 0; i < places->links; i++, link++) {
			memset(all->room->bits + (link * all->steps + first) * words, 0,
			       count * words * sizeof(uint64_t));
			for (size_t r = 0; r < places->routes; r++, row++)
				gather_route(all, places, i * places->routes + r, link, row, r * width, width, first,
					     count);
		}
	}
}

struct reads layer_gather(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t sources,
			  const struct places *const *places, const struct value_rows *values,
			  const struct rosa_room *room)
{
	struct gathering all = {setup, weights, places, sources, places[0]->steps, values, room};
	const size_t pieces = (all.steps + GATHER_STEPS - 1) / GATHER_STEPS;

	if (gain_rows(weights) * all.steps >= WORTH_IT)
		pool_run(pool_for(&setup->options, 0), pieces, gather_steps, &all, NULL);
	else
		for (size_t i = 0; i < pieces; i++)
			gather_steps(&all, i, 0);
	return (struct reads){weights->links, weights->routes, room->bits, room->weight};
}

void layer_read(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps,
		const struct reads *reads, const float *u, float *z, float *y)
{
	const struct backend_ops *ops = setup->backend->ops;

	ops->read(setup->backend, steps, setup->channels, reads, weights->e0, weights->e1, y);
	if (weights->gate_w)
		ops->gate(setup->backend, steps, setup->channels, u, weights->gate_w, weights->gate_b, z, y);
}

void layer_inject(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *y,
		  bool add, float *inj)
{
	const struct product product = {&weights->out, inj, add};

	setup->multiply(setup->backend, rows, y, 1, &product);
}

void layer_mix(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *h,
	       const float *inj, float *mix)
{
	setup->backend->ops->mix(setup->backend, rows, setup->channels, weights->a0, h, inj, mix);
}
