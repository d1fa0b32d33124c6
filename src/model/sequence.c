/*
 * What a sequence keeps between forward passes.
 *
 * Attention's part stops growing once the window is full. The adapter's part is the whole past, in the form that
 * retrieval searches; it is the only part that grows with the text.
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
	s->pasts = d->adapter ? calloc(config->layers, sizeof(*s->pasts)) : NULL;
	if (!s->caches || (d->adapter && !s->pasts))
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	for (size_t i = 0; i < config->layers && status == ROSA_OK; i++) {
		const struct block *block = &d->blocks[i];

		status = d->backend->ops->cache_new(d->backend, config->kv_heads, config->head_size, block->window,
						    block->sinks, d->options.chunk, &s->caches[i], err);
		if (status == ROSA_OK && block->has_rosa)
			status = past_new(&s->pasts[i], d->rosa.routes, &d->rosa.options, err);
	}
	return status;
}

rosa_status sequence_new(decoder *decoder, sequence **made, rosa_error *err)
{
	sequence *s = calloc(1, sizeof(*s));
	rosa_status status;

	*made = NULL;
	if (!s)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a sequence");
	s->decoder = decoder;
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
	for (size_t i = 0; i < d->checkpoint->config.layers; i++) {
		if (s->caches)
			d->backend->ops->cache_free(d->backend, &s->caches[i]);
		if (s->pasts)
			past_free(&s->pasts[i]);
	}
	free(s->caches);
	free(s->pasts);
	free(s);
}

size_t sequence_steps(const sequence *sequence)
{
	return sequence->steps;
}

struct sequence_memory sequence_memory(const sequence *s)
{
	const decoder *d = s->decoder;
	struct sequence_memory memory = {0, 0};

	for (size_t i = 0; i < d->checkpoint->config.layers; i++) {
		const struct kv_cache *cache = &s->caches[i];

		memory.attention += 2 * (cache->room + cache->sinks) * cache->heads * cache->head_size * sizeof(float);
		if (s->pasts)
			memory.retrieval += past_bytes(&s->pasts[i]);
	}
	return memory;
}
