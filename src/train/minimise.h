/* The minimum of a smooth function of a few hundred variables. */
#pragma once

#include "rosatune.h"

/* Returns the value at x and writes the gradient. */
typedef double minimise_function(void *context, const double *x, double *gradient);

/* Goes downhill from x, which must have a finite value, until a step gains less than `gain` times the value, or `most`
 * steps were taken. x becomes the best point found; its value is never above that of the start. The same input gives
 * the same bits. `progress` (may be NULL) is called before each step; nonzero stops with ROSA_ECANCELLED. */
rosa_status minimise(size_t count, double *x, minimise_function *function, void *context, size_t most, double gain,
		     rosa_progress progress, void *progress_context, rosa_error *err);
