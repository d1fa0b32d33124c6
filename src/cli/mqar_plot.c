/* Accuracy by epoch as a picture: one curve per mode, on a scale that is the same for all experiments. */
#include "cli/mqar_result.h"

#include "cli/gnuplot.h"

static void put_title(FILE *to, const struct mqar_result *result, const struct mqar_run *run)
{
	static const char *const names[] = {
	    [MQAR_GLOBAL] = "global attention", [MQAR_WINDOW] = "window", [MQAR_ROSA] = "window and ROSA"};
	char title[80];

	snprintf(title, sizeof(title), "%s%s", names[run->mode],
		 mqar_too_short(result, run) ? " (too few steps to learn)" : "");
	picture_text(to, title);
}

static void put_script(FILE *to, const void *context)
{
	const struct mqar_result *result = context;
	const struct mqar_setup *setup = &result->setup;
	char title[160];

	snprintf(title, sizeof(title), "Associative recall: %zu pairs, length %zu, window %zu, width %zu",
		 setup->task.pairs, setup->task.length, (size_t)setup->network.adapter.window, setup->width);
	for (size_t i = 0; i < result->count; i++) {
		fprintf(to, "$c%zu << EOD\n", i);
		for (size_t e = 0; e < result->runs[i].count; e++)
			fprintf(to, "%zu %.4f\n", e, 100 * result->runs[i].epochs[e].accuracy);
		fputs("EOD\n", to);
	}
	fputs("set title ", to);
	picture_text(to, title);
	fputs("\nset xlabel \"epoch\"\nset ylabel \"accuracy on held-out examples, %\"\n"
	      "set yrange [-2:102]\nset xtics 1\nset grid\nset key center right\n",
	      to);
	for (size_t i = 0; i < result->count; i++) {
		fprintf(to, "%s$c%zu using 1:2 with linespoints linewidth 2 pointtype 7 title ", i ? ", " : "plot ", i);
		put_title(to, result, &result->runs[i]);
	}
	fputs("\n", to);
}

bool mqar_plot(const struct mqar_result *result, const char *path, rosa_error *why)
{
	const struct picture picture = {path, 800, 500, 0};

	return picture_draw(&picture, put_script, result, why);
}
