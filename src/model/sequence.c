/*
 * What a sequence keeps between forward passes.
 *
 * Attention's part stops growing once the window is full. What grows with the text is the adapter's part: the index of
 * each source, the value bits of each layer, and with a seen-token head the tokens and a key of each different one.
 */
#include "model/decoder_parts.h"

#include "base/status.h"

#include <stdlib.h>

static rosa_status make(sequence *s, rosa_error *err)
{
	const decoder *d = s->decoder;
	const struct model_config *config = &d->checkpoint->config;
	rosa_status status = ROSA_OK;

	s->caches = calloc(config->layers, sizeof(*s->caches));
	if (!s->caches)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	for (size_t i = 0; i < config->layers && status == ROSA_OK; i++) {
		const struct block *block = &d->blocks[i];

		status = d->backend->ops->cache_new(d->backend, config->kv_heads, config->head_size, block->window,
						    block->sinks, d->options.chunk, &s->caches[i], err);
	}
	if (status == ROSA_OK && d->adapter)
		status = sequence_sources_new(s, err);
	return status == ROSA_OK ? sequence_seen_new(s, err) : status;
}

rosa_status sequence_new(decoder *decoder, sequence **made, rosa_error *err)
{
	sequence *s = calloc(1, sizeof(*s));
	rosa_status status;

	*made = NULL;
	if (!s)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	s->decoder = decoder;
	s->reads = decoder->options.reads;
	s->last_tau[0] = -1;
	status = make(s, err);
	if (status != ROSA_OK) {
		sequence_free(s);
		return status;
	}
	*made = s;
	return ROSA_OK;
}

void sequence_free(sequence *s)
{
	const decoder *d;

	if (!s)
		return;
	d = s->decoder;
	for (size_t i = 0; s->caches && i < d->checkpoint->config.layers; i++)
		d->backend->ops->cache_free(d->backend, &s->caches[i]);
	sequence_sources_free(s);
	sequence_seen_free(s);
	free(s->caches);
	free(s);
}

size_t sequence_steps(const sequence *sequence)
{
	return sequence->steps;
}

void sequence_silence(sequence *sequence)
{
	sequence->reads = READS_NOTHING;
}

struct sequence_memory sequence_memory(const sequence *s)
{
	const decoder *d = s->decoder;
	struct sequence_memory memory = {0, 0, 0};

	for (size_t i = 0; i < d->checkpoint->config.layers; i++) {
		const struct kv_cache *cache = &s->caches[i];

		memory.attention += 2 * cache->room * cache->heads * cache->head_size * sizeof(float);
		if (s->own)
			memory.retrieval += finder_bytes(&s->own[i]);
		if (s->values)
			memory.values += values_bytes(&s->values[i]);
	}
	memory.attention += sequence_waiting_bytes(s);
	memory.retrieval += sequence_seen_bytes(s);
	for (size_t i = 0; i < d->source_count; i++)
		memory.retrieval += finder_bytes(&s->finders[i]);
	return memory;
}
