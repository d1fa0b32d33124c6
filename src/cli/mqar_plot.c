/*
 * Accuracy by epoch as a picture: one curve a mode, on a scale that is the same for all experiments.
 */
#include "cli/mqar_result.h"

#include "cli/gnuplot.h"

static void put_script(FILE *to, const void *context)
{
	static const char *const words[] = {
	    [MQAR_GLOBAL] = "global attention", [MQAR_WINDOW] = "window", [MQAR_ROSA] = "window and ROSA"};
	const struct mqar_result *result = context;
	const struct mqar_setup *setup = &result->setup;

	fprintf(to, "set title 'Associative recall: %zu pairs, length %zu, window %zu, width %zu'\n", setup->task.pairs,
		setup->task.length, setup->network.window, setup->width);
	fputs("set xlabel 'epoch'\nset ylabel 'accuracy on held-out examples, %'\n"
	      "set yrange [-2:102]\nset xtics 1\nset grid\nset key center right\nplot ",
	      to);
	for (size_t i = 0; i < result->count; i++)
		fprintf(to, "%s'-' using 1:2 with linespoints linewidth 2 pointtype 7 title '%s'", i ? ", " : "",
			words[result->runs[i].mode]);
	fputs("\n", to);
	for (size_t i = 0; i < result->count; i++) {
		for (size_t e = 0; e < result->runs[i].count; e++)
			fprintf(to, "%zu %.4f\n", e, 100 * result->runs[i].epochs[e].accuracy);
		fputs("e\n", to);
	}
}

bool mqar_plot(const struct mqar_result *result, const char *path, rosa_error *why)
{
	const struct picture picture = {path, 800, 500, 0};

	return picture_draw(&picture, put_script, result, why);
}
