/* A stage of a run that fits a pointer to the network as it is. */
#pragma once

#include "train/dataset.h"
#include "train/network.h"
#include "train/pointer_fit.h"
#include "train/tune_config.h"

/* Whether a stage can fit a pointer beside this window: a text must be longer than four windows. */
rosa_status pointer_stage_check(const struct tune_stage *stage, uint64_t window, rosa_error *err);

/* Reads samples of `data`, once at most, until there are stage->positions positions, and fits. `progress` (may be NULL)
 * is told of positions, then of steps of the fit; nonzero stops with ROSA_ECANCELLED. */
rosa_status pointer_stage_run(network *network, const dataset *data, const struct tune_stage *stage,
			      struct pointer_fitted *fitted, rosa_progress progress, void *context, rosa_error *err);
