/*
 * The sources of a network's adapters, over whole sequences.
 *
 * The sources `tokens` and `embeddings` depend only on token ids and are looked up before the first layer runs. The q
 * and k of `layer N` are looked up when layer N has computed them. They are not kept in the tapes: the layers above
 * read them again in the backward pass, when a tape that all layers share has been overwritten. Their gradients are
 * summed over the layers that read them, and projected when the backward pass reaches layer N.
 */
#include "train/network_parts.h"

#include "base/draw.h"
#include "base/status.h"
#include "retrieval/symbol_array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool network_has_own(const network *n)
{
	for (size_t i = 0; i < n->source_count; i++)
		if (n->sources[i].is.kind == SOURCE_OWN)
			return true;
	return false;
}

/* ------------------------------------------------------------------------------------------------------- making -- */

rosa_status network_sources_new(network *n, rosa_error *err)
{
	const struct adapter_options *options = &n->options.adapter;
	const struct model_config *c = &n->config;
	rosa_options own = adapter_options_retrieval(options);
	rosa_status status = ROSA_OK;

	own.workers = n->workers;
	n->rosa = layer_setup(n->backend, n->training->multiply, c->width, &own);
	n->source_count = options->source.count;
	for (size_t i = 0; i < n->source_count && status == ROSA_OK; i++) {
		struct network_source *source = &n->sources[i];

		source->is = options->source.all[i];
		source->options = adapter_source_retrieval(options, i, c->vocabulary);
		source->options.workers = n->workers;
		source->routes = adapter_source_routes(options, i, c->width);
		source->links = adapter_source_links(options, i, c->layers);
		if (source->is.kind == SOURCE_EMBEDDINGS) {
			n->embedding_tensor = (struct tensor){.format = FORMAT_F32,
							      .dims = 2,
							      .shape = {c->vocabulary, c->width},
							      .data = n->embedding.value};
			status = token_symbols_new(&n->token_symbols, &n->embedding_tensor, (int)options->bits,
						   options->source_seed, err);
		}
	}
	return status;
}

void network_sources_free(network *n)
{
	token_symbols_free(&n->token_symbols);
}

rosa_status network_reads_new(network *n, size_t number, rosa_error *err)
{
	const struct adapter_options *options = &n->options.adapter;
	struct network_layer *layer = &n->layers[number];
	const size_t links = adapter_links(options, number);

	layer->routes = calloc(links, sizeof(*layer->routes));
	if (!layer->routes)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the adapter of layer %zu", number);
	layer->rosa.routes = layer->routes;
	layer->rosa.links = 0;
	for (size_t i = 0; i < n->source_count; i++)
		for (size_t link = 0; link < adapter_source_links(options, i, number); link++)
			layer->routes[layer->rosa.links++] = n->sources[i].routes;
	return ROSA_OK;
}

/* ---------------------------------------------------------------------------------------------- room for a batch -- */

static struct lookup_shape shape_of(const network *n, const struct network_source *source)
{
	return (struct lookup_shape){n->count, source->routes, n->steps, source->links, n->options.adapter.gain};
}

bool network_take_lookup(network *n, struct lookup *lookup)
{
	for (size_t i = 0; i < n->source_count; i++) {
		const struct lookup_shape shape = shape_of(n, &n->sources[i]);

		if (n->sources[i].is.kind == SOURCE_OWN)
			return lookup_reserve(&n->rosa.options, &shape, lookup, NULL) == ROSA_OK;
	}
	return true;
}

void network_sources_take(network *n, bool learning, bool *good)
{
	const size_t rows = n->count * n->steps, width = n->config.width;
	const bool shared = n->options.adapter.qk == QK_SHARED;
	struct lookup_shape shapes[SOURCES_MOST];
	bool own = false;

	for (size_t i = 0; i < n->source_count; i++) {
		struct network_source *source = &n->sources[i];

		shapes[i] = shape_of(n, source);
		own |= !source_of_tokens(&source->is);
		if (source->is.kind != SOURCE_OWN)
			*good &= lookup_reserve(&source->options, &shapes[i], &source->lookup, NULL) == ROSA_OK;
		if (source_of_tokens(&source->is)) {
			source->symbols = calloc(rows * source->routes, symbol_size((unsigned)source->options.bits));
			n->bytes += rows * source->routes * symbol_size((unsigned)source->options.bits);
			*good &= source->symbols != NULL;
		}
		if (source->is.kind == SOURCE_LAYER) {
			source->q = network_take(n, rows, width, sizeof(float), good);
			source->k = shared ? NULL : network_take(n, rows, width, sizeof(float), good);
			source->gq = learning ? network_take(n, rows, width, sizeof(float), good) : NULL;
			source->gk = learning ? network_take(n, rows, width, sizeof(float), good) : NULL;
		}
	}
	n->sequences = (struct rosa_batch){.count = n->count, .steps = n->steps};
	n->sequence_memory = (struct scratch){.allocator = &n->rosa.options.allocator};
	layer_batch_take(&n->rosa, n->source_count, shapes, own, &n->sequence_memory, &n->sequences);
	n->sequences.y = network_take(n, rows, width, sizeof(float), good);
	n->sequences.z = n->options.adapter.gate ? network_take(n, rows, 1, sizeof(float), good) : NULL;
	n->sequences.seeds = n->seeds = malloc(n->count * sizeof(*n->seeds));
	*good &= n->seeds && !n->sequence_memory.short_of_memory;
}

void network_sources_release(network *n)
{
	for (size_t i = 0; i < n->source_count; i++) {
		lookup_free(&n->sources[i].options, &n->sources[i].lookup);
		free(n->sources[i].symbols);
		n->sources[i].symbols = NULL;
	}
	scratch_free(&n->sequence_memory);
	free(n->seeds);
	n->seeds = NULL;
	n->sequences = (struct rosa_batch){0};
}

uint64_t network_sources_bytes(const network *n)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < n->source_count; i++)
		bytes += lookup_bytes(&n->sources[i].lookup);
	return bytes;
}

/* ------------------------------------------------------------------------------------------------------- looking -- */

rosa_status network_find_tokens(network *n, const uint32_t *tokens, rosa_error *err)
{
	const size_t rows = n->count * n->steps;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < n->source_count && status == ROSA_OK; i++) {
		struct network_source *source = &n->sources[i];
		const unsigned bits = (unsigned)source->options.bits;

		if (source->is.kind == SOURCE_TOKENS) {
			for (size_t t = 0; t < rows; t++)
				symbol_set(source->symbols, bits, t, tokens[t]);
		} else if (source->is.kind == SOURCE_EMBEDDINGS) {
			/* the embeddings are being trained, so their symbols must be recomputed */
			if (n->parameters.all[n->embedding.index].trained)
				token_symbols_forget(&n->token_symbols);
			for (size_t b = 0; b < n->count; b++)
				token_symbols_get(&n->token_symbols, n->steps, tokens + b * n->steps,
						  (uint16_t *)source->symbols + b * source->routes * n->steps);
		} else {
			continue;
		}
		status =
		    lookup_find(&source->options, NULL, NULL, source->symbols, source->symbols, &source->lookup, err);
	}
	return status;
}

const struct network_source *network_layer_source(const network *n, size_t number)
{
	for (size_t i = 0; i < n->source_count; i++)
		if (n->sources[i].is.kind == SOURCE_LAYER && n->sources[i].is.layer == number)
			return &n->sources[i];
	return NULL;
}

struct rosa_rows network_rows(const network *n, size_t number, const struct layer_tape *tape)
{
	const struct network_source *source = network_layer_source(n, number);

	return source ? (struct rosa_rows){source->q, source->k, tape->rosa.v} : tape->rosa;
}

/* The seed of what a sequence draws in this layer. It depends on the sample's number alone, so that the draws do not
 * depend on what else is in the batch. */
static void set_seeds(network *n, size_t number)
{
	for (size_t i = 0; i < n->count; i++)
		n->seeds[i] = draw_long(n->options.adapter.learning.seed, number, n->numbers ? n->numbers[i] : i);
}

rosa_status network_find_own(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			     rosa_error *err)
{
	const struct network_source *source = network_layer_source(n, number);
	const struct rosa_rows x = network_rows(n, number, tape);

	if (!layer_own(&n->layers[number].rosa))
		return ROSA_OK;
	if (learning)
		set_seeds(n, number);
	return layer_find(&n->rosa, &n->layers[number].rosa, &n->sequences, learning, &x,
			  source ? (struct lookup *)&source->lookup : &tape->lookup, err);
}

size_t network_sources_of(const network *n, size_t number, const struct layer_tape *tape,
			  struct rosa_source from[ROSA_MAX_SOURCES])
{
	size_t count = 0;

	for (size_t i = 0; i < n->source_count; i++) {
		const struct network_source *source = &n->sources[i];

		if (!adapter_source_links(&n->options.adapter, i, number))
			continue;
		/* a layer that provides the q and k of a shared source has no `own` source besides */
		if (source->is.kind == SOURCE_OWN && network_layer_source(n, number))
			source = network_layer_source(n, number);
		from[count] = (struct rosa_source){.lookup = &source->lookup};
		if (source->is.kind == SOURCE_OWN) {
			from[count].lookup = &tape->lookup;
			from[count].q = tape->rosa.q;
			from[count].k = tape->rosa.k;
		} else if (source->is.kind == SOURCE_LAYER && source->is.layer >= n->lowest) {
			from[count].q = source->q;
			from[count].k = source->k;
			from[count].gq = source->gq;
			from[count].gk = source->gk;
		}
		count++;
	}
	return count;
}

void network_clear_sums(network *n)
{
	const size_t numbers = n->count * n->steps * n->config.width;

	for (size_t i = 0; i < n->source_count; i++) {
		if (n->sources[i].gq)
			n->training->clear(n->backend, numbers, n->sources[i].gq);
		if (n->sources[i].gk)
			n->training->clear(n->backend, numbers, n->sources[i].gk);
	}
}

/* -------------------------------------------------------------------------------------------------------- scales -- */

const float *network_scales(const network *n)
{
	return n->scales;
}

bool network_lacks_units(const network *n)
{
	return n->lacks_units;
}

void network_set_scales(network *n, const float *scales)
{
	for (size_t i = 0; i < n->config.layers; i++)
		n->layers[i].rosa.scale = n->scales[i] = scales[i];
	n->lacks_units = false;
}
