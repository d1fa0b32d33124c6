/*
 * rosatune plot: the curves of training.
 *
 * One picture with a panel for each quantity in the logs: the loss together with the validation loss, the loss on far
 * tokens with its controls, the accuracy, the learning rate, the gradient norm. All share the horizontal axis. Each log
 * has a colour, the same in all panels. Smoothed curves are drawn over pale ones of the raw values, since smoothing
 * hides what it averages. Without a file to write, the picture is drawn in letters on the terminal.
 */
#include "cli/commands.h"

#include "cli/args.h"
#include "cli/gnuplot.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/plot_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const x_names[] = {"step", "tokens", "seconds", NULL};
static const char *const x_titles[] = {"step", "tokens", "seconds"};

#define CURVES 3 /* of a panel, at most */

/* Curves of one log: a first one, and others in the same panel. */
static const struct panel {
	const char *title;
	enum plot_key curves[CURVES];   /* PLOT_KEYS: none */
	const char *others[CURVES - 1]; /* how the legend calls those after the first */
	bool smoothed;
} panels[] = {
    {"loss", {PLOT_LOSS, PLOT_VALID_LOSS, PLOT_KEYS}, {"validation"}, true},
    {"loss on far tokens",
     {PLOT_FAR_LOSS, PLOT_FAR_RANDOM_LOSS, PLOT_FAR_OFF_LOSS},
     {"reading at random", "off"},
     false},
    {"accuracy", {PLOT_ACCURACY, PLOT_VALID_ACCURACY, PLOT_KEYS}, {"validation"}, true},
    {"learning rate", {PLOT_RATE, PLOT_BACKBONE_RATE, PLOT_KEYS}, {"backbone"}, false},
    {"gradient norm", {PLOT_GRAD_NORM, PLOT_KEYS, PLOT_KEYS}, {NULL}, true},
};

#define PANELS (sizeof(panels) / sizeof(panels[0]))

static const char *const colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
				      "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

#define COLOURS (sizeof(colours) / sizeof(colours[0]))

struct job {
	struct arg_words paths;
	const char *out, *title;
	int x;
	uint64_t smooth, width, height;
	bool x_given, log_scale;

	struct plot_log *logs;
	size_t count;
};

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    OPTION_TEXT("out", &job->out, "FILE", "a .png, .svg or .pdf to write (default: letters on the terminal)",
			.short_name = 'o'),
	    OPTION_CHOICE("x", &job->x, "KEY", x_names, "what to draw along: step (default), tokens or seconds"),
	    OPTION_NUMBER("smooth", &job->smooth, "N", 1, 1000000,
			  "average over the last N lines of a log (default 1: no smoothing)"),
	    OPTION_FLAG("log", &job->log_scale, "a logarithmic scale for the loss"),
	    OPTION_TEXT("title", &job->title, "T", "a line above the picture"),
	    OPTION_NUMBER("width", &job->width, "N", 200, 10000, "of the picture, in pixels (default 900)"),
	    OPTION_NUMBER("height", &job->height, "N", 100, 10000, "of a panel (default 320)"),
	};
	struct args args = {
	    .command = "plot",
	    .usage = "LOG... [--out FILE.png|.svg]",
	    .summary = "Draws the curves of training from its logs into one picture.",
	    ARGS_OPTIONS(options),
	    .operands = &job->paths,
	    .operand_name = "LOG",
	    .notes =
		"LOG is a run's folder or its log.jsonl: a JSON object on every line. Drawn are, where present:\n"
		"loss and valid_loss; far_loss, far_random_loss and far_off_loss; accuracy and valid_accuracy; rate\n"
		"and backbone_rate; grad_norm. It needs gnuplot.",
	};
	enum args_result result = args_parse(&args, count, words);

	job->x_given = result == ARGS_OK && args_given(&args, "x");
	return result;
}

/* ---------------------------------------------------------------------------------------------------------- logs -- */

static bool read_logs(struct job *job, rosa_error *why)
{
	job->logs = get_memory(job->paths.count, sizeof(*job->logs), "logs", why);
	if (!job->logs)
		return false;
	for (; job->count < job->paths.count; job->count++) {
		struct plot_log *log = &job->logs[job->count];
		if (!plot_log_read(log, job->paths.all[job->count], why)) {
			plot_log_free(log);
			return false;
		}
		if (log->left_out)
			complain("plot", "%s; %zu line%s left out", log->problem.message, log->left_out,
				 log->left_out == 1 ? " was" : "s were");
	}
	return true;
}

/* Logs without steps are drawn along their lines, unless something was asked for. */
static bool check_x(const struct job *job, rosa_error *why)
{
	for (size_t i = 0; job->x_given && i < job->count; i++) {
		if (!plot_log_has(&job->logs[i], (enum plot_key)job->x))
			return refuse(why, "%s: no line says \"%s\"; choose another --x", job->logs[i].path,
				      plot_key_names[job->x]);
	}
	return true;
}

static bool key_there(const struct job *job, enum plot_key key)
{
	for (size_t i = 0; i < job->count; i++) {
		if (plot_log_has(&job->logs[i], key))
			return true;
	}
	return false;
}

/* How many of the panel's curves there are in any log. */
static size_t curves_there(const struct job *job, const struct panel *panel)
{
	size_t count = 0;

	for (int k = 0; k < CURVES; k++)
		count += panel->curves[k] < PLOT_KEYS && key_there(job, panel->curves[k]);
	return count;
}

/* -------------------------------------------------------------------------------------------------------- script -- */

/* The position of a log's lines on the horizontal axis: a key of theirs, or the line number where they lack it. */
struct axis {
	const struct plot_log *log;
	enum plot_key key;
	bool lines;
};

static double place(const struct axis *axis, size_t i)
{
	return axis->lines ? (double)(i + 1) : axis->log->rows[i].values[axis->key];
}

/* Whether a line of the log belongs to a curve. */
static bool drawn(const struct axis *axis, enum plot_key key, size_t i)
{
	return isfinite(axis->log->rows[i].values[key]) && isfinite(place(axis, i));
}

/* A curve as a block of data, $c<log>_<key>: x, the value, and the mean of the last values. */
static void put_curve(const struct job *job, FILE *script, size_t which, enum plot_key key)
{
	const struct plot_log *log = &job->logs[which];
	const struct axis axis = {log, (enum plot_key)job->x, !plot_log_has(log, (enum plot_key)job->x)};
	size_t tail = 0, held = 0;
	double sum = 0;

	fprintf(script, "$c%zu_%d << EOD\n", which, (int)key);
	for (size_t i = 0; i < log->count; i++) {
		if (!drawn(&axis, key, i))
			continue;
		sum += log->rows[i].values[key];
		for (held++; held > job->smooth; tail++) {
			if (drawn(&axis, key, tail)) {
				sum -= log->rows[tail].values[key];
				held--;
			}
		}
		fprintf(script, "%.10g %.10g %.10g\n", place(&axis, i), log->rows[i].values[key], sum / (double)held);
	}
	fputs("EOD\n", script);
}

/* The last part of a path without its ending, or all of it if that is not enough to tell logs apart. */
static void put_label(const struct job *job, FILE *script, size_t which, const char *second)
{
	char names[2][256], label[300];
	bool alone = true;

	for (size_t i = 0; i < job->count && alone; i++) {
		for (int k = 0; k < 2; k++) {
			const char *path = job->logs[k ? i : which].path, *slash = strrchr(path, '/');
			const char *name = slash ? slash + 1 : path;
			snprintf(names[k], sizeof(names[k]), "%.*s", (int)strcspn(name, "."), name);
		}
		alone = i == which || strcmp(names[0], names[1]) != 0;
	}
	snprintf(label, sizeof(label), "%.250s%s%s", alone && names[0][0] ? names[0] : job->logs[which].path,
		 second ? ", " : "", second ? second : "");
	picture_text(script, label);
}

static void put_line(const struct job *job, FILE *script, size_t which, const struct panel *panel, int k)
{
	const char *colour = colours[which % COLOURS];
	enum plot_key key = panel->curves[k];
	bool smoothed = k == 0 && panel->smoothed && job->smooth > 1;

	if (smoothed)
		fprintf(script, "$c%zu_%d using 1:2 with lines lw 1 lc rgb '#c0%s' notitle, ", which, (int)key,
			colour + 1);
	fprintf(script, "$c%zu_%d using 1:%d with ", which, (int)key, smoothed ? 3 : 2);
	if (k > 0)
		fprintf(script, "linespoints pt 7 ps 0.6 dt %d lw 1.5 lc rgb '%s' title ", k + 1, colour);
	else
		fprintf(script, "lines lw 1.8 lc rgb '%s' title ", colour);
	put_label(job, script, which, k > 0 ? panel->others[k - 1] : NULL);
}

static void put_panel(const struct job *job, FILE *script, const struct panel *panel, bool first, bool last)
{
	const char *between = "plot ";

	fprintf(script, "set ylabel '%s'\n", panel->title);
	fprintf(script, "%s logscale y\n", job->log_scale && panel->curves[0] == PLOT_LOSS ? "set" : "unset");
	fprintf(script, "set key %s\n", first || curves_there(job, panel) > 1 ? "top right" : "off");
	fprintf(script, "set xlabel '%s'\n", last ? x_titles[job->x] : "");
	for (size_t i = 0; i < job->count; i++) {
		for (int k = 0; k < CURVES && panel->curves[k] < PLOT_KEYS; k++) {
			if (!plot_log_has(&job->logs[i], panel->curves[k]))
				continue;
			fputs(between, script);
			put_line(job, script, i, panel, k);
			between = ", ";
		}
	}
	fputc('\n', script);
}

/* What there is to draw. */
struct sheet {
	const struct job *job;
	bool there[PANELS];
	size_t count; /* of panels */
};

static void put_script(FILE *script, const void *context)
{
	const struct sheet *sheet = context;
	const struct job *job = sheet->job;
	size_t done = 0;

	for (size_t i = 0; i < job->count; i++) {
		for (int key = PLOT_LOSS; key < PLOT_KEYS; key++) {
			if (plot_log_has(&job->logs[i], (enum plot_key)key))
				put_curve(job, script, i, (enum plot_key)key);
		}
	}
	fprintf(script, "set multiplot layout %zu,1", sheet->count);
	if (job->title) {
		fputs(" title ", script);
		picture_text(script, job->title);
	}
	fputs("\nset grid lc rgb '#dddddd'\nset border 3\nset tics nomirror\nset format '%g'\nset lmargin 12\n"
	      "set rmargin 4\n",
	      script);
	for (size_t i = 0; i < PANELS; i++) {
		if (!sheet->there[i])
			continue;
		done++;
		put_panel(job, script, &panels[i], done == 1, done == sheet->count);
	}
	fputs("unset multiplot\nunset output\n", script);
}

/* --------------------------------------------------------------------------------------------------- the command -- */

static bool run(struct job *job, rosa_error *why)
{
	struct sheet sheet = {.job = job};
	struct picture picture = {job->out, (size_t)job->width, 0, 0};

	if ((job->out && !picture_can_be(job->out, why)) || !read_logs(job, why) || !check_x(job, why))
		return false;
	for (size_t i = 0; i < PANELS; i++) {
		sheet.there[i] = curves_there(job, &panels[i]) > 0;
		sheet.count += sheet.there[i];
	}
	if (sheet.count == 0)
		return refuse(why, "%s: no line says \"loss\", or anything else that can be drawn", job->logs[0].path);
	picture.height = (size_t)job->height * sheet.count + 40;
	picture.lines = 22 * sheet.count + 2;
	return picture_draw(&picture, put_script, &sheet, why);
}

int plot_command(int count, char **words)
{
	struct job job = {.smooth = 1, .width = 900, .height = 320};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	bool done = run(&job, &why);
	for (size_t i = 0; i < job.count; i++)
		plot_log_free(&job.logs[i]);
	free(job.logs);
	return command_end("plot", done, &why);
}
