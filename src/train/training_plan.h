/* What a run would do, and the memory and time it needs. */
#pragma once

#include "train/ranks.h"
#include "train/tune_config.h"

struct stage_plan {
	uint64_t steps, tokens;               /* still to come, over all processes */
	uint64_t positions;                   /* that a pointer is fitted to; 0: none is */
	uint64_t trained;                     /* parameters */
	uint64_t data_tokens, data_samples;   /* that there are */
	uint64_t cut, no_answer;              /* conversations, as in struct dataset_facts */
	uint64_t valid_tokens, valid_samples; /* measured every valid_every steps; 0: nothing is */
	/* Bytes per process: all numbers, and the activations of a micro batch. The counterfactuals of qk_grad
	 * "flips" come on top; their number depends on the data. */
	uint64_t memory;
	uint64_t checkpoint; /* bytes of one on the disk */
	/* From one sequence that was measured; without validation and saving. NaN: not measured, as memory is short. */
	double seconds, tokens_per_second;
	size_t measured; /* tokens of that sequence */
};

struct training_plan {
	uint64_t parameters, adapter; /* in all, and those of the adapter */
	uint64_t steps, tokens;
	double seconds;   /* NaN: not all stages were measured */
	uint64_t memory;  /* of the stage that takes most */
	uint64_t resumed; /* the step of the checkpoint to continue from; UINT64_MAX: none */
	struct stage_plan *stages;
};

/* Opens all that a run would, model, adapter, data and folder, and refuses what it would, but writes nothing. Computes
 * the gradient of one sequence per stage, to estimate the time. */
rosa_status training_plan_make(const struct tune_config *config, bool resume, const struct ranks *ranks,
			       struct training_plan *plan, rosa_error *err);
void training_plan_free(struct training_plan *plan); /* safe on a zeroed one */
