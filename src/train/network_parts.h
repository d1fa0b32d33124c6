/* The internals of a network, shared by its files. */
#pragma once

#include "model/seen.h"
#include "model/token_symbols.h"
#include "rosa/layer.h"
#include "train/network.h"

/* A parameter: a vector, or a matrix [out][in]. */
struct weight {
	float *value;
	size_t index;         /* in the list of parameters */
	struct matrix matrix; /* of the same numbers; zeroed for a vector */
};

struct network_layer {
	struct weight attention_norm, q, k, v, o, mlp_norm, gate, up, down;
	struct weight q_norm, k_norm, q_bias, k_bias, v_bias; /* those that are not there are zeroed */
	size_t window, sinks;
	bool has_rosa;
	/* rosa_q is rosa_k where shared; those that are not there are zeroed */
	struct weight rosa_q, rosa_k, rosa_v, rosa_out, e0, e1, a0, gain, gate_w, gate_b;
	struct rosa_weights rosa; /* the same, as the ROSA layer takes them */
	size_t *routes;           /* [rosa.links] */
};

/* A source of what the adapters read. Those of tokens and of one layer's q and k are looked up once per batch and serve
 * several layers; what the source `own` finds is in the layers' tapes. */
struct network_source {
	struct adapter_source is;
	rosa_options options; /* of its retrieval */
	size_t routes, links;
	void *symbols;        /* of tokens: [count * routes][steps] */
	struct lookup lookup; /* of the batch; not for `own` */
	float *q, *k;         /* of a layer: rows, kept until all layers that read it have gone back; k NULL: shared */
	float *gq, *gk;       /* the sums of their gradients over those layers */
};

/* Activations of one layer that the backward pass needs, [rows][...]; names as in network_layer.c. */
struct layer_tape {
	float *h, *u, *q_raw, *k_raw, *q, *k, *v, *attended, *level, *middle, *u2, *gate, *up, *act;
	float *rosa_u, *inj, *mix; /* pre fusion only */
	struct rosa_rows rosa;     /* q and k only with the source `own` */
	struct lookup lookup;      /* of the source `own` */
};

/* The seen-token head (network_seen.c). */
struct network_seen {
	size_t rank; /* 0: there is none */
	struct weight table, gate, query, key;
	struct seen counts; /* of the sequence at hand */
	bool *listed;       /* [vocabulary]: in the list below, while it is made */

	/* Of the batch. */
	size_t count;     /* different tokens that its sequences can have seen */
	uint32_t *tokens; /* these */
	uint8_t *classes; /* [rows][count], of some rows */
	float *e, *k;     /* their rows of the head, [count][width]; their keys, [count][rank] */
	float *q, *g, *s; /* of some rows: query h, gate . h, and q . k of all tokens; then the gradient of the last */
	float *gk, *gq, *gg;
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
	size_t source_count;
	struct network_source sources[SOURCES_MOST];
	struct tensor embedding_tensor; /* the embedding's values, for token_symbols */
	struct token_symbols token_symbols;
	struct network_seen seen;
	float *scales;    /* [layers], of the adapters */
	bool lacks_units; /* the scales are to be measured */

	/* Memory for the last shape of batch. */
	size_t count, steps;
	const uint64_t *numbers;  /* of the samples of the batch that is learnt from */
	size_t lowest;            /* the lowest layer that the backward pass reaches */
	bool tapes_full;          /* one tape per layer; else one for all, and the inputs of the layers apart */
	struct layer_tape *tapes; /* [layers or 1] */
	float **inputs;           /* [layers + 1]: the hidden state before each layer, and after the last */
	float *u, *logits;        /* normed last state; logits of some rows */
	float *embedded;          /* normed embeddings, which values are made of; NULL: of the layers' inputs */
	float *gembedded;         /* the sum of their gradients; NULL: not wanted */
	float *gh, *gu, *gx, *gq, *gk, *gv, *gattended, *ggate, *gup, *scratch_scales, *ge[2], *ggain, *ga;
	struct rosa_batch sequences; /* scratch memory of the ROSA layers */
	struct scratch sequence_memory;
	uint64_t *seeds; /* [count]: what each sequence draws by, in the layer at hand */
	uint64_t bytes;
	void **blocks; /* all of it */
	size_t block_count, block_room;
};

#define NETWORK_LOGITS_ROWS ((size_t)256)

/* The gradient of a weight; NULL: it is not trained, or not there. */
float *network_grad(const network *network, const struct weight *weight);

/* Memory for the batch, `rows` of `width` elements of `size` bytes; a failure clears *good. */
void *network_take(network *network, size_t rows, size_t width, size_t size, bool *good);

/* One layer: from tape->h to `out`, filling the tape. */
rosa_status network_layer_forward(network *network, size_t number, struct layer_tape *tape,
				  const rosa_learning *learning, float *out, rosa_error *err);
/* The backward pass: gh is the gradient of the layer's output, and becomes that of its input. */
rosa_status network_layer_backward(network *network, size_t number, const struct layer_tape *tape,
				   const rosa_learning *learning, rosa_error *err);

/* ------------------------------------------------------------------------------------------------------ sources -- */

rosa_status network_sources_new(network *network, rosa_error *err);
void network_sources_free(network *network);

/* Whether layers read what their own q and k find. */
bool network_has_own(const network *network);

/* The routes of each of a layer's reads. */
rosa_status network_reads_new(network *network, size_t number, rosa_error *err);

/* Memory for a batch, and its release. */
void network_sources_take(network *network, bool learning, bool *good);
void network_sources_release(network *network);
uint64_t network_sources_bytes(const network *network);

/* Memory for what the source `own` finds in a layer; nothing where there is no such source. */
bool network_take_lookup(network *network, struct lookup *lookup);

/* Look up, once for all layers, what tokens find. */
rosa_status network_find_tokens(network *network, const uint32_t *tokens, rosa_error *err);

/* Whether an adapter has q and k, and the rows that they are projected to: the tape's, or those of a source that other
 * layers read too. */
struct rosa_rows network_rows(const network *network, size_t number, const struct layer_tape *tape);

/* Look up what a layer's own q and k find, where it has them. */
rosa_status network_find_own(network *network, size_t number, struct layer_tape *tape, const rosa_learning *learning,
			     rosa_error *err);

/* The sources of a layer's reads; returns how many. */
size_t network_sources_of(const network *network, size_t number, const struct layer_tape *tape,
			  struct rosa_source from[ROSA_MAX_SOURCES]);

/* The source whose q and k are those of this layer, for it and the layers above; NULL: none. */
const struct network_source *network_layer_source(const network *network, size_t number);

/* No gradients of shared q and k yet. */
void network_clear_sums(network *network);

/* ------------------------------------------------------------------------------------------------- tokens seen -- */

/* All of these do nothing where there is no seen-token head. */
rosa_status network_seen_new(network *network, rosa_error *err);
/* The rates of what its parameters multiply hidden states with, once all are there. */
rosa_status network_seen_pace(network *network, rosa_error *err);
void network_seen_free(network *network);
void network_seen_take(network *network, bool learning, bool *good);
void network_seen_release(network *network);

/* Before the first rows of a batch. */
rosa_status network_seen_begin(network *network, const uint32_t *tokens, enum past_reads reads, rosa_error *err);
/* Add to the logits of rows `first` .. of the batch, whose last states are h; to be called for all rows in order. */
void network_seen_add(network *network, const uint32_t *tokens, size_t first, size_t rows, const float *h);
/* The backward pass of the rows that were added to last; network.logits has the gradient of their logits. gh += */
void network_seen_back(network *network, size_t rows, const float *h, float *gh);
/* After the last rows. */
void network_seen_finish(network *network);
