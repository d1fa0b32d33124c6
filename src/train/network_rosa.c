/*
 * The operator inside a network: U to q, k and v, their symbols to destinations, what stands there to y, and inj = Wout
 * y.
 *
 * Products go through the backend. Retrieval and the read-out are the library's own (sections 4 of rosatune.h), which
 * work on ordinary memory; a backend with memory of its own will need its own way here.
 */
#include "train/network_parts.h"

#include "base/draw.h"
#include "base/status.h"

#include <stdlib.h>

rosa_options network_retrieval(const network *n)
{
	rosa_options options = ROSA_OPTIONS_INIT;

	options.bits = n->options.bits;
	options.policy = n->options.policy;
	options.fold = n->options.fold;
	options.max_match = n->options.max_match;
	options.workers = n->workers;
	return options;
}

/* Symbols of q, k and v, [count * routes][steps]. */
static rosa_status pack(network *n, const struct layer_tape *tape, rosa_error *err)
{
	const float *rows[3] = {tape->rosa_q, tape->rosa_k, tape->rosa_v};
	const size_t width = n->config.width, routes = width / (size_t)n->options.bits;

	for (int i = 0; i < 3; i++) {
		for (size_t b = 0; b < n->count; b++) {
			rosa_status status = rosa_pack(ROSA_FLOAT32, rows[i] + b * n->steps * width, 0, n->steps, width,
						       n->options.bits, n->symbols[i] + b * routes * n->steps, 0, err);

			if (status != ROSA_OK)
				return status;
		}
	}
	return ROSA_OK;
}

/* Room for the counterfactual table of the query symbols at hand. */
static rosa_status reserve_flips(network *n, struct layer_tape *tape, const rosa_learning *learning, rosa_error *err)
{
	const size_t routes = n->count * n->config.width / (size_t)n->options.bits;
	size_t need;
	void *grown;

	if (!learning || learning->qk_grad != ROSA_QK_FLIPS)
		return ROSA_OK;
	need = rosa_count_runs(routes, n->steps, n->symbols[0], n->options.fold) * (size_t)(n->options.bits + 1) *
	       (size_t)rosa_width(n->steps);
	if (need <= tape->flips_room)
		return ROSA_OK;
	grown = realloc(tape->flips, need);
	if (!grown)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the counterfactuals of %zu steps", n->steps);
	tape->flips = grown;
	tape->flips_room = need;
	return ROSA_OK;
}

/* Whether lots decide something. */
static bool draws(const rosa_learning *learning)
{
	return learning && (learning->explore > 0 || (learning->qk_grad == ROSA_QK_FLIPS && learning->flip_share < 1));
}

/* What every step reads. The library draws by seed, route and step: where it draws at all, samples are given to it one
 * by one, each with a seed of its own, so that a sample's lots are the same whatever else is in the batch. */
static rosa_status find(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			rosa_error *err)
{
	const rosa_options options = network_retrieval(n);
	const bool one_by_one = draws(learning);
	const size_t pieces = one_by_one ? n->count : 1, width = (size_t)rosa_width(n->steps);
	const size_t routes = n->count / pieces * (n->config.width / (size_t)n->options.bits);
	rosa_learning mine = learning ? *learning : (rosa_learning)ROSA_LEARNING_INIT;
	char *flips = tape->flips;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < pieces && status == ROSA_OK; i++) {
		const size_t at = i * routes * n->steps;
		const uint16_t *query = n->symbols[0] + at;

		if (one_by_one)
			mine.seed = draw_long(n->options.learning.seed, number, n->numbers ? n->numbers[i] : i);
		status = rosa_find(&options, learning ? &mine : NULL, routes, n->steps, query, n->symbols[1] + at,
				   (char *)tape->read + at * width, flips, err);
		if (one_by_one && mine.qk_grad == ROSA_QK_FLIPS)
			flips += rosa_count_runs(routes, n->steps, query, n->options.fold) *
				 (size_t)(n->options.bits + 1) * width;
	}
	return status;
}

rosa_status rosa_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			 const float *u, float *inj, bool add, rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const size_t rows = n->count * n->steps, width = n->config.width;
	const rosa_options options = network_retrieval(n);
	rosa_status status;

	n->training->affine(n->backend, rows, width, width, u, layer->rosa_q.value, false, tape->rosa_q);
	n->training->affine(n->backend, rows, width, width, u, layer->rosa_k.value, false, tape->rosa_k);
	n->training->affine(n->backend, rows, width, width, u, layer->rosa_v.value, false, tape->rosa_v);
	status = pack(n, tape, err);
	if (status == ROSA_OK)
		status = reserve_flips(n, tape, learning, err);
	if (status == ROSA_OK)
		status = find(n, number, tape, learning, err);
	if (status == ROSA_OK)
		status = rosa_read(&options, ROSA_FLOAT32, n->count, n->steps, width, n->symbols[2], n->steps,
				   tape->read, layer->e0.value, layer->e1.value, tape->rosa_y, err);
	if (status == ROSA_OK)
		n->training->affine(n->backend, rows, width, width, tape->rosa_y, layer->rosa_out.value, add, inj);
	return status;
}

/* x (a projection) back: its gradient gx to that of U, and to its weight's. */
static void project_back(network *n, const struct weight *weight, const float *u, const float *gx, float *gu)
{
	const size_t rows = n->count * n->steps, width = n->config.width;
	float *gw = network_grad(n, weight);

	n->training->affine_back(n->backend, rows, width, width, gx, weight->value, true, gu);
	if (gw)
		n->training->affine_grad(n->backend, rows, width, width, u, gx, gw);
}

rosa_status rosa_backward(network *n, size_t number, const struct layer_tape *tape, const rosa_learning *learning,
			  const float *u, const float *ginj, float *gu, rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const size_t rows = n->count * n->steps, width = n->config.width;
	const rosa_options options = network_retrieval(n);
	const struct weight *levels[2] = {&layer->e0, &layer->e1};
	float *gout = network_grad(n, &layer->rosa_out);
	/* The gradients of q, k and v take the places of activations that nobody needs any more. */
	float *gy = tape->rosa_y, *gq = n->gq, *gk = n->gk, *gv = n->gv;
	struct rosa_read_pass pass = {.size = sizeof(pass),
				      .dtype = ROSA_FLOAT32,
				      .batch = n->count,
				      .steps = n->steps,
				      .channels = width,
				      .q = tape->rosa_q,
				      .k = tape->rosa_k,
				      .v = tape->rosa_v,
				      .e0 = layer->e0.value,
				      .e1 = layer->e1.value,
				      .read = tape->read,
				      .flips = tape->flips,
				      .gy = gy,
				      .gq = gq,
				      .gk = gk,
				      .gv = gv,
				      .ge0 = n->gchannels[0],
				      .ge1 = n->gchannels[1]};
	rosa_status status;

	if (gout)
		n->training->affine_grad(n->backend, rows, width, width, tape->rosa_y, ginj, gout);
	n->training->affine_back(n->backend, rows, width, width, ginj, layer->rosa_out.value, false, gy);
	status = rosa_read_backward(&options, learning, &pass, err);
	if (status != ROSA_OK)
		return status;
	for (int i = 0; i < 2; i++)
		if (network_grad(n, levels[i]))
			n->ops->add(n->backend, width, n->gchannels[i], network_grad(n, levels[i]));
	if (learning->qk_grad != ROSA_QK_NONE) {
		project_back(n, &layer->rosa_q, u, gq, gu);
		project_back(n, &layer->rosa_k, u, gk, gu);
	}
	project_back(n, &layer->rosa_v, u, gv, gu);
	return ROSA_OK;
}
