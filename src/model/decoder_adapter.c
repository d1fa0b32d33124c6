/*
 * The adapter in the decoder: its sources, what a sequence keeps of them, and what a layer reads.
 *
 * A source that layers share has one finder per sequence. Those that need nothing but tokens (`tokens`, `embeddings`)
 * are searched once for all rows of a pass, before the first layer; `layer N` when layer N has made its q and k. Layers
 * then differ only in the values that they read at the places found. The source `own` has a finder per layer, which is
 * searched in that layer.
 *
 * Each row of a pass belongs to one sequence, and all that is done here is done sequence by sequence. So what a row
 * reads does not depend on the rows beside it.
 *
 * Values can wait. With a delay of D no step reads a value that is younger than D steps. So while a text is written
 * token by token, the rows of U (or of embeddings, where values are made of those) are kept, and their values v = U Wv
 * are made for WAITING_ROWS of them at once, which reads the matrix once instead of once per token. The bits are the
 * same, since a row's product does not depend on the rows beside it.
 */
#include "model/decoder_parts.h"

#include "base/status.h"
#include "rosa/strength.h"

#include <stdlib.h>
#include <string.h>

bool source_is_shared(const struct decoder_source *source)
{
	return source->source.kind != SOURCE_OWN;
}

/* ------------------------------------------------------------------------------------------------------ sources -- */

rosa_status decoder_sources_new(decoder *d, rosa_error *err)
{
	struct adapter_options in_use = d->adapter->options;
	const struct adapter_options *options = &in_use;
	const struct model_config *config = &d->checkpoint->config;
	rosa_status status = ROSA_OK;

	in_use.window = d->options.window; /* a delay that follows the window follows the one in use */
	if (adapter_delay(options) && adapter_delay(options) < in_use.window)
		return rosa_fail(
		    err, ROSA_EINVAL,
		    "the adapter's delay is %u, and attention with a window of %zu still sees what it would "
		    "find; use a window of at most %u",
		    adapter_delay(options), d->options.window, adapter_delay(options));
	rosa_options own = adapter_options_retrieval(options);

	own.workers = d->workers;
	d->rosa = layer_setup(d->backend, d->backend->ops->multiply, config->width, &own);
	for (size_t i = 0; i < options->source.count && status == ROSA_OK; i++) {
		struct decoder_source *source = &d->sources[d->source_count++];

		source->source = options->source.all[i];
		source->options = adapter_source_retrieval(options, i, config->vocabulary);
		source->options.workers = d->workers;
		source->routes = adapter_source_routes(options, i, config->width);
		source->links = adapter_source_links(options, i, config->layers);
		if (source->source.kind == SOURCE_EMBEDDINGS)
			status = token_symbols_new(&d->token_symbols, d->checkpoint->embedding, (int)options->bits,
						   options->source_seed, err);
	}
	return status;
}

rosa_status decoder_sources_reserve(decoder *d, rosa_error *err)
{
	const size_t chunk = d->options.chunk;
	struct workspace *work = &d->work;
	size_t symbols = 0, bits = 1, weights = 1;
	bool good = true;

	for (size_t i = 0; i < d->source_count; i++) {
		struct decoder_source *source = &d->sources[i];
		const size_t places = source->links * source->routes;

		source->tau = calloc(chunk, places * sizeof(*source->tau));
		source->length = calloc(chunk, places * sizeof(*source->length));
		good &= source->tau && source->length;
		symbols = source->routes > symbols ? source->routes : symbols;
	}
	for (size_t i = 0; i < d->checkpoint->config.layers; i++) {
		const struct rosa_weights *layer = &d->blocks[i].rosa;

		if (!d->blocks[i].has_rosa)
			continue;
		bits = layer_room_bits(&d->rosa, layer, 1) > bits ? layer_room_bits(&d->rosa, layer, 1) : bits;
		weights = layer_room_weights(layer, 1) > weights ? layer_room_weights(layer, 1) : weights;
	}
	for (int i = 0; i < 2; i++) {
		work->symbols[i] = calloc(chunk, symbols * sizeof(uint32_t));
		good &= work->symbols[i] != NULL;
	}
	work->bits =
	    calloc(chunk > WAITING_ROWS ? chunk : WAITING_ROWS, bit_words(d->rosa.channels) * sizeof(*work->bits));
	work->room.bits = calloc(chunk, bits * sizeof(*work->room.bits));
	work->room.weight = calloc(chunk, weights * sizeof(*work->room.weight));
	if (good && work->bits && work->room.bits && work->room.weight)
		return ROSA_OK;
	return rosa_fail(err, ROSA_ENOMEM, "no memory for what %zu rows read; use a smaller chunk", chunk);
}

void decoder_sources_free(decoder *d)
{
	for (size_t i = 0; i < d->source_count; i++) {
		free(d->sources[i].tau);
		free(d->sources[i].length);
	}
	token_symbols_free(&d->token_symbols);
	free(d->work.symbols[0]);
	free(d->work.symbols[1]);
	free(d->work.bits);
	free(d->work.room.bits);
	free(d->work.room.weight);
}

/* Whether a layer reads a source. */
static bool serves(const struct decoder_source *source, size_t layer)
{
	return layer >= source->source.layer;
}

rosa_status decoder_reads_new(decoder *d, size_t number, rosa_error *err)
{
	const struct adapter_layer *from = &d->adapter->layers[number];
	struct rosa_weights *to = &d->blocks[number].rosa;
	const size_t links = adapter_links(&d->adapter->options, number);
	size_t *routes = calloc(links, sizeof(*routes));
	float *gain = from->gain ? calloc(tensor_numbers(from->gain), sizeof(*gain)) : NULL;

	to->routes = routes;
	to->gain = gain;
	to->scale = from->scale;
	if (!routes || (from->gain && !gain))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the adapter of layer %zu", number);
	for (size_t i = 0; i < d->source_count; i++)
		for (size_t link = 0; serves(&d->sources[i], number) && link < d->sources[i].links; link++)
			routes[to->links++] = d->sources[i].routes;
	if (gain)
		format_widen(from->gain->format, from->gain->data, tensor_numbers(from->gain), gain);
	return ROSA_OK;
}

void decoder_reads_free(struct rosa_weights *weights)
{
	free((size_t *)weights->routes);
	free((float *)weights->gain);
}

/* ---------------------------------------------------------------------------------------------------- sequences -- */

rosa_status sequence_sources_new(sequence *s, rosa_error *err)
{
	const decoder *d = s->decoder;
	const size_t layers = d->checkpoint->config.layers;
	rosa_status status = ROSA_OK;

	s->own = calloc(layers, sizeof(*s->own));
	s->values = calloc(layers, sizeof(*s->values));
	s->waiting = calloc(layers, sizeof(*s->waiting));
	if (!s->own || !s->values || !s->waiting)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	for (size_t i = 0; i < layers; i++) {
		values_init(&s->values[i], d->rosa.channels);
		if (!d->blocks[i].has_rosa || !decoder_values_wait(d, 1))
			continue;
		s->waiting[i].rows = calloc(WAITING_ROWS, d->rosa.channels * sizeof(float));
		if (!s->waiting[i].rows)
			return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	}
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++) {
		const struct decoder_source *source = &d->sources[i];

		if (source_is_shared(source)) {
			status = finder_new(&s->finders[i], &source->options, source->routes, source->links, err);
			continue;
		}
		for (size_t layer = 0; layer < layers && status == ROSA_OK; layer++)
			if (d->blocks[layer].has_rosa)
				status =
				    finder_new(&s->own[layer], &source->options, source->routes, source->links, err);
	}
	return status;
}

void sequence_sources_free(sequence *s)
{
	const size_t layers = s->decoder->checkpoint->config.layers;

	for (size_t i = 0; i < SOURCES_MOST; i++)
		finder_free(&s->finders[i]);
	for (size_t i = 0; s->own && i < layers; i++)
		finder_free(&s->own[i]);
	for (size_t i = 0; s->values && i < layers; i++)
		values_free(&s->values[i]);
	for (size_t i = 0; s->waiting && i < layers; i++)
		free(s->waiting[i].rows);
	free(s->own);
	free(s->values);
	free(s->waiting);
}

/* -------------------------------------------------------------------------------------------------------- a pass -- */

/* The places of a segment's rows, within those of all rows. */
static struct places places_of(const struct decoder_source *source, const struct segment *segment)
{
	const size_t places = source->links * source->routes;

	return (struct places){.links = source->links,
			       .routes = source->routes,
			       .steps = segment->count,
			       .tau = source->tau + segment->row * places,
			       .length = source->length + segment->row * places};
}

/* Random reads of a source are drawn alike in all layers that share it, and by layer where each has its own. */
#define SHARED_SEED ((uint64_t)1 << 32)

static rosa_status find(const struct decoder_source *source, const struct segment *segment, struct finder *finder,
			uint64_t seed, const void *query, const void *key, rosa_error *err)
{
	const struct past_control control = {segment->sequence->reads, seed};
	struct places places = places_of(source, segment);

	return finder_find(finder, segment->count, query, key, control, &places, err);
}

/* What the last token of a segment has found. */
static void keep_last(const struct decoder_source *source, const struct segment *segment)
{
	const struct places places = places_of(source, segment);
	sequence *s = segment->sequence;

	for (size_t link = 0; link < TOKEN_PLACES; link++) {
		const size_t at = (link + 1) * segment->count - 1;

		s->last_tau[link] = link < places.links ? places.tau[at] : -1;
		s->last_length[link] = link < places.links ? places.length[at] : 0;
	}
}

/* The symbols of a segment's tokens, as a source that needs only tokens has them. */
static void token_symbols_of(const struct pass *pass, const struct decoder_source *source,
			     const struct segment *segment, void *symbols)
{
	const uint32_t *tokens = pass->tokens + segment->row;

	if (source->source.kind == SOURCE_EMBEDDINGS) {
		token_symbols_get(&pass->decoder->token_symbols, segment->count, tokens, symbols);
		return;
	}
	for (size_t t = 0; t < segment->count; t++) {
		if (source->options.bits <= 16)
			((uint16_t *)symbols)[t] = (uint16_t)tokens[t];
		else
			((uint32_t *)symbols)[t] = tokens[t];
	}
}

rosa_status decoder_find(const struct pass *pass, rosa_error *err)
{
	const decoder *d = pass->decoder;
	void *symbols = pass->work->symbols[0];
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < d->source_count; i++) {
		const struct decoder_source *source = &d->sources[i];

		for (size_t s = 0; source_of_tokens(&source->source) && s < pass->count && status == ROSA_OK; s++) {
			const struct segment *segment = &pass->segments[s];

			token_symbols_of(pass, source, segment, symbols);
			status = find(source, segment, &segment->sequence->finders[i], SHARED_SEED + i, symbols,
				      symbols, err);
			if (status == ROSA_OK && source->source.kind == SOURCE_TOKENS)
				keep_last(source, segment);
		}
	}
	return status;
}

/* Search the sources that take q and k from this layer. */
static rosa_status find_by_layer(const struct pass *pass, const struct segment *segment, size_t number, rosa_error *err)
{
	const decoder *d = pass->decoder;
	const struct rosa_setup *setup = &d->rosa;
	const bool shared = layer_shared(&d->blocks[number].rosa);
	const float *rows[2] = {pass->work->rosa.q, pass->work->rosa.k};
	void **symbols = pass->work->symbols;
	rosa_status status = ROSA_OK;

	for (int i = 0; i < (shared ? 1 : 2); i++)
		pass->ops->symbols(pass->backend, segment->count, setup->channels, setup->options.bits,
				   rows[i] + segment->row * setup->channels, symbols[i], segment->count);
	for (size_t i = 0; i < d->source_count && status == ROSA_OK; i++) {
		const struct decoder_source *source = &d->sources[i];
		const bool own = source->source.kind == SOURCE_OWN;

		if (own || (source->source.kind == SOURCE_LAYER && source->source.layer == number))
			status = find(source, segment,
				      own ? &segment->sequence->own[number] : &segment->sequence->finders[i],
				      own ? number : SHARED_SEED + i, symbols[0], symbols[shared ? 0 : 1], err);
	}
	return status;
}

/* ------------------------------------------------------------------------------------------------------- values -- */

bool decoder_values_wait(const decoder *d, size_t rows)
{
	/* of WAITING_ROWS rows the first is not read by the last, nor by any between */
	return d->adapter && rows <= WAITING_ROWS && d->rosa.options.delay >= WAITING_ROWS;
}

size_t decoder_projections(const struct pass *pass, size_t number, struct product *products)
{
	const size_t count = layer_projections(&pass->decoder->blocks[number].rosa, &pass->work->rosa, products);

	/* v, the last one, is made of something else than u, or later */
	return pass->values_wait || pass->work->embedded ? count - 1 : count;
}

/* Append the values of rows of v. */
static rosa_status add_values(const decoder *d, struct values *values, size_t rows, const float *v, rosa_error *err)
{
	d->backend->ops->pack(d->backend, rows, d->rosa.channels, v, d->work.bits);
	return values_append(values, rows, d->work.bits, err);
}

/* Make the values of a layer that wait. */
static rosa_status settle(sequence *s, size_t number, rosa_error *err)
{
	const decoder *d = s->decoder;
	struct waiting *waiting = &s->waiting[number];
	const struct workspace *work = &d->work;
	const struct product product = {&d->blocks[number].rosa.v, work->late_v, false};
	rosa_status status;

	if (!waiting->count)
		return ROSA_OK;
	d->backend->ops->put(d->backend, work->late_u, waiting->rows,
			     waiting->count * d->rosa.channels * sizeof(float));
	d->backend->ops->multiply(d->backend, waiting->count, work->late_u, 1, &product);
	status = add_values(d, &s->values[number], waiting->count, work->late_v, err);
	if (status == ROSA_OK)
		waiting->count = 0;
	return status;
}

rosa_status sequence_settle(sequence *s, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; s->waiting && i < s->decoder->checkpoint->config.layers && status == ROSA_OK; i++)
		status = settle(s, i, err);
	return status;
}

uint64_t sequence_waiting_bytes(const sequence *s)
{
	uint64_t bytes = 0;

	for (size_t i = 0; s->waiting && i < s->decoder->checkpoint->config.layers; i++)
		bytes += s->waiting[i].rows ? WAITING_ROWS * s->decoder->rosa.channels * sizeof(float) : 0;
	return bytes;
}

/* The values of a segment's rows: made, or left to wait. Older ones are made first. */
static rosa_status keep_values(const struct pass *pass, const struct segment *segment, size_t number, rosa_error *err)
{
	const size_t width = pass->decoder->rosa.channels, first = segment->row * width;
	const struct workspace *work = pass->work;
	const struct product product = {&pass->decoder->blocks[number].rosa.v, work->rosa.v + first, false};
	sequence *s = segment->sequence;
	struct waiting *waiting = &s->waiting[number];
	rosa_status status = ROSA_OK;

	if (!pass->values_wait || waiting->count + segment->count > WAITING_ROWS)
		status = settle(s, number, err);
	if (status != ROSA_OK)
		return status;
	if (!pass->values_wait && work->embedded)
		pass->ops->multiply(pass->backend, segment->count, work->embedded + first, 1, &product);
	if (!pass->values_wait)
		return add_values(pass->decoder, &s->values[number], segment->count, work->rosa.v + first, err);
	pass->ops->get(pass->backend, waiting->rows + waiting->count * width,
		       (work->embedded ? work->embedded : work->u) + first, segment->count * width * sizeof(float));
	waiting->count += segment->count;
	return ROSA_OK;
}

/* work.rosa_y of a segment's rows, whose places have been found. */
static rosa_status read_values(const struct pass *pass, const struct segment *segment, size_t number, rosa_error *err)
{
	const decoder *d = pass->decoder;
	const struct rosa_weights *weights = &d->blocks[number].rosa;
	const size_t width = d->rosa.channels, first = segment->row * width;
	struct workspace *work = pass->work;
	struct places places[SOURCES_MOST];
	const struct places *list[SOURCES_MOST];
	size_t count = 0;
	rosa_status status = keep_values(pass, segment, number, err);

	if (status != ROSA_OK)
		return status;
	for (size_t i = 0; i < d->source_count; i++) {
		if (!serves(&d->sources[i], number))
			continue;
		places[count] = places_of(&d->sources[i], segment);
		list[count] = &places[count];
		count++;
	}
	const struct value_rows rows = values_rows(&segment->sequence->values[number]);
	const struct reads reads = layer_gather(&d->rosa, weights, count, list, &rows, &work->room);

	layer_read(&d->rosa, weights, segment->count, &reads, work->u + first, work->rosa_z, work->rosa_y + first);
	return ROSA_OK;
}

rosa_status decoder_retrieve(const struct pass *pass, size_t number, rosa_error *err)
{
	const bool own = layer_own(&pass->decoder->blocks[number].rosa);
	rosa_status status = ROSA_OK;

	for (size_t s = 0; s < pass->count && status == ROSA_OK; s++) {
		const struct segment *segment = &pass->segments[s];

		if (own)
			status = find_by_layer(pass, segment, number, err);
		if (status == ROSA_OK)
			status = read_values(pass, segment, number, err);
	}
	return status;
}

/* -------------------------------------------------------------------------------------------------------- places -- */

/* The mean gain of a link of source number i, over the layers that read it. */
static float mean_gain(const decoder *d, size_t number, size_t link, uint8_t length)
{
	float sum = 0, layers = 0;

	for (size_t layer = 0; layer < d->checkpoint->config.layers; layer++) {
		const struct rosa_weights *weights = &d->blocks[layer].rosa;
		size_t read = link, row = 0;

		if (!d->blocks[layer].has_rosa)
			continue;
		for (size_t i = 0; i < number; i++)
			read += serves(&d->sources[i], layer) ? d->sources[i].links : 0;
		for (size_t i = 0; i < read; i++)
			row += weights->routes[i];
		sum += weights->gain ? weights->gain[row * ROSA_GAINS + gain_column(length)] : 1;
		layers++;
	}
	return layers > 0 ? sum / layers : 0;
}

size_t sequence_places(const sequence *s, struct token_place places[TOKEN_PLACES])
{
	const decoder *d = s->decoder;
	size_t number = 0, count = 0;

	while (number < d->source_count && d->sources[number].source.kind != SOURCE_TOKENS)
		number++;
	if (number == d->source_count)
		return 0;
	for (; count < TOKEN_PLACES && s->last_tau[count] >= 0; count++)
		places[count] = (struct token_place){s->last_tau[count], s->last_length[count],
						     mean_gain(d, number, count, s->last_length[count])};
	return count;
}
