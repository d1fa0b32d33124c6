/* Learning rates over the steps of a stage. */
#pragma once

#include <stdint.h>

struct schedule {
	double max, min;
	uint64_t warmup; /* steps until max is reached */
	uint64_t steps;  /* of the whole stage */
};

/* The rate of a step, from 0. It rises in a straight line, max * (step + 1) / warmup, then falls as half a cosine from
 * max to min, which the last step has. */
double schedule_rate(const struct schedule *schedule, uint64_t step);
