/*
 * The ROSA layer: what an adapter adds to one layer of a decoder, forward and backward.
 *
 *     U = norm(H)                              the norm of the decoder's layer, made by the caller: attention shares it
 *     q, k, v = U Wq^T, U Wk^T, U Wv^T         layer_projections; the caller may make v of other rows X than U
 *     symbols of q, k                          layer_symbols
 *     places for each route and step           a source: finder.h for texts that grow, lookup.h for whole sequences
 *     value bits at the places, their weights  layer_gather
 *     y = z sum of s g (e0 + (e1 - e0) b)      layer_read: the sum over the reads that found something; g is the gain,
 *                                              s the scale, z = 2 sigmoid(U w + b) the gate
 *     inj = y Wout^T                           layer_inject
 *     pre fusion: mix = (1 - a) H + a inj      layer_mix; in post fusion inj is added to the residual stream
 *
 * The steps are separate functions, so that a decoder can take the projections together with attention's, and each
 * sequence of a batch its own source. `generate`, `tune` and rosa_layer_forward run these same functions; the last two
 * through layer_find, layer_read_batch and layer_backward, which work on whole sequences.
 *
 * Rows are float32, [rows][channels], in the backend's memory; symbols and destinations are in ordinary memory. The
 * backward pass works on both, so it needs a backend whose memory is ordinary. Matrices are [out][in].
 */
#pragma once

#include "backend/training.h"
#include "rosa/lookup.h"
#include "rosa/places.h"
#include "rosa/scratch.h"
#include "rosa/strength.h"
#include "rosa/values.h"

/* What all ROSA layers of a model have in common. */
struct rosa_setup {
	struct backend *backend;
	backend_multiply *multiply; /* the backend's product for reading texts, or the one for training */
	size_t channels, routes;
	rosa_options options; /* of retrieval; `workers` is set */
};

struct rosa_setup layer_setup(struct backend *backend, backend_multiply *multiply, size_t channels,
			      const rosa_options *options);

/* The parameters of one layer, in the backend's memory; `gain` is in ordinary memory. A layer has `links` reads: those
 * of its first source, link by link, then those of the next. `gain` has a row for each route of the first read, then of
 * the second, and so on. */
struct rosa_weights {
	struct matrix q, k, v, out; /* [channels][channels]; q.data == k.data: shared; NULL: no source of its own */
	const float *e0, *e1;       /* [links][channels] */
	const float *a0;            /* [channels]; NULL: post fusion */
	size_t links;
	const size_t *routes;         /* [links] */
	const float *gain;            /* [rows][ROSA_GAINS], by the length of the match; NULL: 1 */
	const float *gate_w, *gate_b; /* [channels], [1]; NULL: no gate */
	float scale;                  /* s */
};

/* Projected rows of one layer. Where Wq and Wk are shared, the rows of q are those of k too, and k is not used. A layer
 * without a source of its own has only v. */
struct rosa_rows {
	float *q, *k, *v;
};

bool layer_shared(const struct rosa_weights *weights);
/* Whether the layer has its own q and k projections. */
bool layer_own(const struct rosa_weights *weights);

/* The products that project U, at most three. Returns how many; that of v is the last. */
size_t layer_projections(const struct rosa_weights *weights, const struct rosa_rows *x, struct product *products);

/* Symbols [routes][steps] of q and k, of `steps` rows from row `first` on. Where Wq and Wk are shared, those of q are
 * those of k too, and symbols[1] is not used. */
void layer_symbols(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps, size_t first,
		   const struct rosa_rows *x, uint16_t *const symbols[2]);

/* Memory for what a layer reads at some steps: bits [links][steps][words] and weights [rows][steps]. */
struct rosa_room {
	uint64_t *bits;
	float *weight;
};

/* The number of elements of the two arrays. */
size_t layer_room_bits(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps);
size_t layer_room_weights(const struct rosa_weights *weights, size_t steps);

/* What the layer reads: the value bits at the places, and how much they count: scale * gain by the length of the match.
 * places: one for each of `sources` sources, all of the same steps, with the links and routes of `weights` in order.
 * They lie within the rows of `values`. The result is valid as long as `room` and `weights`. */
struct reads layer_gather(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t sources,
			  const struct places *const *places, const struct value_rows *values,
			  const struct rosa_room *room);

/* y [steps][channels] from what is read; with a gate z [steps] is its factor, from the rows of u, and both are in the
 * backend's memory. */
void layer_read(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t steps,
		const struct reads *reads, const float *u, float *z, float *y);

/* inj (+)= y Wout^T */
void layer_inject(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *y,
		  bool add, float *inj);

/* mix = (1 - a) h + a inj, a = sigmoid(a0); mix may be inj. */
void layer_mix(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *h,
	       const float *inj, float *mix);

/* ----------------------------------------------------------------------------------------------- whole sequences -- */

/* A source of a layer's reads over a batch. Where q is not NULL, the q and k whose symbols were looked up learn. */
struct rosa_source {
	const struct lookup *lookup;
	const float *q, *k; /* [count * steps][channels]; k NULL: q is k too */
	float *gq, *gk;     /* sums that their gradients are added to, where several layers read the source. NULL: this
			       layer's own, which it projects itself */
};

/* A batch of sequences, and scratch memory that the layers of a model share. */
struct rosa_batch {
	size_t count, steps;
	const uint64_t *seeds;       /* as in lookup_find */
	struct past_control control; /* of what is read */
	uint16_t *symbols[2];        /* [count * routes][steps]: of q and k; NULL where no layer has them */
	uint64_t *bits;              /* [steps][words]: the values of one sequence */
	struct rosa_room room;       /* of one sequence */
	struct places *places;       /* [sources]: of one sequence */
	float *y;                    /* [count * steps][channels] */
	float *z;                    /* [count * steps]; NULL without a gate */
};

/* Scratch memory, all but y and z, for layers with up to these sources. `own`: some have q and k. */
void layer_batch_take(const struct rosa_setup *setup, size_t sources, const struct lookup_shape *shapes, bool own,
		      struct scratch *scratch, struct rosa_batch *batch);

/* Look up what the symbols of q and k, rows of `x`, find. `lookup` has been reserved; `learning` NULL: as in use,
 * nothing is explored and no counterfactuals are looked up. */
rosa_status layer_find(const struct rosa_setup *setup, const struct rosa_weights *weights,
		       const struct rosa_batch *batch, const rosa_learning *learning, const struct rosa_rows *x,
		       struct lookup *lookup, rosa_error *err);

/* What a layer reads from in a batch. */
struct rosa_inputs {
	size_t sources;
	const struct rosa_source *from; /* [sources] */
	const float *v;                 /* rows whose signs are the values */
	const float *x;                 /* rows that v was projected from */
	const float *u;                 /* rows that the gate takes, and that q and k were projected from */
};

/* batch->y, and with a gate batch->z, from v and what was looked up. It takes far less time than a product, so y need
 * not be kept for the backward pass. */
void layer_read_batch(const struct rosa_setup *setup, const struct rosa_weights *weights,
		      const struct rosa_batch *batch, const struct rosa_inputs *inputs);

/* The gradients of the parameters; what is computed is added. NULL: not wanted. Where Wq and Wk are shared, q receives
 * the sum of both. */
struct rosa_grads {
	float *q, *k, *v, *out, *e0, *e1, *gain, *gate_w, *gate_b;
};

/* Scratch memory of the backward pass. */
struct rosa_back {
	float *gy, *gq, *gk, *gv; /* [rows][channels]; gq, gk NULL where no source learns them */
	float *ge0, *ge1;         /* [links][channels] */
	float *ggain;             /* [rows of gain][ROSA_GAINS]; NULL without gain */
	float *ga;                /* [rows]; NULL without a gate */
};

/* The backward pass of one layer. */
struct rosa_backward {
	const struct rosa_setup *setup;
	const struct rosa_weights *weights;
	const struct rosa_batch *batch; /* y and z are those of this layer (layer_read_batch) */
	const rosa_learning *learning;
	const struct rosa_inputs *inputs;
	const float *ginj; /* the gradient of inj */
	const struct rosa_back *back;
	const struct rosa_grads *grads;
	float *gu, *gx; /* those of the inputs u and x are added; NULL: not wanted. The same where x is u */
};

/* A call that fails has added nothing to `grads` and to the sums of the sources. */
rosa_status layer_backward(const struct rosa_backward *call, rosa_error *err);

/* From the gradients of q and k (NULL: none), such as the sums over the layers that read them, to those of their
 * projections and of U. gq is overwritten where Wq and Wk are shared. */
void layer_project_back(const struct rosa_setup *setup, const struct rosa_weights *weights, size_t rows, const float *u,
			float *gq, const float *gk, const struct rosa_grads *grads, float *gu);
