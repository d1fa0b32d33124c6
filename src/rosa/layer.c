/* The ROSA layer, forward and backward. */
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
		   const struct rosa_rows *x, uint16_t *const symbols[3])
{
	const float *rows[3] = {x->q, x->k, x->v};

	for (int i = 0; i < 3; i++)
		if (i != 1 || !layer_shared(weights))
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

	for (size_t l = 0; l < ROSA_GAINS; l++)
		by_length[l] = weights->gain ? weights->scale * weights->gain[row * ROSA_GAINS + l] : weights->scale;
	for (size_t t = first; t < first + count; t++) {
		weight[t] = 0;
		if (tau[t] < 0)
			continue;
		weight[t] = by_length[length[t] < ROSA_GAINS ? length[t] : ROSA_GAINS - 1];
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

void layer_read_found(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps,
		      const uint32_t *found, float *y)
{
	setup->backend->ops->read_found(setup->backend, steps, setup->channels, setup->options.bits, found, steps,
					weights->e0, weights->e1, y);
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

/* ----------------------------------------------------------------------------------------------- whole sequences -- */

static struct lookup_shape shape_of(const struct rosa_setup *setup, const struct rosa_batch *batch)
{
	return (struct lookup_shape){batch->count, setup->routes, batch->steps};
}

/* batch->y from the symbols of v and the destinations */
static void read_batch(const struct rosa_setup *setup, const struct rosa_weights *weights,
		       const struct rosa_batch *batch, const struct lookup *lookup)
{
	const size_t cells = setup->routes * batch->steps, numbers = setup->channels * batch->steps;

	lookup_gather(pool_for(&setup->options, 0), batch->count * setup->routes, batch->steps, lookup->read,
		      batch->symbols[2], batch->steps, batch->found);
	for (size_t b = 0; b < batch->count; b++)
		layer_read_found(setup, weights, batch->steps, batch->found + b * cells, batch->y + b * numbers);
}

rosa_status layer_retrieve(const struct rosa_setup *setup, const struct rosa_weights *weights,
			   const struct rosa_batch *batch, const rosa_learning *learning, const struct rosa_rows *x,
			   struct lookup *lookup, rosa_error *err)
{
	const size_t cells = setup->routes * batch->steps;
	const struct lookup_shape shape = shape_of(setup, batch);
	rosa_status status;

	for (size_t b = 0; b < batch->count; b++) {
		uint16_t *const symbols[3] = {batch->symbols[0] + b * cells, batch->symbols[1] + b * cells,
					      batch->symbols[2] + b * cells};

		layer_symbols(setup, weights, batch->steps, b * batch->steps, x, symbols);
	}
	status = lookup_find(&setup->options, learning, batch->seeds, &shape, batch->symbols[0],
			     batch->symbols[layer_shared(weights) ? 0 : 1], lookup, err);
	if (status == ROSA_OK)
		read_batch(setup, weights, batch, lookup);
	return status;
}

void layer_reread(const struct rosa_setup *setup, const struct rosa_weights *weights, const struct rosa_batch *batch,
		  const struct rosa_rows *x, const struct lookup *lookup)
{
	const size_t cells = setup->routes * batch->steps, numbers = setup->channels * batch->steps;

	for (size_t b = 0; b < batch->count; b++)
		setup->backend->ops->symbols(setup->backend, batch->steps, setup->channels, setup->options.bits,
					     x->v + b * numbers, batch->symbols[2] + b * cells, batch->steps);
	read_batch(setup, weights, batch, lookup);
}

/* ------------------------------------------------------------------------------------------------------ backward -- */

/* From gx, the gradient of a projection, to that of its weight and of U. */
static void project_back(const struct rosa_setup *setup, size_t rows, const struct matrix *weight, const float *u,
			 const float *gx, float *gw, float *gu)
{
	const struct training_ops *training = setup->backend->ops->training;

	if (gu)
		training->multiply_back(setup->backend, rows, weight, gx, true, gu);
	if (gw)
		training->multiply_grad(setup->backend, rows, setup->channels, setup->channels, u, gx, gw);
}

rosa_status layer_backward(const struct rosa_setup *setup, const struct rosa_weights *weights,
			   const struct rosa_batch *batch, const rosa_learning *learning, const struct rosa_rows *x,
			   const struct lookup *lookup, const float *u, const float *ginj, const struct rosa_back *back,
			   const struct rosa_grads *grads, float *gu, rosa_error *err)
{
	struct backend *backend = setup->backend;
	const struct training_ops *training = backend->ops->training;
	const size_t rows = batch->count * batch->steps, channels = setup->channels;
	const bool shared = layer_shared(weights), learns = learning->qk_grad != ROSA_QK_NONE;
	const bool q = learns && (gu || grads->q), k = learns && (gu || (shared ? grads->q : grads->k));
	const rosa_read_pass pass = {.size = sizeof(pass),
				     .dtype = ROSA_FLOAT32,
				     .batch = batch->count,
				     .steps = batch->steps,
				     .channels = channels,
				     .q = x->q,
				     .k = shared ? x->q : x->k,
				     .v = x->v,
				     .e0 = weights->e0,
				     .e1 = weights->e1,
				     .read = lookup->read,
				     .flips = lookup->flips,
				     .gy = back->gy,
				     .gq = q ? back->gq : NULL,
				     .gk = k ? back->gk : NULL,
				     .gv = gu || grads->v ? back->gv : NULL,
				     .ge0 = grads->e0 ? back->ge0 : NULL,
				     .ge1 = grads->e1 ? back->ge1 : NULL};
	rosa_status status;

	training->multiply_back(backend, rows, &weights->out, ginj, false, back->gy);
	status = rosa_read_backward(&setup->options, learning, &pass, err);
	if (status != ROSA_OK)
		return status;
	if (grads->out)
		training->multiply_grad(backend, rows, channels, channels, batch->y, ginj, grads->out);
	if (grads->e0)
		backend->ops->add(backend, channels, back->ge0, grads->e0);
	if (grads->e1)
		backend->ops->add(backend, channels, back->ge1, grads->e1);
	if (q && shared)
		backend->ops->add(backend, rows * channels, back->gk, back->gq);
	if (q)
		project_back(setup, rows, &weights->q, u, back->gq, grads->q, gu);
	if (k && !shared)
		project_back(setup, rows, &weights->k, u, back->gk, grads->k, gu);
	if (pass.gv)
		project_back(setup, rows, &weights->v, u, back->gv, grads->v, gu);
	return ROSA_OK;
}
