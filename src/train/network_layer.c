/*
 * One layer of a decoder, forward and backward.
 *
 *     u = norm(h)                                  pre fusion: u = norm(mix), mix = (1 - a) h + a inj
 *     q, k, v = u Wq, u Wk, u Wv                   Qwen2: plus biases; Qwen3: q and k normed by head
 *                                                  then q and k are rotated by position
 *     middle = h + Wo attend(q, k, v)              post fusion: + inj
 *     out = middle + Wdown (silu(u2 Wgate) * u2 Wup),      u2 = norm(middle)
 *
 * The ROSA layer, which makes inj, is rosa/layer.h.
 *
 * In the backward pass gh holds the gradient of the layer's output and ends as that of its input. A frozen weight has
 * no gradient, and the product for it is not computed; what flows on through the weight is.
 */
#include "train/network_parts.h"

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

/* `u`: the rows that were projected. */
static struct rosa_inputs adapter_inputs(const network *n, size_t number, const struct layer_tape *tape,
					 struct rosa_source *from, const float *u)
{
	return (struct rosa_inputs){.sources = network_sources_of(n, number, tape, from),
				    .from = from,
				    .v = tape->rosa.v,
				    .x = n->embedded ? n->embedded : u,
				    .u = u};
}

/* From the projected rows to what is injected: added to `inj` or in its place. `u`: the rows that were projected. */
static rosa_status adapter_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
				   const float *u, bool add, float *inj, rosa_error *err)
{
	const struct rosa_weights *weights = &n->layers[number].rosa;
	struct rosa_source from[ROSA_MAX_SOURCES];
	rosa_status status = network_find_own(n, number, tape, learning, err);
	struct rosa_inputs inputs;

	if (status != ROSA_OK)
		return status;
	inputs = adapter_inputs(n, number, tape, from, u);
	layer_read_batch(&n->rosa, weights, &n->sequences, &inputs);
	layer_inject(&n->rosa, weights, n->count * n->steps, n->sequences.y, add, inj);
	return ROSA_OK;
}

/* The products of u that the adapter needs. Where values are made of embeddings, their product is done here. */
static size_t adapter_projections(network *n, size_t number, const struct layer_tape *tape, struct product *products)
{
	const struct rosa_rows x = network_rows(n, number, tape);
	const size_t count = layer_projections(&n->layers[number].rosa, &x, products);

	if (!n->embedded)
		return count;
	n->training->multiply(n->backend, n->count * n->steps, n->embedded, 1, &products[count - 1]);
	return count - 1;
}

/* u, the normed input of attention; in pre fusion that of the mix */
static rosa_status input_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
				 rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct shape s = shape_of(n);
	const float eps = n->config.norm_eps;
	struct product projections[3];
	rosa_status status;

	if (!layer->has_rosa || n->options.adapter.fusion == ROSA_POST) {
		n->ops->rms_norm(n->backend, s.rows, s.width, tape->h, layer->attention_norm.value, eps, tape->u);
		return ROSA_OK;
	}
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->h, layer->attention_norm.value, eps, tape->rosa_u);
	n->training->multiply(n->backend, s.rows, tape->rosa_u, adapter_projections(n, number, tape, projections),
			      projections);
	status = adapter_forward(n, number, tape, learning, tape->rosa_u, false, tape->inj, err);
	if (status != ROSA_OK)
		return status;
	layer_mix(&n->rosa, &layer->rosa, s.rows, tape->h, tape->inj, tape->mix);
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->mix, layer->attention_norm.value, eps, tape->u);
	return ROSA_OK;
}

/* q or k after its projection: normed where the architecture does, and rotated */
static void heads_forward(network *n, const struct weight *norm, size_t heads, const float *raw, float *x)
{
	const struct shape s = shape_of(n);

	if (norm->value)
		n->ops->rms_norm(n->backend, s.rows * heads, n->config.head_size, raw, norm->value, n->config.norm_eps,
				 x);
	n->training->rotate(n->backend, &n->rotary, n->count, n->steps, heads, false, x);
}

/* Add a bias to rows x, where the architecture has one. */
static void bias_forward(network *n, const struct weight *bias, size_t width, float *x)
{
	if (bias->value)
		n->ops->add_bias(n->backend, n->count * n->steps, width, bias->value, x);
}

static void copy(const network *n, float *to, const float *from, size_t count)
{
	n->training->clear(n->backend, count, to);
	n->ops->add(n->backend, count, from, to);
}

rosa_status network_layer_forward(network *n, size_t number, struct layer_tape *tape, const rosa_learning *learning,
				  float *out, rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct attention_shape attention = attention_of(n, layer);
	const struct shape s = shape_of(n);
	const bool post = layer->has_rosa && n->options.adapter.fusion == ROSA_POST;
	struct product projections[6] = {{&layer->q.matrix, layer->q_norm.value ? tape->q_raw : tape->q, false},
					 {&layer->k.matrix, layer->k_norm.value ? tape->k_raw : tape->k, false},
					 {&layer->v.matrix, tape->v, false}};
	const struct product attended = {&layer->o.matrix, tape->middle, true}, down = {&layer->down.matrix, out, true},
			     gates[] = {{&layer->gate.matrix, tape->gate, false}, {&layer->up.matrix, tape->up, false}};
	size_t count = 3;
	rosa_status status = input_forward(n, number, tape, learning, err);

	if (status != ROSA_OK)
		return status;
	if (post)
		count += adapter_projections(n, number, tape, projections + count);
	n->training->multiply(n->backend, s.rows, tape->u, count, projections);
	bias_forward(n, &layer->q_bias, s.queries, projections[0].y);
	bias_forward(n, &layer->k_bias, s.keys, projections[1].y);
	bias_forward(n, &layer->v_bias, s.keys, projections[2].y);
	heads_forward(n, &layer->q_norm, n->config.heads, tape->q_raw, tape->q);
	heads_forward(n, &layer->k_norm, n->config.kv_heads, tape->k_raw, tape->k);
	n->training->attention(n->backend, &attention, tape->q, tape->k, tape->v, tape->attended, tape->level);
	copy(n, tape->middle, tape->h, s.rows * s.width);
	n->training->multiply(n->backend, s.rows, tape->attended, 1, &attended);
	if (post) {
		status = adapter_forward(n, number, tape, learning, tape->u, true, tape->middle, err);
		if (status != ROSA_OK)
			return status;
	}
	n->ops->rms_norm(n->backend, s.rows, s.width, tape->middle, layer->mlp_norm.value, n->config.norm_eps,
			 tape->u2);
	n->training->multiply(n->backend, s.rows, tape->u2, 2, gates);
	n->ops->swiglu(n->backend, s.rows * s.mlp, tape->gate, tape->up, tape->act);
	copy(n, out, tape->middle, s.rows * s.width);
	n->training->multiply(n->backend, s.rows, tape->act, 1, &down);
	return ROSA_OK;
}

/* ----------------------------------------------------------------------------------------------------- backward -- */

/* The gradients of a product: gx (+)= gy W, and gW += gy^T x where W is trained. */
static void product_back(network *n, const struct weight *weight, const float *x, const float *gy, bool add, float *gx)
{
	const struct matrix *w = &weight->matrix;
	const size_t steps = n->count * n->steps;
	float *gw = network_grad(n, weight);

	n->training->multiply_back(n->backend, steps, w, gy, add, gx);
	if (gw)
		n->training->multiply_grad(n->backend, steps, w->rows, w->columns, x, gy, gw);
}

/* The same of a product with a bias, if there is one. */
static void biased_back(network *n, const struct weight *weight, const struct weight *bias, const float *x,
			const float *gy, bool add, float *gx)
{
	float *gbias = network_grad(n, bias);

	product_back(n, weight, x, gy, add, gx);
	if (gbias)
		n->training->add_bias_back(n->backend, n->count * n->steps, weight->matrix.rows, gy, gbias);
}

/* The gradients of a norm: gx += ... */
static void norm_back(network *n, const struct weight *weight, size_t rows, size_t width, const float *x,
		      const float *gy, float *gx)
{
	n->training->rms_norm_back(n->backend, rows, width, x, weight->value, n->config.norm_eps, gy, n->scratch_scales,
				   gx, network_grad(n, weight));
}

/* gh: of out, becomes that of middle */
static void mlp_backward(network *n, const struct network_layer *layer, const struct layer_tape *tape)
{
	const struct shape s = shape_of(n);

	product_back(n, &layer->down, tape->act, n->gh, false, n->ggate);
	n->training->swiglu_back(n->backend, s.rows * s.mlp, tape->gate, tape->up, n->ggate, n->ggate, n->gup);
	product_back(n, &layer->gate, tape->u2, n->ggate, false, n->gu);
	product_back(n, &layer->up, tape->u2, n->gup, true, n->gu);
	norm_back(n, &layer->mlp_norm, s.rows, s.width, tape->middle, n->gu, n->gh);
}

/* From the gradient of q or k, in gx, to that of u, added to gu. */
static void heads_backward(network *n, const struct weight *weight, const struct weight *bias,
			   const struct weight *norm, size_t heads, const struct layer_tape *tape, const float *raw,
			   float *gx, bool add)
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
	biased_back(n, weight, bias, tape->u, g, add, n->gu);
}

/* gu: the gradient of u, from that of middle in gh */
static void attention_backward(network *n, const struct network_layer *layer, const struct layer_tape *tape)
{
	const struct attention_shape attention = attention_of(n, layer);

	product_back(n, &layer->o, tape->attended, n->gh, false, n->gattended);
	n->training->attention_back(n->backend, &attention, tape->q, tape->k, tape->v, tape->attended, tape->level,
				    n->gattended, n->gq, n->gk, n->gv);
	heads_backward(n, &layer->q, &layer->q_bias, &layer->q_norm, n->config.heads, tape, tape->q_raw, n->gq, false);
	heads_backward(n, &layer->k, &layer->k_bias, &layer->k_norm, n->config.kv_heads, tape, tape->k_raw, n->gk,
		       true);
	biased_back(n, &layer->v, &layer->v_bias, tape->u, n->gv, true, n->gu);
}

/* From ginj, the gradient of what was injected, to that of the ROSA layer's normed input u, added to gu. */
static rosa_status adapter_backward(network *n, size_t number, const struct layer_tape *tape,
				    const rosa_learning *learning, const float *u, const float *ginj, rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct network_source *source = network_layer_source(n, number);
	/* what attention's backward pass worked on is free by now, and wide enough */
	const struct rosa_back back = {.gy = n->gattended,
				       .gq = n->gq,
				       .gk = n->gk,
				       .gv = n->gv,
				       .ge0 = n->ge[0],
				       .ge1 = n->ge[1],
				       .ggain = n->ggain,
				       .ga = n->ga};
	const struct rosa_grads grads = {.q = network_grad(n, &layer->rosa_q),
					 .k = network_grad(n, &layer->rosa_k),
					 .v = network_grad(n, &layer->rosa_v),
					 .out = network_grad(n, &layer->rosa_out),
					 .e0 = network_grad(n, &layer->e0),
					 .e1 = network_grad(n, &layer->e1),
					 .gain = network_grad(n, &layer->gain),
					 .gate_w = network_grad(n, &layer->gate_w),
					 .gate_b = network_grad(n, &layer->gate_b)};
	struct rosa_source from[ROSA_MAX_SOURCES];
	const struct rosa_inputs inputs = adapter_inputs(n, number, tape, from, u);
	const struct rosa_backward call = {.setup = &n->rosa,
					   .weights = &layer->rosa,
					   .batch = &n->sequences,
					   .learning = learning,
					   .inputs = &inputs,
					   .ginj = ginj,
					   .back = &back,
					   .grads = &grads,
					   .gu = n->gu,
					   .gx = !n->embedded                     ? n->gu
						 : network_grad(n, &n->embedding) ? n->gembedded
										  : NULL};
	rosa_status status;

	layer_read_batch(&n->rosa, &layer->rosa, &n->sequences, &inputs);
	status = layer_backward(&call, err);
	/* all layers that read these q and k have gone back */
	if (status == ROSA_OK && source && learning->qk_grad != ROSA_QK_NONE)
		layer_project_back(&n->rosa, &layer->rosa, n->count * n->steps, u, source->gq, source->gk, &grads,
				   n->gu);
	return status;
}

rosa_status network_layer_backward(network *n, size_t number, const struct layer_tape *tape,
				   const rosa_learning *learning, rosa_error *err)
{
	const struct network_layer *layer = &n->layers[number];
	const struct shape s = shape_of(n);
	rosa_status status = ROSA_OK;

	mlp_backward(n, layer, tape);
	attention_backward(n, layer, tape);
	if (layer->has_rosa && n->options.adapter.fusion == ROSA_POST) {
		status = adapter_backward(n, number, tape, learning, tape->u, n->gh, err);
	} else if (layer->has_rosa) {
		n->training->clear(n->backend, s.rows * s.width, n->gx);
		norm_back(n, &layer->attention_norm, s.rows, s.width, tape->mix, n->gu, n->gx);
		/* gx: of mix, becomes that of inj */
		n->training->mix_back(n->backend, s.rows, s.width, layer->a0.value, tape->h, tape->inj, n->gx, n->gh,
				      n->gx, network_grad(n, &layer->a0));
		n->training->clear(n->backend, s.rows * s.width, n->gu);
		status = adapter_backward(n, number, tape, learning, tape->rosa_u, n->gx, err);
	}
	if (status == ROSA_OK)
		norm_back(n, &layer->attention_norm, s.rows, s.width, tape->h, n->gu, n->gh);
	return status;
}
