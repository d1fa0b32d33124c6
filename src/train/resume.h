/* Going on from a checkpoint: may this run, and with which stage. */
#ifndef ROSATUNE_RESUME_H
#define ROSATUNE_RESUME_H

#include "train/run_folder.h"
#include "train/tune_config.h"

#define RESUME_CONFIG "tune.json" /* the configuration, in a checkpoint */

/* Whether the run in the folder is one that this configuration describes, begun with the model of that fingerprint.
 * What differs and may is passed to `note` (NULL: nobody wants to know). */
rosa_status resume_check(const struct checkpoint_found *found, const struct tune_config *config, uint64_t fingerprint,
			 void (*note)(void *context, const char *message), void *context, rosa_error *err);

/* The first stage that has steps left; the number of stages if none has. */
size_t resume_stage(const struct tune_config *config, const struct run_state *state);

#endif
