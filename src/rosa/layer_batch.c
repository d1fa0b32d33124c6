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
		      const struct rosa_batch *batch, const struct rosa_inputs *inputs)
{
	const size_t steps = batch->steps, numbers = steps * setup->channels;
	const uint64_t *const blocks[] = {batch->bits};
	const struct value_rows values = {blocks, VALUES_WHOLE, bit_words(setup->channels)};
	const struct places *places[ROSA_MAX_SOURCES];

	for (size_t s = 0; s < inputs->sources; s++)
		places[s] = &batch->places[s];
	for (size_t b = 0; b < batch->count; b++) {
		struct reads reads;

		load_places(setup, batch, inputs->sources, inputs->from, b);
		setup->backend->ops->pack(setup->backend, steps, setup->channels, inputs->v + b * numbers, batch->bits);
		reads = layer_gather(setup, weights, inputs->sources, places, &values, &batch->room);
		layer_read(setup, weights, steps, &reads, inputs->u + b * numbers,
			   batch->z ? batch->z + b * steps : NULL, batch->y + b * numbers);
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

static size_t rows_of(const struct rosa_backward *call)
{
	return call->batch->count * call->batch->steps;
}

/* back->gy: Wout^T ginj, and behind the gate: batch->z is its factor. The gate's own gradient goes to gu. */
static void read_gradient(const struct rosa_backward *call, float *gu)
{
	struct backend *backend = call->setup->backend;
	const struct training_ops *training = backend->ops->training;
	const struct rosa_weights *weights = call->weights;

	training->multiply_back(backend, rows_of(call), &weights->out, call->ginj, false, call->back->gy);
	if (weights->gate_w)
		training->gate_back(backend, rows_of(call), call->setup->channels, weights->gate_w, call->batch->z,
				    call->batch->y, call->back->gy, call->back->ga, gu);
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

/* gy becomes that of the first link of a source: times the strength with which it is read. `row`: of gain, of its first
 * route. */
static void strengthen(const struct rosa_backward *call, const struct lookup *lookup, size_t row)
{
	const struct rosa_weights *weights = call->weights;
	struct strengthening job = {lookup, weights, row, call->setup->channels, call->back->gy};

	if (weights->gain || weights->scale != 1)
		pool_run(pool_for(&call->setup->options, 0), lookup->shape.count * lookup->shape.routes,
			 strengthen_route, &job, NULL);
}

/* Of e0, e1, gain and v: into `back`. */
static rosa_status reads_gradients(const struct rosa_backward *call, bool values, rosa_error *err)
{
	const struct rosa_weights *weights = call->weights;
	const struct rosa_inputs *inputs = call->inputs;
	const struct lookup *lookups[ROSA_MAX_SOURCES];
	const struct reads_pass reads = {.dtype = ROSA_FLOAT32,
					 .batch = call->batch->count,
					 .steps = call->batch->steps,
					 .channels = call->setup->channels,
					 .sources = inputs->sources,
					 .lookups = lookups,
					 .v = inputs->v,
					 .gy = call->back->gy,
					 .e0 = weights->e0,
					 .e1 = weights->e1,
					 .gain = weights->gain,
					 .scale = weights->scale,
					 .v_grad = call->learning->v_grad,
					 .gv = values ? call->back->gv : NULL,
					 .ge0 = call->grads->e0 ? call->back->ge0 : NULL,
					 .ge1 = call->grads->e1 ? call->back->ge1 : NULL,
					 .ggain = call->grads->gain ? call->back->ggain : NULL};

	for (size_t s = 0; s < inputs->sources; s++)
		lookups[s] = inputs->from[s].lookup;
	return backward_pass(&call->setup->options, call->learning, &reads, NULL, err);
}

/* Of q and k of a source, whose reads begin with number `link`: into back->gq and gk. */
static rosa_status source_gradients(const struct rosa_backward *call, const struct rosa_source *from, size_t link,
				    bool q, bool k, rosa_error *err)
{
	const size_t channels = call->setup->channels;
	const rosa_read_pass pass = {.size = sizeof(pass),
				     .dtype = ROSA_FLOAT32,
				     .batch = call->batch->count,
				     .steps = call->batch->steps,
				     .channels = channels,
				     .q = from->q,
				     .k = from->k ? from->k : from->q,
				     .v = call->inputs->v,
				     .e0 = call->weights->e0 + link * channels,
				     .e1 = call->weights->e1 + link * channels,
				     .flips = from->lookup->flips,
				     .gy = call->back->gy,
				     .gq = q ? call->back->gq : NULL,
				     .gk = k ? call->back->gk : NULL};

	return backward_pass(&call->setup->options, call->learning, NULL, &pass, err);
}

/* Of q and k of all sources: into their sums, or, of the layer's own source, into *gq and *gk (NULL: none). */
static rosa_status qk_gradients(const struct rosa_backward *call, float **gq, float **gk, rosa_error *err)
{
	struct backend *backend = call->setup->backend;
	const struct rosa_grads *grads = call->grads;
	const struct rosa_back *back = call->back;
	const size_t numbers = rows_of(call) * call->setup->channels;
	const bool shared = layer_shared(call->weights), learns = call->learning->qk_grad != ROSA_QK_NONE;
	size_t link = 0, row = 0;
	bool strengthened = false;

	*gq = *gk = NULL;
	for (size_t s = 0; s < call->inputs->sources; s++) {
		const struct rosa_source *from = &call->inputs->from[s];
		const struct lookup_shape *shape = &from->lookup->shape;
		const bool sums = from->gq != NULL, any = learns && from->q, q = any && (sums || call->gu || grads->q),
			   k = any && (sums || call->gu || (shared ? grads->q : grads->k));
		rosa_status status = ROSA_OK;

		if (q || k) {
			if (strengthened)
				read_gradient(call, NULL);
			strengthen(call, from->lookup, row);
			strengthened = true;
			status = source_gradients(call, from, link, q, k, err);
		}
		if (status != ROSA_OK)
			return status;
		if (any && sums) {
			backend->ops->add(backend, numbers, back->gq, from->gq);
			backend->ops->add(backend, numbers, back->gk, from->gk);
		} else if (any) {
			*gq = q ? back->gq : NULL;
			*gk = k ? back->gk : NULL;
		}
		link += shape->links;
		row += shape->links * shape->routes;
	}
	return ROSA_OK;
}

/* Everything that is added, once nothing can fail any more; all but q and k. */
static void add_gradients(const struct rosa_backward *call)
{
	const struct rosa_weights *weights = call->weights;
	const struct rosa_back *back = call->back;
	const struct rosa_grads *grads = call->grads;
	struct backend *backend = call->setup->backend;
	const struct training_ops *training = backend->ops->training;
	const size_t rows = rows_of(call), channels = call->setup->channels;

	if (grads->out)
		training->multiply_grad(backend, rows, channels, channels, call->batch->y, call->ginj, grads->out);
	if (grads->e0)
		backend->ops->add(backend, weights->links * channels, back->ge0, grads->e0);
	if (grads->e1)
		backend->ops->add(backend, weights->links * channels, back->ge1, grads->e1);
	if (grads->gain)
		backend->ops->add(backend, layer_room_weights(weights, ROSA_GAINS), back->ggain, grads->gain);
	if (grads->gate_w)
		training->multiply_grad(backend, rows, 1, channels, call->inputs->u, back->ga, grads->gate_w);
	if (grads->gate_b)
		training->add_bias_back(backend, rows, 1, back->ga, grads->gate_b);
}

rosa_status layer_backward(const struct rosa_backward *call, rosa_error *err)
{
	const bool values = call->gx || call->grads->v;
	const size_t rows = rows_of(call);
	float *gq, *gk; /* of the layer's own source */
	rosa_status status;

	read_gradient(call, call->gu);
	status = reads_gradients(call, values, err);
	if (status == ROSA_OK)
		status = qk_gradients(call, &gq, &gk, err);
	if (status != ROSA_OK)
		return status;
	add_gradients(call);
	layer_project_back(call->setup, call->weights, rows, call->inputs->u, gq, gk, call->grads, call->gu);
	if (values)
		project_back(call->setup, rows, &call->weights->v, call->inputs->x, call->back->gv, call->grads->v,
			     call->gx);
	return ROSA_OK;
}
