/* Resuming from a checkpoint: whether this run may, and with which stage. */
#pragma once

#include "train/run_folder.h"
#include "train/tune_config.h"

#define RESUME_CONFIG "tune.json" /* the configuration, in a checkpoint */

/* Whether the run in the folder is one that this configuration describes, begun with the model of that fingerprint.
 * Differences that are allowed are passed to `note` (NULL: none). If the stage's data is another now, found->state.data
 * becomes 0: there is nothing to compare. */
rosa_status resume_check(struct checkpoint_found *found, const struct tune_config *config, uint64_t fingerprint,
			 void (*note)(void *context, const char *message), void *context, rosa_error *err);

/* Whether `data`, of stage number `stage`, is what the run has been reading, byte for byte: sample n would be another
 * otherwise. Shards that were written after the checkpoint noted them are read whole; a stage that has not begun may
 * have any data. */
rosa_status resume_check_data(const struct run_state *state, size_t stage, const dataset *data, rosa_error *err);

/* The first stage that has steps left; the number of stages if none has. */
size_t resume_stage(const struct tune_config *config, const struct run_state *state);
