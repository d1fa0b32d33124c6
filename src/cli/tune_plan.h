/* What `rosatune tune --dry-run` prints. */
#pragma once

#include "train/training_plan.h"

void tune_plan_print(const struct tune_config *config, const struct training_plan *plan, const struct ranks *ranks);
bool tune_plan_print_json(const struct tune_config *config, const struct training_plan *plan, rosa_error *why);
