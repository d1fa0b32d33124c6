/* The internals of a network, shared by its files. */
#ifndef ROSATUNE_NETWORK_PARTS_H
#define ROSATUNE_NETWORK_PARTS_H

#include "rosa/layer.h"
#include "train/network.h"

/* A parameter: a vector, or a matrix [out][in]. */
struct weight {
	float *value;
	size_t index;         /* in the list of parameters */
	struct matrix matrix; /* of the same numbers; zeroed for a vector */
};

struct network_layer {
	struct weight attention_norm, q, k, v, o, q_norm, k_norm, mlp_norm, gate, up, down;
	size_t window, sinks;
	bool has_rosa;
	struct weight rosa_q, rosa_k, rosa_v, rosa_out, e0, e1, a0; /* rosa_q is rosa_k where shared */
	struct rosa_weights rosa;                                   /* the same, as the ROSA layer takes them */
};

/* Activations of one layer that the backward pass needs, [rows][...]; names as in network_layer.c. */
struct layer_tape {
	float *h, *u, *q_raw, *k_raw, *q, *k, *v, *attended, *level, *middle, *u2, *gate, *up, *act;
	float *rosa_u, *inj, *mix; /* pre fusion only */
	struct rosa_rows rosa;
	struct lookup lookup;
};

struct network {
	struct model_config config;
	struct network_options options;
	struct backend *backend;
	const struct backend_ops *ops;
	const struct training_ops *training;
	rosa_workers *workers;
	struct parameters parameters;

	struct weight embedding, norm, head; /* head is the embedding where tied */
	struct network_layer *layers;
	float *frequencies;
	struct rotary rotary;
	struct rosa_setup rosa; /* of the adapters, if there are any */

	/* Memory for the last shape of batch. */
	size_t count, steps;
	const uint64_t *numbers;  /* of the samples of the batch that is learnt from */
	bool tapes_full;          /* one tape per layer; else one for all, and the inputs of the layers apart */
	struct layer_tape *tapes; /* [layers or 1] */
	float **inputs;           /* [layers + 1]: the hidden state before each layer, and after the last */
	float *u, *logits;        /* normed last state; logits of some rows */
	float *gh, *gu, *gx, *gq, *gk, *gv, *gattended, *ggate, *gup, *scales, *gchannels[2];
	struct rosa_batch sequences; /* scratch memory of the ROSA layers */
	uint64_t *seeds;             /* [count]: what each sequence draws by, in the layer at hand */
	uint64_t bytes;
	void **blocks; /* all of it */
	size_t block_count, block_room;
};

#define NETWORK_LOGITS_ROWS ((size_t)256)

/* The gradient of a weight; NULL: it is not trained. */
float *network_grad(const network *network, const struct weight *weight);

/* One layer: from tape->h to `out`, filling the tape. */
rosa_status network_layer_forward(network *network, size_t number, struct layer_tape *tape,
				  const rosa_learning *learning, float *out, rosa_error *err);
/* The backward pass: gh is the gradient of the layer's output, and becomes that of its input. */
rosa_status network_layer_backward(network *network, size_t number, const struct layer_tape *tape,
				   const rosa_learning *learning, rosa_error *err);

#endif
