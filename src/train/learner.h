/* One step of training: a batch of samples, their gradients, and the step of the optimiser. */
#pragma once

#include "train/network.h"
#include "train/ranks.h"

/* Where samples come from: number n is a function of n alone. All three are [length]. */
struct samples {
	void (*read)(const void *context, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight);
	const void *context;
	size_t length;
};

struct learner_options {
	uint64_t batch;       /* samples of a step, over all processes */
	uint64_t micro_batch; /* samples computed at a time: more take more memory */
	double beta1, beta2, eps, decay;
	double vector_factor; /* the rate of the adapter's vectors is so many times that of its matrices */
	double qk_factor;     /* likewise that of its q and k */
	double clip;          /* gradients whose norm is above are scaled down to it; 0: they are not */
	uint64_t seed;        /* of what is drawn while learning */
};

struct learner_result {
	double loss;      /* the mean over all that counts in the batch; NaN where nothing does */
	double norm;      /* of the gradient of that, before it is clipped */
	uint64_t correct; /* targets that were the likeliest */
	uint64_t counted;
	double far; /* learner_judge: the mean over far tokens (far.h); NaN where there are none, or no window */
};

typedef struct learner learner;

/* Memory for batches; what is trained must have been chosen (parameters_train). `network` and `ranks` must outlive it.
 */
rosa_status learner_new(network *network, const struct ranks *ranks, const struct samples *samples,
			const struct learner_options *options, learner **made, rosa_error *err);
void learner_free(learner *learner); /* safe on NULL */

/* Step number `step` (from 0) learns from samples step * batch .. (step + 1) * batch - 1, of which process r takes r,
 * r + count, ... The loss is the mean over all of them, whichever process and whichever part of the batch they are in,
 * so the number of processes and the size of a micro batch change nothing but the order in which floats are added.
 *
 * A loss or gradient that is not finite fails with ROSA_EINVAL, naming the samples, and leaves the parameters as they
 * were. A batch in which nothing counts leaves them so as well. */
rosa_status learner_step(learner *learner, uint64_t step, double adapter_rate, double backbone_rate,
			 struct learner_result *result, rosa_error *err);

/* What is judged: samples 0 .. count - 1 of any source. `reads`: what the adapters read, the places found or a control.
 * `progress` (NULL: none) is told after each micro batch, in samples of this process, and may stop it. */
struct learner_judging {
	const struct samples *samples;
	uint64_t count;
	enum past_reads reads;
	rosa_progress progress;
	void *context;
};

/* The mean loss, without learning from it. ROSA_ECANCELLED: `progress` of this process or of another stopped it. */
rosa_status learner_judge(learner *learner, const struct learner_judging *judging, struct learner_result *result,
			  rosa_error *err);
