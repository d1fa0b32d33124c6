/* What `rosatune tune --dry-run` prints. */
#ifndef ROSATUNE_TUNE_PLAN_H
#define ROSATUNE_TUNE_PLAN_H

#include "train/training_plan.h"

void tune_plan_print(const struct tune_config *config, const struct training_plan *plan, const struct ranks *ranks);
/* False if memory is short. */
bool tune_plan_print_json(const struct tune_config *config, const struct training_plan *plan);

#endif
