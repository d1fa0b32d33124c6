/* A whole training run: its stages, its checkpoints and its log. */
#pragma once

#include "base/paths.h"
#include "train/learner.h"
#include "train/pointer_fit.h"
#include "train/training_log.h"
#include "train/tune_config.h"

/* Reported after every step. */
struct trainer_report {
	struct training_entry entry;
	size_t stage, stages;                    /* the stage, from 0, and how many there are */
	uint64_t steps, stage_step, stage_steps; /* of the whole run; taken and to take in this stage */
	uint64_t begun;                          /* the step this process began at */
	double elapsed;                          /* seconds since then */
};

struct trainer_hooks {
	void *context;
	/* All of these are only called on the first process, but for `stop`; any may be NULL. */
	void (*begin)(void *context, const struct trainer_report *report, uint64_t trained, uint64_t parameters);
	void (*step)(void *context, const struct trainer_report *report); /* step 0: validated before the first */
	void (*saved)(void *context, const char *path);
	void (*note)(void *context, const char *message); /* something the user should know */
	bool (*stop)(void *context);                      /* asked after every step, and before the first */
	/* Of a validation: readings done of those to do. Each of `samples` is read by the adapter and by each control.
	 */
	void (*judging)(void *context, uint64_t done, uint64_t total, uint64_t samples);
	/* Of a pointer: positions read of those to read, then steps of the fit; and its result. */
	void (*fitting)(void *context, uint64_t done, uint64_t total);
	void (*fitted)(void *context, const struct pointer_fitted *fitted);
};

struct trainer_outcome {
	bool stopped;               /* by `stop`, before the end */
	struct trainer_report last; /* of the last step taken by anyone; step 0: none was */
	struct path checkpoint;     /* the last one saved; empty: none was */
	struct path final;          /* the adapter in bfloat16, written at the end of the run; empty: none was */
	struct path pointer;        /* the pointer that was fitted; empty: none was */
	double valid_loss;          /* the last one measured; NaN: none was */
};

/* Trains. With `resume` it continues from the newest intact checkpoint in config->out, and begins where there is none;
 * without, a folder that has checkpoints is refused. A stop saves first, if a step was taken. Where the failure was
 * another process's, the status is ROSA_ECANCELLED. */
rosa_status trainer_run(const struct tune_config *config, bool resume, const struct ranks *ranks,
			const struct trainer_hooks *hooks, struct trainer_outcome *outcome, rosa_error *err);
