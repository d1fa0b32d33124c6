/*
 * One forward pass through the decoder.
 *
 * Rows of several sequences share the products; each sequence has its own attention, retrieval and positions. With U =
 * norm(H) a layer computes
 *
 *     H' = H + Wo attend(q, k, v),        q, k, v = U Wq, U Wk, U Wv, q and k rotated by position
 *                                         (Qwen2: biases are added first; Qwen3: q and k are normed by head)
 *     H'' = H' + Wdown (silu(U' Wgate) * U' Wup),      U' = norm(H')
 *
 * and with an adapter the ROSA layer's injection inj (rosa/layer.h) joins in:
 *
 *     post fusion   H' = H + Wo attend(...) + inj
 *     pre fusion    U = norm((1 - a) H + a inj) in attention; the adapter's own U is that of H
 *
 * In post fusion the adapter's projections are taken together with attention's, because both take U. That of its values
 * may wait until more rows have come (decoder_adapter.c).
 */
#include "model/decoder_parts.h"

/* work.u = norm of what attention is given: H, or in pre fusion H mixed with what is read. */
static rosa_status attention_input(const struct pass *pass, size_t number, rosa_error *err)
{
	const struct block *block = &pass->decoder->blocks[number];
	const struct rosa_setup *setup = &pass->decoder->rosa;
	const size_t rows = pass->rows, width = pass->config->width;
	const float eps = pass->config->norm_eps;
	struct workspace *work = pass->work;
	struct product projections[3];
	rosa_status status;

	pass->ops->rms_norm(pass->backend, rows, width, work->h, block->attention_norm, eps, work->u);
	if (!block->has_rosa || !block->rosa.a0)
		return ROSA_OK;
	pass->ops->multiply(pass->backend, rows, work->u, decoder_projections(pass, number, projections), projections);
	status = decoder_retrieve(pass, number, err);
	if (status != ROSA_OK)
		return status;
	/* v has been used: inj, then the mix, take its place */
	layer_inject(setup, &block->rosa, rows, work->rosa_y, false, work->rosa.v);
	layer_mix(setup, &block->rosa, rows, work->h, work->rosa.v, work->rosa.v);
	pass->ops->rms_norm(pass->backend, rows, width, work->rosa.v, block->attention_norm, eps, work->u);
	return ROSA_OK;
}

/* Add the biases of q, k and v, where the architecture has them. */
static void add_biases(const struct pass *pass, const struct block *block)
{
	const size_t size = pass->config->head_size;

	if (!block->q_bias)
		return;
	pass->ops->add_bias(pass->backend, pass->rows, pass->config->heads * size, block->q_bias, pass->work->q);
	pass->ops->add_bias(pass->backend, pass->rows, pass->config->kv_heads * size, block->k_bias, pass->work->k);
	pass->ops->add_bias(pass->backend, pass->rows, pass->config->kv_heads * size, block->v_bias, pass->work->v);
}

/* Norm work.q and work.k where the architecture does, rotate them, and attend: work.attended. */
static rosa_status attention(const struct pass *pass, size_t number, rosa_error *err)
{
	const struct block *block = &pass->decoder->blocks[number];
	const struct model_config *config = pass->config;
	const size_t queries = config->heads * config->head_size, keys = config->kv_heads * config->head_size;
	struct workspace *work = pass->work;

	if (block->q_norm) {
		pass->ops->rms_norm(pass->backend, pass->rows * config->heads, config->head_size, work->q,
				    block->q_norm, config->norm_eps, work->q);
		pass->ops->rms_norm(pass->backend, pass->rows * config->kv_heads, config->head_size, work->k,
				    block->k_norm, config->norm_eps, work->k);
	}
	for (size_t s = 0; s < pass->count; s++) {
		const struct segment *segment = &pass->segments[s];
		struct kv_cache *cache = &segment->sequence->caches[number];
		float *q = work->q + segment->row * queries, *k = work->k + segment->row * keys;
		const size_t first = segment->sequence->steps;
		rosa_status status = pass->ops->cache_reserve(pass->backend, cache, segment->count, err);

		if (status != ROSA_OK)
			return status;
		pass->ops->rotate(pass->backend, &pass->decoder->rotary, segment->count, config->heads, first, q);
		pass->ops->rotate(pass->backend, &pass->decoder->rotary, segment->count, config->kv_heads, first, k);
		pass->ops->attend(pass->backend, cache, segment->count, config->heads, q, k,
				  work->v + segment->row * keys, work->attended + segment->row * queries);
	}
	return ROSA_OK;
}

static rosa_status mix_tokens(const struct pass *pass, size_t number, rosa_error *err)
{
	const struct block *block = &pass->decoder->blocks[number];
	struct workspace *work = pass->work;
	const bool post = block->has_rosa && !block->rosa.a0;
	struct product projections[6] = {
	    {&block->q, work->q, false}, {&block->k, work->k, false}, {&block->v, work->v, false}};
	const struct product output = {&block->o, work->h, true};
	size_t count = 3;
	rosa_status status = attention_input(pass, number, err);

	if (status != ROSA_OK)
		return status;
	if (post)
		count += decoder_projections(pass, number, projections + count);
	pass->ops->multiply(pass->backend, pass->rows, work->u, count, projections);
	add_biases(pass, block);
	status = attention(pass, number, err);
	if (status == ROSA_OK && post)
		status = decoder_retrieve(pass, number, err);
	if (status != ROSA_OK)
		return status;
	pass->ops->multiply(pass->backend, pass->rows, work->attended, 1, &output);
	if (post)
		layer_inject(&pass->decoder->rosa, &block->rosa, pass->rows, work->rosa_y, true, work->h);
	return ROSA_OK;
}

static void mix_channels(const struct pass *pass, size_t number)
{
	const struct block *block = &pass->decoder->blocks[number];
	struct workspace *work = pass->work;
	const struct product projections[] = {{&block->gate, work->gate, false}, {&block->up, work->up, false}};
	const struct product output = {&block->down, work->h, true};

	pass->ops->rms_norm(pass->backend, pass->rows, pass->config->width, work->h, block->mlp_norm,
			    pass->config->norm_eps, work->u);
	pass->ops->multiply(pass->backend, pass->rows, work->u, 2, projections);
	pass->ops->swiglu(pass->backend, pass->rows * pass->config->mlp_width, work->gate, work->up, work->gate);
	pass->ops->multiply(pass->backend, pass->rows, work->gate, 1, &output);
}

rosa_status decoder_pass(decoder *decoder, const uint32_t *tokens, size_t rows, const struct segment *segments,
			 size_t count, rosa_error *err)
{
	const struct pass pass = {.decoder = decoder,
				  .work = &decoder->work,
				  .backend = decoder->backend,
				  .ops = decoder->backend->ops,
				  .config = &decoder->checkpoint->config,
				  .tokens = tokens,
				  .segments = segments,
				  .count = count,
				  .rows = rows,
				  .values_wait = decoder_values_wait(decoder, rows)};

	rosa_status status = decoder_find(&pass, err);

	if (status == ROSA_OK)
		status = decoder_seen_read(&pass, err);
	if (status != ROSA_OK)
		return status;
	pass.ops->embed(pass.backend, &decoder->embedding, rows, tokens, pass.work->h);
	if (pass.work->embedded)
		pass.ops->rms_norm(pass.backend, rows, pass.config->width, pass.work->h, NULL, V_NORM_EPS,
				   pass.work->embedded);
	for (size_t number = 0; number < pass.config->layers; number++) {
		status = mix_tokens(&pass, number, err);
		if (status != ROSA_OK)
			return status;
		mix_channels(&pass, number);
	}
	pass.ops->rms_norm(pass.backend, rows, pass.config->width, pass.work->h, decoder->norm, pass.config->norm_eps,
			   pass.work->u);
	for (size_t s = 0; s < count; s++)
		segments[s].sequence->steps += segments[s].count;
	return ROSA_OK;
}
