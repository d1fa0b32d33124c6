/*
 * One layer of a decoder, forward and backward, the two next to each other.
 *
 *     u = norm(h)                                  pre fusion: u = norm(mix), mix = (1 - a) h + a inj
 *     q, k, v = u Wq, u Wk, u Wv                   Qwen3: q and k normed by head; then turned by position
 *     middle = h + Wo attend(q, k, v)              post fusion: + inj
 *     out = middle + Wdown (silu(u2 Wgate) * u2 Wup),      u2 = norm(middle)
 *
 * On the way back, gh holds the gradient of what the layer gave and ends as that of what it was given. A weight that is
 * frozen has no gradient, and then its product is not taken; what flows on through it is.
 */
#include "train/network_parts.h"

#include <string.h>

struct shape {
	size_t rows, width, queries, keys, mlp;
};

static struct shape shape_of(const network *n)
{
	return (struct shape){n->count * n->steps, n->config.width, n->config.heads * n->config.head_size,
			      n->config.kv_heads * n->config.head_size, n->config.mlp_width};
}

static struct attention_shape attention_of(const network *n, const struct network_layer *layer)
{
	return (struct attention_shape){
	    n->count, n->steps, n->config.heads, n->config.kv_heads, n->config.head_size, layer->window, layer->sinks};
}

/* ------------------------------------------------------------------------------------------------------ forward -- */

/* u, the normed input of attention, and in both fusions inj */
static rosa_status input_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
				 rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct shape s = shape_of(n);
	const float eps = n->config.norm_eps;
	rosa_status status;

	if (!layer->has_rosa || n->options.fusion == ROSA_POST) {
		n->ops->rms_norm(n->backend, s.rows, s.width, tape->h, layer->attention_norm.value, eps, tape->u);
		return ROSA_OK;
	}
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->h, layer->attention_norm.value, eps, tape->rosa_u);
	status = rosa_forward(n, number, tape, learning, tape->rosa_u, tape->inj, false, err);
	if (status != ROSA_OK)
		return status;
	n->ops->mix(n->backend, s.rows, s.width, layer->a0.value, tape->h, tape->inj, tape->mix);
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->mix, layer->attention_norm.value, eps, tape->u);
	return ROSA_OK;
}

/* q and k: projected, normed where the architecture does, turned */
static void heads_forward(network *n, const struct weight *weight, const struct weight *norm, size_t heads,
			  const struct layer_tape *tape, float *raw, float *x)
{
	const struct shape s = shape_of(n);
	float *projected = norm->value ? raw : x;

	n->training->affine(n->backend, s.rows, heads * n->config.head_size, s.width, tape->u, weight->value, false,
			    projected);
	if (norm->value)
		n->ops->rms_norm(n->backend, s.rows * heads, n->config.head_size, raw, norm->value, n->config.norm_eps,
				 x);
	n->training->rotate(n->backend, &n->rotary, n->count, n->steps, heads, false, x);
}

static void copy(const network *n, float *to, const float *from, size_t count)
{
	n->training->clear(n->backend, count, to);
	n->ops->add(n->backend, count, from, to);
}

rosa_status layer_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning, float *out,
			  rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct attention_shape attention = attention_of(n, layer);
	const struct shape s = shape_of(n);
	rosa_status status = input_forward(n, number, tape, learning, err);

	if (status != ROSA_OK)
		return status;
	heads_forward(n, &layer->q, &layer->q_norm, n->config.heads, tape, tape->q_raw, tape->q);
	heads_forward(n, &layer->k, &layer->k_norm, n->config.kv_heads, tape, tape->k_raw, tape->k);
	n->training->affine(n->backend, s.rows, s.keys, s.width, tape->u, layer->v.value, false, tape->v);
	n->training->attention(n->backend, &attention, tape->q, tape->k, tape->v, tape->attended, tape->level);
	copy(n, tape->middle, tape->h, s.rows * s.width);
	n->training->affine(n->backend, s.rows, s.width, s.queries, tape->attended, layer->o.value, true, tape->middle);
	if (layer->has_rosa && n->options.fusion == ROSA_POST) {
		status = rosa_forward(n, number, tape, learning, tape->u, tape->middle, true, err);
		if (status != ROSA_OK)
			return status;
	}
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->middle, layer->mlp_norm.value, n->config.norm_eps,
			 tape->u2);
	n->training->affine(n->backend, s.rows, s.mlp, s.width, tape->u2, layer->gate.value, false, tape->gate);
	n->training->affine(n->backend, s.rows, s.mlp, s.width, tape->u2, layer->up.value, false, tape->up);
	n->ops->swiglu(n->backend, s.rows * s.mlp, tape->gate, tape->up, tape->act);
	copy(n, out, tape->middle, s.rows * s.width);
	n->training->affine(n->backend, s.rows, s.width, s.mlp, tape->act, layer->down.value, true, out);
	return ROSA_OK;
}

/* ----------------------------------------------------------------------------------------------------- backward -- */

/* A product back: gx (+)= gy W, and gW += gy^T x where W is trained. */
static void affine_back(network *n, const struct weight *weight, size_t rows, size_t columns, const float *x,
			const float *gy, bool add, float *gx)
{
	const size_t steps = n->count * n->steps;
	float *gw = network_grad(n, weight);

	n->training->affine_back(n->backend, steps, rows, columns, gy, weight->value, add, gx);
	if (gw)
		n->training->affine_grad(n->backend, steps, rows, columns, x, gy, gw);
}

/* A norm back: gx += ... */
static void norm_back(network *n, const struct weight *weight, size_t rows, size_t width, const float *x,
		      const float *gy, float *gx)
{
	n->training->rms_norm_back(n->backend, rows, width, x, weight->value, n->config.norm_eps, gy, n->scales, gx,
				   network_grad(n, weight));
}

/* gh: of out, becomes that of middle */
static void mlp_backward(network *n, const struct network_layer *layer, const struct layer_tape *tape)
{
	const struct shape s = shape_of(n);

	affine_back(n, &layer->down, s.width, s.mlp, tape->act, n->gh, false, n->ggate);
	n->training->swiglu_back(n->backend, s.rows * s.mlp, tape->gate, tape->up, n->ggate, n->ggate, n->gup);
	affine_back(n, &layer->gate, s.mlp, s.width, tape->u2, n->ggate, false, n->gu);
	affine_back(n, &layer->up, s.mlp, s.width, tape->u2, n->gup, true, n->gu);
	norm_back(n, &layer->mlp_norm, s.rows, s.width, tape->middle, n->gu, n->gh);
}

/* The gradient of q or k, in gx, back to u: added to gu. */
static void heads_backward(network *n, const struct weight *weight, const struct weight *norm, size_t heads,
			   const struct layer_tape *tape, const float *raw, float *gx, bool add)
{
	const struct shape s = shape_of(n);
	const size_t size = n->config.head_size;
	float *g = gx;

	n->training->rotate(n->backend, &n->rotary, n->count, n->steps, heads, true, gx);
	if (norm->value) {
		g = n->gattended; /* free by now, and wide enough */
		n->training->clear(n->backend, s.rows * heads * size, g);
		norm_back(n, norm, s.rows * heads, size, raw, gx, g);
	}
	affine_back(n, weight, heads * size, s.width, tape->u, g, add, n->gu);
}

/* gu: the gradient of u, from that of middle in gh */
static void attention_backward(network *n, const struct network_layer *layer, const struct layer_tape *tape)
{
	const struct attention_shape attention = attention_of(n, layer);
	const struct shape s = shape_of(n);

	affine_back(n, &layer->o, s.width, s.queries, tape->attended, n->gh, false, n->gattended);
	n->training->attention_back(n->backend, &attention, tape->q, tape->k, tape->v, tape->attended, tape->level,
				    n->gattended, n->gq, n->gk, n->gv);
	heads_backward(n, &layer->q, &layer->q_norm, n->config.heads, tape, tape->q_raw, n->gq, false);
	heads_backward(n, &layer->k, &layer->k_norm, n->config.kv_heads, tape, tape->k_raw, n->gk, true);
	affine_back(n, &layer->v, s.keys, s.width, tape->u, n->gv, true, n->gu);
}

rosa_status layer_backward(network *n, size_t number, const struct layer_tape *tape, const rosa_learning *learning,
			   rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct shape s = shape_of(n);
	rosa_status status = ROSA_OK;

	mlp_backward(n, layer, tape);
	attention_backward(n, layer, tape);
	if (!layer->has_rosa) {
		norm_back(n, &layer->attention_norm, s.rows, s.width, tape->h, n->gu, n->gh);
		return ROSA_OK;
	}
	if (n->options.fusion == ROSA_POST) {
		status = rosa_backward(n, number, tape, learning, tape->u, n->gh, n->gu, err);
		if (status == ROSA_OK)
			norm_back(n, &layer->attention_norm, s.rows, s.width, tape->h, n->gu, n->gh);
		return status;
	}
	n->training->clear(n->backend, s.rows * s.width, n->gx);
	norm_back(n, &layer->attention_norm, s.rows, s.width, tape->mix, n->gu, n->gx);
	/* gx: of mix, becomes that of inj */
	n->training->mix_back(n->backend, s.rows, s.width, layer->a0.value, tape->h, tape->inj, n->gx, n->gh, n->gx,
			      network_grad(n, &layer->a0));
	n->training->clear(n->backend, s.rows * s.width, n->gu);
	status = rosa_backward(n, number, tape, learning, tape->rosa_u, n->gx, n->gu, err);
	if (status == ROSA_OK)
		norm_back(n, &layer->attention_norm, s.rows, s.width, tape->h, n->gu, n->gh);
	return status;
}
