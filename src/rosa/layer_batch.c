/* The ROSA layer on whole sequences, forward and backward. */
#include "base/draw.h"
#include "base/pool.h"
#include "rosa/layer.h"
#include "rosa/reads_back.h"

/* ------------------------------------------------------------------------------------------------------- forward -- */

void layer_batch_take(const struct rosa_setup *setup, size_t sources, const struct lookup_shape *shapes, bool own,
		      struct scratch *scratch, struct rosa_batch *batch)
{
	const size_t steps = batch->steps, words = bit_words(setup->channels);
	size_t links = 0, rows = 0;

	batch->places = scratch_take(scratch, sources, sizeof(*batch->places));
	for (size_t s = 0; s < sources && batch->places; s++) {
		const size_t cells = shapes[s].links * shapes[s].routes * steps;

		links += shapes[s].links;
		rows += shapes[s].links * shapes[s].routes;
		batch->places[s] =
		    (struct places){.tau = scratch_take(scratch, cells, sizeof(*batch->places[s].tau)),
				    .length = scratch_take(scratch, cells, sizeof(*batch->places[s].length))};
	}
	batch->bits = scratch_take(scratch, steps * words, sizeof(*batch->bits));
	batch->room.bits = scratch_take(scratch, links * steps * words, sizeof(*batch->room.bits));
	batch->room.weight = scratch_floats(scratch, rows * steps);
	for (int i = 0; i < 2; i++)
		batch->symbols[i] =
		    own ? scratch_take(scratch, batch->count * setup->routes * steps, sizeof(*batch->symbols[i]))
			: NULL;
}

rosa_status layer_find(const struct rosa_setup *setup, const struct rosa_weights *weights,
		       const struct rosa_batch *batch, const rosa_learning *learning, const struct rosa_rows *x,
		       struct lookup *lookup, rosa_error *err)
{
	const size_t cells = setup->routes * batch->steps;

	for (size_t b = 0; b < batch->count; b++) {
		uint16_t *const symbols[2] = {batch->symbols[0] + b * cells, batch->symbols[1] + b * cells};

		layer_symbols(setup, weights, batch->steps, b * batch->steps, x, symbols);
	}
	return lookup_find(&setup->options, learning, batch->seeds, batch->symbols[0],
			   batch->symbols[layer_shared(weights) ? 0 : 1], lookup, err);
}

/* What sequence b of the batch found, as a layer gathers it. */
static void load_places(const struct rosa_setup *setup, const struct rosa_batch *batch, size_t sources,
			const struct rosa_source *from, size_t b)
{
	for (size_t s = 0; s < sources; s++) {
		const struct lookup_shape *shape = &from[s].lookup->shape;
		const struct past_control control = {batch->control.reads, draw_long(batch->control.seed, s, b)};
		struct places *places = &batch->places[s];

		places->links = shape->links;
		places->routes = shape->routes;
		places->steps = batch->steps;
		lookup_places(from[s].lookup, b, places);
		places_control(places, control, 0, setup->options.delay);
	}
}

void layer_read_batch(const struct rosa_setup *setup, const struct rosa_weights *weights,
		      const struct rosa_batch *batch, size_t sources, const struct rosa_source *from, const float *v,
		      const float *u)
{
	const size_t steps = batch->steps, numbers = steps * setup->channels;
	const uint64_t *const blocks[] = {batch->bits};
	const struct value_rows values = {blocks, VALUES_WHOLE, bit_words(setup->channels)};
	const struct places *places[ROSA_MAX_SOURCES];

	for (size_t s = 0; s < sources; s++)
		places[s] = &batch->places[s];
	for (size_t b = 0; b < batch->count; b++) {
		struct reads reads;

		load_places(setup, batch, sources, from, b);
		setup->backend->ops->pack(setup->backend, steps, setup->channels, v + b * numbers, batch->bits);
		reads = layer_gather(setup, weights, sources, places, &values, &batch->room);
		layer_read(setup, weights, steps, &reads, u + b * numbers, batch->z ? batch->z + b * steps : NULL,
			   batch->y + b * numbers);
	}
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

void layer_project_back(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *u,
			float *gq, const float *gk, const struct rosa_grads *grads, float *gu)
{
	const bool shared = layer_shared(weights);

	if (gq && shared)
		setup->backend->ops->add(setup->backend, rows * setup->channels, gk, gq);
	if (gq)
		project_back(setup, rows, &weights->q, u, gq, grads->q, gu);
	if (gk && !shared)
		project_back(setup, rows, &weights->k, u, gk, grads->k, gu);
}

/* gy = Wout^T ginj, and behind the gate: batch->z is its factor. */
static void read_gradient(const struct rosa_setup *setup, const struct rosa_weights *weights,
			  const struct rosa_batch *batch, const float *ginj, const struct rosa_back *back, float *gu)
{
	struct backend *backend = setup->backend;
	const size_t rows = batch->count * batch->steps;

	backend->ops->training->multiply_back(backend, rows, &weights->out, ginj, false, back->gy);
	if (weights->gate_w)
		backend->ops->training->gate_back(backend, rows, setup->channels, weights->gate_w, batch->z, batch->y,
						  back->gy, back->ga, gu);
}

struct strengthening {
	const struct lookup *lookup;
	const struct rosa_weights *weights;
	size_t row; /* of gain, of the source's first route */
	size_t channels;
	float *gy;
};

/* One route of one sequence; rows are the sequences' routes. */
static void strengthen_route(void *context, size_t row, unsigned worker)
{
	const struct strengthening *job = context;
	const struct lookup_shape *shape = &job->lookup->shape;
	const size_t route = row % shape->routes, width = job->channels / shape->routes;
	float *gy = job->gy + row / shape->routes * shape->steps * job->channels + route * width;
	const uint8_t *length = shape->lengths ? job->lookup->length + row * shape->steps : NULL;
	float strength[ROSA_GAINS];

	(void)worker;
	strength_table(job->weights->gain, job->weights->scale, job->row + route, strength);
	for (size_t t = 0; t < shape->steps; t++) {
		const float w = strength[job->weights->gain ? gain_column(length[t]) : 0];

		for (size_t c = 0; c < width; c++)
			gy[t * job->channels + c] *= w;
	}
}

/* gy becomes that of the first link of a source: times the strength with which it is read. */
static void strengthen(const struct rosa_setup *setup, const struct rosa_weights *weights, const struct lookup *lookup,
		       size_t row, float *gy)
{
	struct strengthening job = {lookup, weights, row, setup->channels, gy};

	if (weights->gain || weights->scale != 1)
		pool_run(pool_for(&setup->options, 0), lookup->shape.count * lookup->shape.routes, strengthen_route,
			 &job, NULL);
}

/* Everything that is added, once nothing can fail any more; all but q and k. */
static void add_gradients(const struct rosa_setup *setup, const struct rosa_weights *weights,
			  const struct rosa_batch *batch, const float *u, const float *ginj,
			  const struct rosa_back *back, const struct rosa_grads *grads)
{
	struct backend *backend = setup->backend;
	const struct training_ops *training = backend->ops->training;
	const size_t rows = batch->count * batch->steps, channels = setup->channels;

	if (grads->out)
		training->multiply_grad(backend, rows, channels, channels, batch->y, ginj, grads->out);
	if (grads->e0)
		backend->ops->add(backend, weights->links * channels, back->ge0, grads->e0);
	if (grads->e1)
		backend->ops->add(backend, weights->links * channels, back->ge1, grads->e1);
	if (grads->gain)
		backend->ops->add(backend, layer_room_weights(weights, ROSA_GAINS), back->ggain, grads->gain);
	if (grads->gate_w)
		training->multiply_grad(backend, rows, 1, channels, u, back->ga, grads->gate_w);
	if (grads->gate_b)
		training->add_bias_back(backend, rows, 1, back->ga, grads->gate_b);
}

rosa_status layer_backward(const struct rosa_setup *setup, const struct rosa_weights *weights,
			   const struct rosa_batch *batch, const rosa_learning *learning, size_t sources,
			   const struct rosa_source *from, const float *v, const float *u, const float *x,
			   const float *ginj, const struct rosa_back *back, const struct rosa_grads *grads, float *gu,
			   float *gx, rosa_error *err)
{
	struct backend *backend = setup->backend;
	const size_t rows = batch->count * batch->steps, channels = setup->channels;
	const bool shared = layer_shared(weights), learns = learning->qk_grad != ROSA_QK_NONE;
	const struct lookup *lookups[ROSA_MAX_SOURCES];
	const struct reads_pass reads = {.dtype = ROSA_FLOAT32,
					 .batch = batch->count,
					 .steps = batch->steps,
					 .channels = channels,
					 .sources = sources,
					 .lookups = lookups,
					 .v = v,
					 .gy = back->gy,
					 .e0 = weights->e0,
					 .e1 = weights->e1,
					 .gain = weights->gain,
					 .scale = weights->scale,
					 .v_grad = learning->v_grad,
					 .gv = gx || grads->v ? back->gv : NULL,
					 .ge0 = grads->e0 ? back->ge0 : NULL,
					 .ge1 = grads->e1 ? back->ge1 : NULL,
					 .ggain = grads->gain ? back->ggain : NULL};
	float *gq = NULL, *gk = NULL; /* of the layer's own source */
	size_t link = 0, row = 0;
	bool strengthened = false;
	rosa_status status;

	for (size_t s = 0; s < sources; s++)
		lookups[s] = from[s].lookup;
	read_gradient(setup, weights, batch, ginj, back, gu);
	status = backward_pass(&setup->options, learning, &reads, NULL, err);
	for (size_t s = 0; s < sources && status == ROSA_OK; s++) {
		const struct lookup *lookup = lookups[s];
		const bool sums = from[s].gq != NULL;
		const bool q = learns && from[s].q && (sums || gu || grads->q),
			   k = learns && from[s].q && (sums || gu || (shared ? grads->q : grads->k));
		const rosa_read_pass pass = {.size = sizeof(pass),
					     .dtype = ROSA_FLOAT32,
					     .batch = batch->count,
					     .steps = batch->steps,
					     .channels = channels,
					     .q = from[s].q,
					     .k = from[s].k ? from[s].k : from[s].q,
					     .v = v,
					     .e0 = weights->e0 + link * channels,
					     .e1 = weights->e1 + link * channels,
					     .flips = lookup->flips,
					     .gy = back->gy,
					     .gq = q ? back->gq : NULL,
					     .gk = k ? back->gk : NULL};

		if (q || k) {
			if (strengthened)
				read_gradient(setup, weights, batch, ginj, back, NULL);
			strengthen(setup, weights, lookup, row, back->gy);
			strengthened = true;
			status = backward_pass(&setup->options, learning, NULL, &pass, err);
			if (status == ROSA_OK && sums) {
				backend->ops->add(backend, rows * channels, back->gq, from[s].gq);
				backend->ops->add(backend, rows * channels, back->gk, from[s].gk);
			} else {
				gq = pass.gq;
				gk = pass.gk;
			}
		}
		link += lookup->shape.links;
		row += lookup->shape.links * lookup->shape.routes;
	}
	if (status != ROSA_OK)
		return status;
	add_gradients(setup, weights, batch, u, ginj, back, grads);
	layer_project_back(setup, weights, rows, u, gq, gk, grads, gu);
	if (reads.gv)
		project_back(setup, rows, &weights->v, x, back->gv, grads->v, gx);
	return ROSA_OK;
}
