/* Attention over whole sequences, forward and backward. */
#pragma once

#include "base/pool.h"
#include "backend/training.h"

/* Scratch numbers per worker. */
size_t attention_train_scratch(const struct attention_shape *shape);

/* As in training_ops; `scratch` has the numbers of all workers. */
void attention_train(struct pool *pool, float *scratch, const struct attention_shape *shape, const float *q,
		     const float *k, const float *v, float *y, float *level);
void attention_train_back(struct pool *pool, float *scratch, const struct attention_shape *shape, const float *q,
			  const float *k, const float *v, const float *y, const float *level, const float *gy,
			  float *gq, float *gk, float *gv);
