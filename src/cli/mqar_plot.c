/*
 * Accuracy by epoch as a picture: one curve a mode, on a scale that is the same for all experiments.
 */
#include "mqar_result.h"

#include "file.h"
#include "gnuplot.h"

#include <string.h>
#include <strings.h>

static void write_script(FILE *to, const struct mqar_result *result, bool svg)
{
	static const char *const words[] = {
	    [MQAR_GLOBAL] = "global attention", [MQAR_WINDOW] = "window", [MQAR_ROSA] = "window and ROSA"};
	const struct mqar_setup *setup = &result->setup;

	fprintf(to, "set terminal %s size 800,500 background rgb 'white'\n", svg ? "svg" : "pngcairo");
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

bool mqar_plot(const struct mqar_result *result, const char *path, struct failure *why)
{
	const size_t length = strlen(path);
	const bool svg = length > 4 && strcasecmp(path + length - 4, ".svg") == 0;
	struct file_writer writer = FILE_WRITER_INIT;
	FILE *script = gnuplot_script(why);

	if (!script)
		return false;
	write_script(script, result, svg);
	if (!file_create(&writer, path, why)) {
		fclose(script);
		return false;
	}
	if (gnuplot_run(script, writer.descriptor, why) && file_close(&writer, why) && file_commit(&writer, why))
		return true;
	file_discard(&writer);
	return false;
}
