/*
 * The operations that training adds: the backward pass of a decoder, and the step of the optimiser.
 *
 * Training works on whole sequences, rows [batch * steps][...] sequence by sequence, and on weights that are float32 in
 * the backend's memory. Where "+=" is written, the result is added to what is there: gradients of weights are summed
 * over batches, and those of activations over the paths that lead to them.
 *
 * The bits of every result depend on the shapes and the numbers, not on the number of threads.
 */
#pragma once

#include "backend/backend.h"

/* Attention over whole sequences. Query head h reads key head h / (heads / kv_heads); position t sees t-window+1 .. t
 * and the first `sinks` (window 0: 0 .. t). */
struct attention_shape {
	size_t batch, steps, heads, kv_heads, head_size, window, sinks;
};

/* Rows of logits, and which tokens each row has seen. */
struct seen_rows {
	size_t rows, vocabulary, count;
	size_t classes_most;    /* classes are 1 to this, at most 255; 0: not seen */
	const uint32_t *tokens; /* host, [count]: no two of them the same */
	const uint8_t *classes; /* host, [rows][count] */
};

struct adamw {
	double rate, beta1, beta2, eps, decay; /* decay: decoupled, multiplied by rate */
	uint64_t step;                         /* from 1 */
};

struct training_ops {
	/* y[i] (+)= x W_i^T, as backend_ops.multiply, for float32 weights and many rows at once. It is faster there,
	 * but the bits of a row depend on the shape of the call. */
	backend_multiply *multiply;
	/* gx (+)= gy W */
	void (*multiply_back)(struct backend *backend, size_t steps, const struct matrix *w, const float *gy, bool add,
			      float *gx);
	/* gw += gy^T x, gw being [rows][columns] */
	void (*multiply_grad)(struct backend *backend, size_t steps, size_t rows, size_t columns, const float *x,
			      const float *gy, float *gw);

	/* The gradient of backend_ops.add_bias: gbias += the sum of the rows of gy. */
	void (*add_bias_back)(struct backend *backend, size_t rows, size_t width, const float *gy, float *gbias);

	/* The gradients of backend_ops.rms_norm: gx += ..., gweight += ... (NULL: not wanted). `scales`: scratch,
	 * [rows]. */
	void (*rms_norm_back)(struct backend *backend, size_t rows, size_t width, const float *x, const float *weight,
			      float eps, const float *gy, float *scales, float *gx, float *gweight);

	/* Rotate x [batch * steps][heads * head_size] by the position of each step, or (`back`) by its opposite. */
	void (*rotate)(struct backend *backend, const struct rotary *rotary, size_t batch, size_t steps, size_t heads,
		       bool back, float *x);

	/* Memory for rotations and attention of this shape; to be called before them. */
	rosa_status (*attention_reserve)(struct backend *backend, const struct rotary *rotary,
					 const struct attention_shape *shape, rosa_error *err);
	/* y = softmax(q k^T / sqrt(head_size)) v; `level` [batch][heads][steps] receives the logarithm of the sum of
	 * exponentials, from which the backward pass computes the weights again. */
	void (*attention)(struct backend *backend, const struct attention_shape *shape, const float *q, const float *k,
			  const float *v, float *y, float *level);
	/* gq, gk, gv are overwritten. */
	void (*attention_back)(struct backend *backend, const struct attention_shape *shape, const float *q,
			       const float *k, const float *v, const float *y, const float *level, const float *gy,
			       float *gq, float *gk, float *gv);

	/* The gradients of backend_ops.swiglu; ggate may be gy. */
	void (*swiglu_back)(struct backend *backend, size_t count, const float *gate, const float *up, const float *gy,
			    float *ggate, float *gup);

	/* The gradients of backend_ops.mix: gh += (1 - a) gy, gx = a gy, ga0 += sum over the steps of (x - h) gy a (1 -
	 * a) (NULL: not wanted). gx may be gy. */
	void (*mix_back)(struct backend *backend, size_t steps, size_t channels, const float *a0, const float *h,
			 const float *x, const float *gy, float *gh, float *gx, float *ga0);

	/* The gradients of backend_ops.gate, from its results y and z: ga[t] = gy[t] . y[t] (1 - z[t] / 2), that of
	 * u[t] . w + b; gu[t] += ga[t] w (NULL: not wanted); gy[t] *= z[t], that of what was gated. */
	void (*gate_back)(struct backend *backend, size_t steps, size_t channels, const float *w, const float *z,
			  const float *y, float *gy, float *ga, float *gu);

	/* gweight[tokens[t]] += gy[t]; tokens on the host. */
	void (*embed_back)(struct backend *backend, size_t steps, size_t width, const uint32_t *tokens, const float *gy,
			   float *gweight);

	/* logits[t][tokens[j]] += table[class - 1] + g[t] + s[t][j] for each class [t][j] above 0. */
	void (*seen)(struct backend *backend, const struct seen_rows *seen, const float *table, const float *g,
		     const float *s, float *logits);
	/* Its gradients: gs[t][j] is that of the logit, or 0 where the class is 0; gg[t] their sum; gtable += (NULL:
	 * not wanted). */
	void (*seen_back)(struct backend *backend, const struct seen_rows *seen, const float *glogits, float *gs,
			  float *gg, float *gtable);

	/* The sum over the rows of weight[t] * -log softmax(logits[t])[targets[t]] (host arrays; weight NULL: 1), and
	 * in place of the logits its gradient times `scale`. Rows of weight 0 are left out. `correct` (host, NULL: not
	 * wanted) is set for rows whose target has the greatest logit; `losses` (likewise) gets each row's part. */
	double (*cross_entropy)(struct backend *backend, size_t rows, size_t vocabulary, float *logits,
				const uint32_t *targets, const float *weight, float scale, uint8_t *correct,
				double *losses);

	/* The sum of squares, in double precision. */
	double (*square_sum)(struct backend *backend, size_t count, const float *x);
	/* One step of AdamW on a parameter with the gradient grad * scale. */
	void (*adamw)(struct backend *backend, const struct adamw *adamw, size_t count, float scale, const float *grad,
		      float *value, float *first, float *second);
	/* x = 0 */
	void (*clear)(struct backend *backend, size_t count, float *x);
};
