/* rosatune mqar, for the files that make it: what is asked for, what came out, and how it is shown. */
#pragma once

#include "train/mqar_train.h"
#include "cli/report.h"

/* One network that was trained. */
struct mqar_run {
	enum mqar_mode mode;
	uint64_t parameters;
	double seconds;            /* of learning, without judging */
	double tokens_per_second;  /* of it */
	struct mqar_epoch *epochs; /* [setup.epochs + 1]; the first is before training */
	size_t count;              /* of them that there are */
};

struct mqar_result {
	struct mqar_setup setup; /* the mode is each run's */
	struct mqar_run runs[MQAR_MODES];
	size_t count;
	bool interrupted;
};

/* Whether global attention has run to its end without learning the task. It can learn it, but needs many more steps
 * than an adapter, and its number says nothing without that. */
bool mqar_too_short(const struct mqar_result *result, const struct mqar_run *run);

/* A line or more on an epoch that has just ended. */
void mqar_print_epoch(const struct mqar_result *result, const struct mqar_run *run);
/* Accuracy by epoch, one column per mode. */
void mqar_print_table(const struct mqar_result *result);
/* Everything, as one JSON object. */
bool mqar_print_json(const struct mqar_result *result, rosa_error *why);

/* Accuracy by epoch as a picture: .png, .svg or .pdf. */
bool mqar_plot(const struct mqar_result *result, const char *path, rosa_error *why);
