/* The ROSA layer, forward and backward. */
#include "rosa/layer.h"
#include "base/pool.h"

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

/* ------------------------------------------------------------------------------------------------------- forward -- */

size_t layer_projections(const struct rosa_weights *weights, const struct rosa_rows *x, struct product *products)
{
	size_t count = 0;

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

void layer_read(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps, const uint32_t *found,
		float *y)
{
	setup->backend->ops->read(setup->backend, steps, setup->channels, setup->options.bits, found, steps,
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
		layer_read(setup, weights, batch->steps, batch->found + b * cells, batch->y + b * numbers);
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
