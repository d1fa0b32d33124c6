/*
 * The parts of a decoder and what files call them.
 *
 * One table has a row for each part of a layer: its two names, its two sizes, and where it goes. GGUF and Hugging Face
 * differ in names alone, so everything else is the same code for both.
 */
#include "model/weights.h"

#include "model/claims.h"
#include "base/status.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum extent { NONE, WIDTH, QUERY, KEY, MLP, HEAD };
enum presence { ALWAYS, IF_HEAD_NORMS, IF_BIASES }; /* by the architecture */

struct part {
	const char *gguf, *hf; /* what follows the layer's number */
	enum extent rows, columns;
	size_t place; /* in struct layer_weights */
	enum presence presence;
};

#define PLACE(name) offsetof(struct layer_weights, name)

static const struct part parts[] = {
    {"attn_norm.weight", "input_layernorm.weight", WIDTH, NONE, PLACE(attention_norm), ALWAYS},
    {"attn_q.weight", "self_attn.q_proj.weight", QUERY, WIDTH, PLACE(q), ALWAYS},
    {"attn_k.weight", "self_attn.k_proj.weight", KEY, WIDTH, PLACE(k), ALWAYS},
    {"attn_v.weight", "self_attn.v_proj.weight", KEY, WIDTH, PLACE(v), ALWAYS},
    {"attn_q.bias", "self_attn.q_proj.bias", QUERY, NONE, PLACE(q_bias), IF_BIASES},
    {"attn_k.bias", "self_attn.k_proj.bias", KEY, NONE, PLACE(k_bias), IF_BIASES},
    {"attn_v.bias", "self_attn.v_proj.bias", KEY, NONE, PLACE(v_bias), IF_BIASES},
    {"attn_output.weight", "self_attn.o_proj.weight", WIDTH, QUERY, PLACE(o), ALWAYS},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", HEAD, NONE, PLACE(q_norm), IF_HEAD_NORMS},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", HEAD, NONE, PLACE(k_norm), IF_HEAD_NORMS},
    {"ffn_norm.weight", "post_attention_layernorm.weight", WIDTH, NONE, PLACE(mlp_norm), ALWAYS},
    {"ffn_gate.weight", "mlp.gate_proj.weight", MLP, WIDTH, PLACE(gate), ALWAYS},
    {"ffn_up.weight", "mlp.up_proj.weight", MLP, WIDTH, PLACE(up), ALWAYS},
    {"ffn_down.weight", "mlp.down_proj.weight", WIDTH, MLP, PLACE(down), ALWAYS},
};

static size_t size_of(const struct model_config *config, enum extent extent)
{
	switch (extent) {
	case NONE:
		return 0;
	case WIDTH:
		return config->width;
	case QUERY:
		return config->heads * config->head_size;
	case KEY:
		return config->kv_heads * config->head_size;
	case MLP:
		return config->mlp_width;
	case HEAD:
		return config->head_size;
	}
	return 0;
}

static bool is_there(const struct part *part, enum architecture architecture)
{
	switch (part->presence) {
	case ALWAYS:
		return true;
	case IF_HEAD_NORMS:
		return architectures[architecture].head_norms;
	case IF_BIASES:
		return architectures[architecture].qkv_biases;
	}
	return false;
}

static rosa_status bind_layer(struct checkpoint *checkpoint, struct claims *claims, size_t layer, rosa_error *err)
{
	const struct model_config *config = &checkpoint->config;
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == ROSA_OK; i++) {
		const struct part *part = &parts[i];
		const struct tensor *tensor = NULL;
		char name[128];

		if (!is_there(part, config->architecture))
			continue;
		snprintf(name, sizeof(name), "%s.%zu.%s", checkpoint->is_gguf ? "blk" : "model.layers", layer,
			 checkpoint->is_gguf ? part->gguf : part->hf);
		status = claims_take(claims, name, size_of(config, part->rows), size_of(config, part->columns), false,
				     &tensor, err);
		memcpy((char *)&checkpoint->layers[layer] + part->place, &tensor, sizeof(tensor));
	}
	return status;
}

/* What is outside of layers. A tied checkpoint may carry the head all the same; then it is the embedding again. */
static rosa_status bind_ends(struct checkpoint *checkpoint, struct claims *claims, rosa_error *err)
{
	static const char *const names[2][3] = {{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"},
						{"token_embd.weight", "output_norm.weight", "output.weight"}};
	const struct model_config *config = &checkpoint->config;
	const char *const *name = names[checkpoint->is_gguf];
	rosa_status status =
	    claims_take(claims, name[0], config->vocabulary, config->width, false, &checkpoint->embedding, err);

	if (status == ROSA_OK)
		status = claims_take(claims, name[1], config->width, 0, false, &checkpoint->norm, err);
	if (status == ROSA_OK)
		status = claims_take(claims, name[2], config->vocabulary, config->width, config->tied,
				     &checkpoint->head, err);
	if (config->tied)
		checkpoint->head = checkpoint->embedding;
	return status;
}

/* Frequencies are divided by these, so they must be numbers that can be divided by. */
static rosa_status bind_rope_factors(struct checkpoint *checkpoint, struct claims *claims, rosa_error *err)
{
	const struct tensor **factors = &checkpoint->rope_factors;
	size_t count = checkpoint->config.head_size / 2;
	rosa_status status = ROSA_OK;

	if (checkpoint->is_gguf)
		status = claims_take(claims, "rope_freqs.weight", count, 0, true, factors, err);
	if (status != ROSA_OK || !*factors)
		return status;
	if ((*factors)->format != FORMAT_F32)
		return rosa_fail(err, ROSA_EFORMAT, "%s: the tensor rope_freqs.weight is %s; it must be F32",
				 (*factors)->file, format_info[(*factors)->format].name);
	for (size_t i = 0; i < count; i++) {
		float factor = ((const float *)(*factors)->data)[i];
		if (!(factor >= 1e-6f && factor <= 1e6f))
			return rosa_fail(err, ROSA_EFORMAT,
					 "%s: number %zu of rope_freqs.weight is %g; it must be positive",
					 (*factors)->file, i, (double)factor);
	}
	return ROSA_OK;
}

/* Old checkpoints carry the rotary frequencies, which follow from the configuration. */
static bool is_harmless(const char *name)
{
	static const char end[] = ".rotary_emb.inv_freq";
	size_t length = strlen(name);

	return length >= sizeof(end) && strcmp(name + length - (sizeof(end) - 1), end) == 0;
}

static rosa_status bind_all(struct checkpoint *checkpoint, struct claims *claims, rosa_error *err)
{
	const struct tensor *left;
	rosa_status status = bind_ends(checkpoint, claims, err);

	for (size_t i = 0; i < checkpoint->config.layers && status == ROSA_OK; i++)
		status = bind_layer(checkpoint, claims, i, err);
	if (status == ROSA_OK)
		status = bind_rope_factors(checkpoint, claims, err);
	if (status != ROSA_OK)
		return status;
	left = claims_left(claims, checkpoint->is_gguf ? NULL : is_harmless);
	if (left)
		return rosa_fail(err, ROSA_EINVAL,
				 "%s: the tensor %.80s has no place in a %s model of %zu layers; such parts are not "
				 "supported",
				 left->file, left->name, architectures[checkpoint->config.architecture].name,
				 checkpoint->config.layers);
	return ROSA_OK;
}

rosa_status weights_bind(struct checkpoint *checkpoint, rosa_error *err)
{
	struct claims claims;
	rosa_status status = claims_new(&claims, &checkpoint->tensors, checkpoint->path.text, err);

	if (status != ROSA_OK)
		return status;
	checkpoint->layers = calloc(checkpoint->config.layers, sizeof(*checkpoint->layers));
	if (checkpoint->layers)
		status = bind_all(checkpoint, &claims, err);
	else
		status = rosa_fail(err, ROSA_ENOMEM, "%s: not enough memory for %zu layers", checkpoint->path.text,
				   checkpoint->config.layers);
	claims_free(&claims);
	return status;
}
