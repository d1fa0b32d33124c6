/* The inside of a network, for the files that make it. */
#ifndef ROSATUNE_NETWORK_PARTS_H
#define ROSATUNE_NETWORK_PARTS_H

#include "train/network.h"

/* A parameter of a layer: its numbers, and the gradient's where it is trained. */
struct weight {
	float *value;
	size_t index; /* in the list of parameters */
};

struct network_layer {
	struct weight attention_norm, q, k, v, o, q_norm, k_norm, mlp_norm, gate, up, down;
	size_t window, sinks;
	bool has_rosa;
	struct weight rosa_q, rosa_k, rosa_v, rosa_out, e0, e1, a0; /* rosa_q is rosa_k where shared */
};

/* Activations of one layer that the way back needs, [rows][...]; names as in network_layer.c. */
struct layer_tape {
	float *h, *u, *q_raw, *k_raw, *q, *k, *v, *attended, *level, *middle, *u2, *gate, *up, *act;
	float *rosa_u, *rosa_q, *rosa_k, *rosa_v, *rosa_y, *inj, *mix;
	void *read, *flips;
	size_t flips_room;
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

	/* Room for the last shape of batch. */
	size_t count, steps;
	const uint64_t *numbers;  /* of the batch that is learnt from */
	bool tapes_full;          /* one tape a layer; else one for all, and the inputs of the layers apart */
	struct layer_tape *tapes; /* [layers or 1] */
	float **inputs;           /* [layers + 1]: the hidden state before each layer, and after the last */
	float *u, *logits;        /* normed last state; logits of some rows */
	float *gh, *gu, *gx, *gq, *gk, *gv, *gattended, *ggate, *gup, *scales, *gchannels[2];
	uint16_t *symbols[3];
	int32_t *tau;
	uint64_t bytes;
	void **blocks; /* all of it */
	size_t block_count, block_room;
};

#define NETWORK_LOGITS_ROWS ((size_t)256)

/* Where a weight's gradient goes; NULL: it is not trained. */
float *network_grad(const network *network, const struct weight *weight);

/* One layer: from tape->h to `out`, filling the tape. */
rosa_status layer_forward(network *network, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			  float *out, rosa_error *err);
/* And back: gh is the gradient of the layer's output, and becomes that of its input. */
rosa_status layer_backward(network *network, size_t number, const struct layer_tape *tape,
			   const rosa_learning *learning, rosa_error *err);

/* The operator: from the normed state to inj, and from its gradient (in gx) to that of the normed state, added to gu.
 */
rosa_status rosa_forward(network *network, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			 const float *u, float *inj, bool add, rosa_error *err);
rosa_status rosa_backward(network *network, size_t number, const struct layer_tape *tape, const rosa_learning *learning,
			  const float *u, const float *ginj, float *gu, rosa_error *err);

rosa_options network_retrieval(const network *network);

#endif
