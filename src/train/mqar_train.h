/* A small decoder that learns associative recall. */
#pragma once

#include "train/learner.h"
#include "train/mqar.h"
#include "train/mqar_watch.h"

#define MQAR_MOST_LAYERS 32

/* Attention to everything; to a window; to a window, with adapters. */
enum mqar_mode { MQAR_GLOBAL, MQAR_WINDOW, MQAR_ROSA };
#define MQAR_MODES 3
extern const char *const mqar_mode_names[]; /* by mqar_mode; ends with NULL */

struct mqar_setup {
	struct mqar task;
	enum mqar_mode mode;
	size_t layers, heads, width, mlp_width; /* mlp_width 0: twice the width */
	float deviation;                        /* of random weights; 0: 1 / sqrt(width) */
	bool tied;                              /* the embedding serves as the head */
	struct network_options network; /* window, bits and how adapters learn; the rest follows from the mode */
	uint32_t adapters;              /* a bit for each layer that has one; 0: all */
	const char *const *frozen;      /* parameters whose names contain one of these words are not trained */
	size_t frozen_count;
	size_t examples; /* of an epoch, a multiple of batch */
	size_t epochs, batch;
	size_t held_out; /* examples that accuracy is measured on, or a few more */
	double rate, adapter_rate, decay, clip;
	double vector_factor; /* as in learner_options */
	uint64_t warmup;      /* steps */
	uint64_t seed;        /* of the weights, and of the order of examples */
};

/* Held-out examples after an epoch. */
struct mqar_epoch {
	uint64_t epoch; /* 0: before training */
	uint64_t steps; /* so far */
	uint64_t asked; /* values */
	double accuracy, loss;
	struct mqar_layer layers[MQAR_MOST_LAYERS];
};

typedef struct mqar_trainer mqar_trainer;

/* Whether a setup makes sense; asked again by mqar_trainer_new. */
rosa_status mqar_setup_check(const struct mqar_setup *setup, rosa_error *err);

/* `workers` must outlive the trainer. */
rosa_status mqar_trainer_new(const struct mqar_setup *setup, rosa_workers *workers, mqar_trainer **made,
			     rosa_error *err);
void mqar_trainer_free(mqar_trainer *trainer); /* safe on NULL */

/* Learns from the next batch. Steps are counted from 0; there are mqar_trainer_steps of them, and an epoch ends with
 * every mqar_epoch_steps-th. */
rosa_status mqar_trainer_step(mqar_trainer *trainer, uint64_t step, struct learner_result *result, rosa_error *err);
uint64_t mqar_trainer_steps(const mqar_trainer *trainer);
uint64_t mqar_epoch_steps(const mqar_trainer *trainer);
/* The learning rates of a step, of the backbone and of the adapters. */
void mqar_trainer_rates(const mqar_trainer *trainer, uint64_t step, double *backbone, double *adapter);

/* Judges held-out examples, after so many steps. */
rosa_status mqar_trainer_judge(mqar_trainer *trainer, uint64_t steps, struct mqar_epoch *epoch, rosa_error *err);

uint64_t mqar_trainer_parameters(const mqar_trainer *trainer); /* numbers in all of them */
