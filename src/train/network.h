/* A decoder that can be trained: forward and backward over whole sequences. */
#pragma once

#include "model/adapter.h"
#include "model/adapter_options.h"
#include "rosa/places.h"
#include "train/parameters.h"

struct network_options {
	bool rosa;                      /* with adapters */
	struct adapter_options adapter; /* window, sinks and first_global_layers also apply without adapters */
	bool recompute; /* keep only the input of each layer, and recompute the rest in the backward pass */
	uint64_t seed;  /* of the initial random weights */
};

/* With adapters that have the default options, and recomputation. */
struct network_options network_options_default(void);

typedef struct network network;

/* From a checkpoint; adapters from an adapter folder (NULL: new ones). Weights are widened to float32. */
rosa_status network_load(const struct checkpoint *checkpoint, const struct adapter *adapter,
			 const struct network_options *options, struct backend *backend, rosa_workers *workers,
			 network **made, rosa_error *err);
/* With random weights: matrices normal with deviation `deviation`, norms 1. */
rosa_status network_new(const struct model_config *config, float deviation, const struct network_options *options,
			struct backend *backend, rosa_workers *workers, network **made, rosa_error *err);
void network_free(network *network); /* safe on NULL */

struct parameters *network_parameters(network *network);
const struct model_config *network_config(const network *network);
const struct network_options *network_settings(const network *network);
/* The seed of random draws in training. Every draw is a function of this seed, the layer, the number of the sample, the
 * route and the step, so the division of samples into batches does not matter. */
void network_set_seed(network *network, uint64_t seed);

/* The rate of the q and k of adapters beside that of their other matrices; 1 unless set. */
void network_pace_qk(network *network, double pace);

/* Sequences of the same length: tokens in, the tokens that should follow, and how much each counts (0: not at all). */
struct batch {
	size_t count, steps;
	const uint32_t *tokens, *targets; /* [count][steps] */
	const float *weight;              /* the same; NULL: 1 everywhere */
	const uint64_t *numbers;          /* [count] of the samples, for what is drawn; NULL: 0, 1, 2, ... */
};

struct batch_result {
	double loss;      /* the weighted sum */
	double weight;    /* the sum of weights */
	uint64_t correct; /* targets that had the greatest logit, among those that count */
	uint64_t counted;
};

/* What an adapter did in a forward pass. Symbols and tau are [count * routes][steps]; tau is -1 where nothing was
 * found. */
struct network_view {
	size_t layer, count, steps;
	size_t routes;               /* of the layer's first source */
	const int32_t *tau;          /* of its first link */
	const uint16_t *query, *key; /* its symbols, where it is the layer's own source; else NULL */
};

typedef void (*network_observer)(void *context, const struct network_view *view);

/* Forward and backward: gradients of scale * loss are added to the parameters'. `result` is overwritten. */
rosa_status network_learn(network *network, const struct batch *batch, float scale, struct batch_result *result,
			  rosa_error *err);

/* What network_judge does and reports. All zeros, or NULL, is the plain case. */
struct network_judging {
	enum past_reads reads; /* what the adapters read: the places found, or a control */
	double *losses;        /* [count][steps]: each target's part of the loss; NULL: not wanted */
	network_observer observer;
	/* Receives logits, `rows` rows of them, of which the first is row `first` of [count][steps]. */
	void (*logits)(void *context, size_t first, size_t rows, const float *logits);
	void *context; /* of both */
};

/* Forward only, as in inference: without exploration. */
rosa_status network_judge(network *network, const struct batch *batch, const struct network_judging *judging,
			  struct batch_result *result, rosa_error *err);

/* The scales of the adapters, [layers], 1 in layers without one. New adapters with units begin with 1 and are to be
 * measured once: a scale becomes units times the median, over the positions of the batch, of the root mean square of
 * the hidden state that enters the layer. */
const float *network_scales(const network *network);
bool network_lacks_units(const network *network);
rosa_status network_measure_units(network *network, const struct batch *batch, rosa_error *err);
/* For a network whose scales come from a file. */
void network_set_scales(network *network, const float *scales);

/* Memory for batches of this shape, for network_learn or only for network_judge. Both reserve it themselves; call this
 * to find out beforehand whether it is available. */
rosa_status network_reserve(network *network, size_t count, size_t steps, bool learning, rosa_error *err);

/* Bytes of activations that the last batch needed. */
uint64_t network_activation_bytes(const network *network);
