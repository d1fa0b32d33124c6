/* The log of a run: one line of JSON per logged step. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>
#include <stdio.h>

#define TRAINING_LOG "log.jsonl" /* its name in the folder of a run */

struct training_entry {
	uint64_t step; /* from 1, over all stages */
	const char *stage;
	double loss;                /* NaN: nothing counted */
	double rate, backbone_rate; /* backbone_rate is 0 if it is frozen */
	double grad_norm;
	uint64_t tokens; /* so far */
	double seconds;  /* so far, of training */
	double tokens_per_second;
	bool has_valid;
	double valid_loss;
	/* Of the validation, on far tokens (far.h): with what the adapters found, with random places and with nothing.
	 * NaN: not measured. Random reads as good as those found mean that nothing is remembered. */
	double far_loss, far_random_loss, far_off_loss;
};

struct training_log {
	char *path;
	FILE *file;
};

/* Opens a log to continue after step `step`: removes lines of later steps and an incomplete line. With 0 the log begins
 * empty. */
rosa_status training_log_open(struct training_log *log, const char *path, uint64_t step, rosa_error *err);
rosa_status training_log_add(struct training_log *log, const struct training_entry *entry, rosa_error *err);
/* Waits until the disk has it: the log must not miss steps of a checkpoint. */
rosa_status training_log_sync(struct training_log *log, rosa_error *err);
void training_log_close(struct training_log *log); /* safe on a zeroed one */
