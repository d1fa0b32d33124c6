/*
 * The forward and the backward pass of a batch.
 *
 * The forward pass keeps the hidden state before every layer. The backward pass goes through the layers from the last
 * to the first; with recomputation it first runs each layer again from its state, which gives the same bits. It stops
 * at the lowest layer with something trained in it or below it: with a frozen backbone and adapters in the upper layers
 * alone, the rest is skipped.
 *
 * Logits are as wide as the vocabulary, so logits, loss and their gradients are computed for some rows at a time.
 */
#include "train/network_parts.h"

#include "base/status.h"
#include "rosa/destinations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static rosa_status check(const network *n, const struct batch *batch, rosa_error *err)
{
	for (size_t i = 0; i < batch->count * batch->steps; i++) {
		const uint32_t worse = batch->tokens[i] > batch->targets[i] ? batch->tokens[i] : batch->targets[i];

		if (worse >= n->config.vocabulary)
			return rosa_fail(err, ROSA_EINVAL,
					 "token %u of sequence %zu is not below the model's vocabulary of %zu", worse,
					 i / batch->steps, n->config.vocabulary);
	}
	return ROSA_OK;
}

/* Before the first layer: computes the embeddings, and looks up the sources that depend only on token ids. `reads`:
 * what the adapters read. */
static rosa_status begin(network *n, const struct batch *batch, enum past_reads reads, rosa_error *err)
{
	n->numbers = batch->numbers;
	n->sequences.control = (struct past_control){.reads = reads};
	n->ops->embed(n->backend, &n->embedding.matrix, batch->count * batch->steps, batch->tokens, n->inputs[0]);
	if (n->embedded)
		n->ops->rms_norm(n->backend, batch->count * batch->steps, n->config.width, n->inputs[0], NULL,
				 V_NORM_EPS, n->embedded);
	const rosa_status status = network_find_tokens(n, batch->tokens, err);

	return status == ROSA_OK ? network_seen_begin(n, batch->tokens, reads, err) : status;
}

/* The tape of a layer, with its input in place. */
static struct layer_tape *tape_of(network *n, size_t number)
{
	struct layer_tape *tape = &n->tapes[n->tapes_full ? number : 0];

	tape->h = n->inputs[number];
	return tape;
}

/* Passes logits on; `room` is host memory for them. */
static void show_logits(network *n, const struct network_judging *judging, size_t first, size_t rows, float *room)
{
	n->ops->get(n->backend, room, n->logits, rows * n->config.vocabulary * sizeof(*room));
	judging->logits(judging->context, first, rows, room);
}

/* Loss and, with learning, the gradient of the last hidden state in gh. `room`: see show_logits. */
static void head(network *n, const struct batch *batch, float scale, bool learning,
		 const struct network_judging *judging, float *room, struct batch_result *result)
{
	const size_t rows = batch->count * batch->steps, width = n->config.width, vocabulary = n->config.vocabulary;
	float *ghead = learning ? network_grad(n, &n->head) : NULL;
	uint8_t right[NETWORK_LOGITS_ROWS];

	n->ops->rms_norm(n->backend, rows, width, n->inputs[n->config.layers], n->norm.value, n->config.norm_eps, n->u);
	*result = (struct batch_result){0};
	for (size_t first = 0; first < rows; first += NETWORK_LOGITS_ROWS) {
		const size_t left = rows - first, some = left < NETWORK_LOGITS_ROWS ? left : NETWORK_LOGITS_ROWS;
		const struct product logits = {&n->head.matrix, n->logits, false};
		const float *u = n->u + first * width, *weight = batch->weight ? batch->weight + first : NULL;

		n->training->multiply(n->backend, some, u, 1, &logits);
		network_seen_add(n, batch->tokens, first, some, u);
		if (judging->logits)
			show_logits(n, judging, first, some, room);
		result->loss +=
		    n->training->cross_entropy(n->backend, some, vocabulary, n->logits, batch->targets + first, weight,
					       scale, right, judging->losses ? judging->losses + first : NULL);
		for (size_t t = 0; t < some; t++) {
			const float counts = weight ? weight[t] : 1;

			result->weight += (double)counts;
			result->counted += counts != 0;
			result->correct += right[t];
		}
		if (!learning)
			continue;
		n->training->multiply_back(n->backend, some, &n->head.matrix, n->logits, false, n->gu + first * width);
		if (ghead)
			n->training->multiply_grad(n->backend, some, vocabulary, width, u, n->logits, ghead);
		network_seen_back(n, some, u, n->gu + first * width);
	}
	if (!learning)
		return;
	network_seen_finish(n);
	n->training->clear(n->backend, rows * width, n->gh);
	n->training->rms_norm_back(n->backend, rows, width, n->inputs[n->config.layers], n->norm.value,
				   n->config.norm_eps, n->gu, n->scratch_scales, n->gh, network_grad(n, &n->norm));
}

/* The lowest layer that has something trained in it or below it. */
static size_t lowest_trained(const network *n)
{
	size_t number = 0;

	if (n->parameters.all[n->embedding.index].trained)
		return 0;
	while (number < n->config.layers && !n->parameters.all[n->layers[number].q.index].trained &&
	       !(n->layers[number].has_rosa && n->parameters.all[n->layers[number].rosa_v.index].trained))
		number++;
	return number;
}

rosa_status network_learn(network *n, const struct batch *batch, float scale, struct batch_result *result,
			  rosa_error *err)
{
	const rosa_learning *learning = &n->options.adapter.learning;
	const size_t layers = n->config.layers, rows = batch->count * batch->steps;
	rosa_status status = check(n, batch, err);

	if (status == ROSA_OK)
		status = network_reserve(n, batch->count, batch->steps, true, err);
	if (status != ROSA_OK)
		return status;
	n->lowest = lowest_trained(n);
	status = begin(n, batch, READS_FOUND, err);
	for (size_t i = 0; i < layers && status == ROSA_OK; i++)
		status = network_layer_forward(n, i, tape_of(n, i), learning, n->inputs[i + 1], err);
	if (status != ROSA_OK)
		return status;
	head(n, batch, scale, true, &(struct network_judging){0}, NULL, result);
	network_clear_sums(n);
	if (n->gembedded)
		n->training->clear(n->backend, rows * n->config.width, n->gembedded);
	for (size_t i = layers; i-- > n->lowest && status == ROSA_OK;) {
		struct layer_tape *tape = tape_of(n, i);

		/* The tape of the last layer is still valid. The output of a layer is not needed again: it is written
		 * to u. */
		if (!n->tapes_full && i + 1 < layers)
			status = network_layer_forward(n, i, tape, learning, n->u, err);
		if (status == ROSA_OK)
			status = network_layer_backward(n, i, tape, learning, err);
	}
	if (status == ROSA_OK && network_grad(n, &n->embedding) && n->gembedded)
		n->training->rms_norm_back(n->backend, rows, n->config.width, n->inputs[0], NULL, V_NORM_EPS,
					   n->gembedded, n->scratch_scales, n->gh, NULL);
	if (status == ROSA_OK && network_grad(n, &n->embedding))
		n->training->embed_back(n->backend, rows, n->config.width, batch->tokens, n->gh,
					network_grad(n, &n->embedding));
	return status;
}

/* Report what a layer's adapter did to the observer. */
static rosa_status observe(network *n, size_t number, const struct layer_tape *tape, network_observer observer,
			   void *context, rosa_error *err)
{
	const struct rosa_weights *weights = &n->layers[number].rosa;
	uint16_t *const *symbols = n->sequences.symbols;
	struct rosa_source from[ROSA_MAX_SOURCES];
	struct network_view view = {.layer = number, .count = n->count, .steps = n->steps};
	const struct lookup *first;
	int32_t *tau;

	network_sources_of(n, number, tape, from);
	first = from[0].lookup;
	tau = malloc(n->count * first->shape.routes * n->steps * sizeof(*tau));
	if (!tau)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to observe layer %zu", number);
	destinations_load(tau, first->read, 0, n->count * first->shape.routes * n->steps, first->width);
	view.routes = first->shape.routes;
	view.tau = tau;
	if (n->sources[0].is.kind == SOURCE_OWN) {
		view.query = symbols[0];
		view.key = symbols[layer_shared(weights) ? 0 : 1];
	}
	observer(context, &view);
	free(tau);
	return ROSA_OK;
}

rosa_status network_judge(network *n, const struct batch *batch, const struct network_judging *judging,
			  struct batch_result *result, rosa_error *err)
{
	const struct network_judging plain = {0}, *how = judging ? judging : &plain;
	const size_t vocabulary = n->config.vocabulary;
	float *room = NULL;
	rosa_status status = check(n, batch, err);

	if (status == ROSA_OK)
		status = network_reserve(n, batch->count, batch->steps, false, err);
	if (status == ROSA_OK && how->logits && !(room = malloc(NETWORK_LOGITS_ROWS * vocabulary * sizeof(*room))))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for logits over %zu tokens", vocabulary);
	if (status == ROSA_OK)
		status = begin(n, batch, how->reads, err);
	for (size_t i = 0; i < n->config.layers && status == ROSA_OK; i++) {
		struct layer_tape *tape = tape_of(n, i);

		status = network_layer_forward(n, i, tape, NULL, n->inputs[i + 1], err);
		if (status == ROSA_OK && how->observer && n->layers[i].has_rosa)
			status = observe(n, i, tape, how->observer, how->context, err);
	}
	if (status == ROSA_OK)
		head(n, batch, 0, false, how, room, result);
	free(room);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- units -- */

static int compare(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* The median of the rows' root mean squares; `rms` is scratch memory. NaN counts as the least. */
static float median_rms(const float *h, size_t rows, size_t width, float *rms)
{
	for (size_t t = 0; t < rows; t++) {
		double sum = 0;

		for (size_t c = 0; c < width; c++)
			sum += (double)h[t * width + c] * (double)h[t * width + c];
		rms[t] = (float)sqrt(sum / (double)width);
	}
	qsort(rms, rows, sizeof(*rms), compare);
	return rows % 2 ? rms[rows / 2] : (rms[rows / 2 - 1] + rms[rows / 2]) / 2;
}

rosa_status network_measure_units(network *n, const struct batch *batch, rosa_error *err)
{
	const size_t rows = batch->count * batch->steps, width = n->config.width;
	float *rms = malloc(rows * sizeof(*rms)), *h = malloc(rows * width * sizeof(*h));
	rosa_status status = check(n, batch, err);

	if (status == ROSA_OK && (!rms || !h))
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to measure %zu positions", rows);
	if (status == ROSA_OK)
		status = network_reserve(n, batch->count, batch->steps, false, err);
	if (status == ROSA_OK)
		status = begin(n, batch, READS_FOUND, err);
	/* a layer's scale is in use when it runs: the layers above see what it injects, if it begins with something */
	for (size_t i = 0; i < n->config.layers && status == ROSA_OK; i++) {
		n->ops->get(n->backend, h, n->inputs[i], rows * width * sizeof(*h));
		if (n->layers[i].has_rosa)
			n->layers[i].rosa.scale = n->scales[i] =
			    n->options.adapter.units * median_rms(h, rows, width, rms);
		status = network_layer_forward(n, i, tape_of(n, i), NULL, n->inputs[i + 1], err);
	}
	free(rms);
	free(h);
	if (status == ROSA_OK)
		n->lacks_units = false;
	return status;
}
