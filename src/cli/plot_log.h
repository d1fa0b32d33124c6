/* The curves in a log of training. */
#pragma once

#include "cli/report.h"

#include <stddef.h>
#include <stdint.h>

/* The keys of a line that are drawn. The first three can be the horizontal axis. */
enum plot_key {
	PLOT_STEP,
	PLOT_TOKENS,
	PLOT_SECONDS,
	PLOT_LOSS,
	PLOT_VALID_LOSS,
	PLOT_ACCURACY,
	PLOT_VALID_ACCURACY,
	PLOT_RATE,
	PLOT_BACKBONE_RATE,
	PLOT_GRAD_NORM,
	PLOT_FAR_LOSS,
	PLOT_FAR_RANDOM_LOSS,
	PLOT_FAR_OFF_LOSS,
	PLOT_KEYS
};

extern const char *const plot_key_names[]; /* as they are in the log; ends with NULL */

/* A line: NAN for what it does not say. */
struct plot_row {
	double values[PLOT_KEYS];
};

struct plot_log {
	const char *path;
	struct plot_row *rows;
	size_t count, room;
	size_t left_out;    /* lines that are no JSON objects */
	rosa_error problem; /* with the first of them */
};

/* Reads a log; "-" is standard input, a folder that of a run. Where steps go back, as after a run was resumed, the
 * later lines count. A last line without an end is still being written, and is passed over if it is not whole. */
bool plot_log_read(struct plot_log *log, const char *path, rosa_error *why);
void plot_log_free(struct plot_log *log);

/* Whether any line has a number there. */
bool plot_log_has(const struct plot_log *log, enum plot_key key);
