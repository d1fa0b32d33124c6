/* The numbers that training changes: values, gradients and what the optimiser keeps of each. */
#pragma once

#include "backend/training.h"

#include "rosatune.h"

enum parameter_group { BACKBONE, ADAPTER };

struct parameter {
	char name[96]; /* "model.layers.0.self_attn.q_proj.weight", "rosa.layers.0.k_proj.weight" */
	int dims;      /* 1 or 2 */
	size_t shape[2];
	size_t count;
	enum parameter_group group;
	bool vector;                          /* not a matrix of a product: it has the rate of vectors, and no decay */
	double pace;                          /* its rate beside that of others of its kind */
	bool trained;                         /* else it has no gradient and no moments */
	float *value, *grad, *first, *second; /* in the backend's memory; the last three NULL where not trained */
};

struct parameters {
	struct backend *backend;
	struct parameter *all;
	size_t count, room;
};

/* Add a parameter with memory for its value, whose address is stored in *place. The list may move. */
rosa_status parameters_add(struct parameters *parameters, const char *name, int dims, const size_t *shape, bool vector,
			   enum parameter_group group, float **place, rosa_error *err);
/* Memory for gradients and moments of what is trained; both are 0. */
rosa_status parameters_train(struct parameters *parameters, bool backbone, bool adapter, rosa_error *err);
/* Free the gradient and the moments of a parameter that is not trained after all. */
void parameters_freeze(struct parameters *parameters, struct parameter *parameter);
void parameters_free(struct parameters *parameters); /* safe on a zeroed one */

struct parameter *parameters_find(const struct parameters *parameters, const char *name);

void parameters_clear_gradients(struct parameters *parameters);
/* The norm of all gradients together. */
double parameters_gradient_norm(const struct parameters *parameters);

/* One step: rates by group, gradients multiplied by `scale`. */
struct step_rates {
	double backbone, adapter;
	double vectors; /* of the adapter */
	double beta1, beta2, eps, decay;
	uint64_t step; /* from 1 */
	float scale;
};
void parameters_step(struct parameters *parameters, const struct step_rates *rates);
