/*
 * Logs of training.
 *
 * A line is a JSON object, and says what there was to say at that step: a validation loss only now and then, a rate
 * only where one is set. Other fields may be there for other readers. A run that was killed and resumed has written
 * some steps twice; the second time counts.
 */
#include "cli/plot_log.h"

#include "base/array.h"
#include "base/paths.h"
#include "cli/interrupt.h"
#include "model/json.h"
#include "train/pack_lines.h"
#include "train/training_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const plot_key_names[] = {
    [PLOT_STEP] = "step",
    [PLOT_TOKENS] = "tokens",
    [PLOT_SECONDS] = "seconds",
    [PLOT_LOSS] = "loss",
    [PLOT_VALID_LOSS] = "valid_loss",
    [PLOT_ACCURACY] = "accuracy",
    [PLOT_VALID_ACCURACY] = "valid_accuracy",
    [PLOT_RATE] = "rate",
    [PLOT_BACKBONE_RATE] = "backbone_rate",
    [PLOT_GRAD_NORM] = "grad_norm",
    [PLOT_FAR_LOSS] = "far_loss",
    [PLOT_FAR_RANDOM_LOSS] = "far_random_loss",
    [PLOT_FAR_OFF_LOSS] = "far_off_loss",
    [PLOT_KEYS] = NULL,
};

/* What the later line says counts. */
static void merge(struct plot_row *row, const struct plot_row *later)
{
	for (int key = 0; key < PLOT_KEYS; key++) {
		if (!isnan(later->values[key]))
			row->values[key] = later->values[key];
	}
}

static bool add_row(struct plot_log *log, const struct plot_row *row, rosa_error *why)
{
	if (!ARRAY_RESERVE(log->rows, log->room, log->count + 1))
		return refuse(why, "not enough memory for the %zu lines of %s", log->count + 1, log->path);
	/* steps of a run that was resumed replace those that it had gone beyond */
	while (log->count && log->rows[log->count - 1].values[PLOT_STEP] > row->values[PLOT_STEP])
		log->count--;
	/* and a second line for the same step adds to the first */
	if (log->count && log->rows[log->count - 1].values[PLOT_STEP] == row->values[PLOT_STEP])
		merge(&log->rows[log->count - 1], row);
	else
		log->rows[log->count++] = *row;
	return true;
}

static struct plot_row row_of(struct json root)
{
	struct plot_row row;

	for (int key = 0; key < PLOT_KEYS; key++) {
		struct json field = json_find(root, plot_key_names[key]);
		row.values[key] = NAN;
		if (json_kind(field) == JSON_IS_NUMBER)
			json_as_number(field, &row.values[key], NULL);
	}
	return row;
}

static bool read_line(struct plot_log *log, const char *line, size_t size, uint64_t number, rosa_error *why)
{
	struct json root = {0};
	struct plot_row row;
	bool good = true;

	if (json_read(line, size, log->path, &root, why) == ROSA_OK && json_kind(root) == JSON_IS_OBJECT) {
		row = row_of(root);
		good = add_row(log, &row, why);
	} else if (line[size - 1] == '\n' && log->left_out++ == 0) {
		refuse(&log->problem, "%s: line %llu is not a JSON object", log->path, (unsigned long long)number);
	}
	json_free(&root);
	return good;
}

static bool read_lines(struct plot_log *log, struct pack_lines *lines, rosa_error *why)
{
	const char *line;
	size_t size;

	for (;;) {
		if (pack_lines_next(lines, &line, &size, why) != ROSA_OK)
			return false;
		if (!line)
			return log->count > 0 || refuse(why, "%s: has no line that is a JSON object", log->path);
		if (!pack_line_blank(line, size) && !read_line(log, line, size, lines->number, why))
			return false;
	}
}

bool plot_log_read(struct plot_log *log, const char *path, rosa_error *why)
{
	const struct path inside = path_join(path, TRAINING_LOG);
	struct pack_lines lines;
	struct json nothing = {0};
	bool good;

	memset(log, 0, sizeof(*log));
	log->path = path;
	good = json_read("{}", 2, path, &nothing, why) == ROSA_OK;
	json_free(&nothing);
	if (good) {
		good = pack_lines_open(&lines, path_is_folder(path) ? inside.text : path, &interrupt_hooks, why) ==
			   ROSA_OK &&
		       read_lines(log, &lines, why);
		pack_lines_close(&lines);
	}
	return good;
}

void plot_log_free(struct plot_log *log)
{
	free(log->rows);
	memset(log, 0, sizeof(*log));
}

bool plot_log_has(const struct plot_log *log, enum plot_key key)
{
	for (size_t i = 0; i < log->count; i++) {
		if (isfinite(log->rows[i].values[key]))
			return true;
	}
	return false;
}
