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

static void embed(network *n, const struct batch *batch)
{
	n->ops->embed(n->backend, &n->embedding.matrix, batch->count * batch->steps, batch->tokens, n->inputs[0]);
}

/* The tape of a layer, with its input in place. */
static struct layer_tape *tape_of(network *n, size_t number)
{
	struct layer_tape *tape = &n->tapes[n->tapes_full ? number : 0];

	tape->h = n->inputs[number];
	return tape;
}

/* Loss and, with learning, the gradient of the last hidden state in gh. */
static void head(network *n, const struct batch *batch, float scale, bool learning, struct batch_result *result,
		 uint8_t *correct)
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
		result->loss += n->training->cross_entropy(n->backend, some, vocabulary, n->logits,
							   batch->targets + first, weight, scale, right);
		for (size_t t = 0; t < some; t++) {
			const float counts = weight ? weight[t] : 1;

			result->weight += (double)counts;
			result->counted += counts != 0;
			result->correct += right[t];
		}
		if (correct)
			memcpy(correct + first, right, some);
		if (!learning)
			continue;
		n->training->multiply_back(n->backend, some, &n->head.matrix, n->logits, false, n->gu + first * width);
		if (ghead)
			n->training->multiply_grad(n->backend, some, vocabulary, width, u, n->logits, ghead);
	}
	if (!learning)
		return;
	n->training->clear(n->backend, rows * width, n->gh);
	n->training->rms_norm_back(n->backend, rows, width, n->inputs[n->config.layers], n->norm.value,
				   n->config.norm_eps, n->gu, n->scales, n->gh, network_grad(n, &n->norm));
}

/* The lowest layer that has something trained in it or below it. */
static size_t lowest_trained(const network *n)
{
	size_t number = 0;

	if (n->parameters.all[n->embedding.index].trained)
		return 0;
	while (number < n->config.layers && !n->parameters.all[n->layers[number].q.index].trained &&
	       !(n->layers[number].has_rosa && n->parameters.all[n->layers[number].rosa_k.index].trained))
		number++;
	return number;
}

rosa_status network_learn(network *n, const struct batch *batch, float scale, struct batch_result *result,
			  rosa_error *err)
{
	const rosa_learning *learning = &n->options.adapter.learning;
	const size_t layers = n->config.layers, lowest = lowest_trained(n);
	rosa_status status = check(n, batch, err);

	if (status == ROSA_OK)
		status = network_reserve(n, batch->count, batch->steps, true, err);
	if (status != ROSA_OK)
		return status;
	n->numbers = batch->numbers;
	embed(n, batch);
	for (size_t i = 0; i < layers && status == ROSA_OK; i++)
		status = network_layer_forward(n, i, tape_of(n, i), learning, n->inputs[i + 1], err);
	if (status != ROSA_OK)
		return status;
	head(n, batch, scale, true, result, NULL);
	for (size_t i = layers; i-- > lowest && status == ROSA_OK;) {
		struct layer_tape *tape = tape_of(n, i);

		/* The tape of the last layer is still valid. The output of a layer is not needed again: it is written
		 * to u. */
		if (!n->tapes_full && i + 1 < layers)
			status = network_layer_forward(n, i, tape, learning, n->u, err);
		if (status == ROSA_OK)
			status = network_layer_backward(n, i, tape, learning, err);
	}
	if (status == ROSA_OK && network_grad(n, &n->embedding))
		n->training->embed_back(n->backend, batch->count * batch->steps, n->config.width, batch->tokens, n->gh,
					network_grad(n, &n->embedding));
	return status;
}

/* Report what a layer's adapter did to the observer. */
static void observe(network *n, size_t number, const struct layer_tape *tape, network_observer observer, void *context)
{
	const size_t cells = n->count * n->rosa.routes * n->steps;
	uint16_t *const *symbols = n->sequences.symbols;
	int32_t *tau = (int32_t *)n->sequences.found; /* which has been used */

	destinations_load(tau, tape->lookup.read, 0, cells, rosa_width(n->steps));
	observer(context, number, n->count, n->steps, n->rosa.routes, (int)n->options.adapter.bits, symbols[0],
		 symbols[layer_shared(&n->layers[number].rosa) ? 0 : 1], symbols[2], tau);
}

rosa_status network_judge(network *n, const struct batch *batch, struct batch_result *result, uint8_t *correct,
			  network_observer observer, void *context, rosa_error *err)
{
	rosa_status status = check(n, batch, err);

	if (status == ROSA_OK)
		status = network_reserve(n, batch->count, batch->steps, false, err);
	if (status != ROSA_OK)
		return status;
	embed(n, batch);
	for (size_t i = 0; i < n->config.layers && status == ROSA_OK; i++) {
		struct layer_tape *tape = tape_of(n, i);

		status = network_layer_forward(n, i, tape, NULL, n->inputs[i + 1], err);
		if (status == ROSA_OK && observer && n->layers[i].has_rosa)
			observe(n, i, tape, observer, context);
	}
	if (status == ROSA_OK)
		head(n, batch, 0, false, result, correct);
	return status;
}
