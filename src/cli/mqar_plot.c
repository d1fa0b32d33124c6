/*
 * Accuracy by epoch as a picture.
 *
 * gnuplot draws it, and the numbers go to it through a pipe, with the program. It is no library of ours but a command
 * that may be absent; then the table is all there is, and the message says what to install. A shell would see the
 * file's name, so there is none between: the name is passed in the environment, where nothing is taken for a command.
 */
#include "mqar_result.h"

#include "file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_program(FILE *to, const struct mqar_result *result, bool svg)
{
	static const char *const words[] = {
	    [MQAR_GLOBAL] = "global attention", [MQAR_WINDOW] = "window", [MQAR_ROSA] = "window and ROSA"};
	const struct mqar_setup *setup = &result->setup;

	fprintf(to, "set terminal %s\n", svg ? "svg size 800,500" : "pngcairo size 800,500");
	fprintf(to, "set output system('printf \"%%s\" \"$ROSATUNE_PLOT\"')\n");
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

/* In the child: gnuplot with its program on standard input, and silent. */
static void become_gnuplot(const int pipe[2], const char *path)
{
	dup2(pipe[0], STDIN_FILENO);
	close(pipe[0]);
	close(pipe[1]);
	if (!freopen("/dev/null", "w", stderr) || setenv("ROSATUNE_PLOT", path, 1) != 0)
		_exit(126);
	execlp("gnuplot", "gnuplot", (char *)NULL);
	_exit(127);
}

bool mqar_plot(const struct mqar_result *result, const char *path, struct failure *why)
{
	const size_t length = strlen(path);
	const bool svg = length > 4 && strcasecmp(path + length - 4, ".svg") == 0;
	int pipes[2], state = 0;
	pid_t child;

	if (!file_can_create(path, why))
		return false;
	if (pipe(pipes) != 0)
		return refuse(why, "cannot start gnuplot: %s", strerror(errno));
	fflush(stdout);
	child = fork();
	if (child == 0)
		become_gnuplot(pipes, path);
	close(pipes[0]);
	/* A gnuplot that is not there reads nothing, and writing to it must not end this program. */
	void (*before)(int) = signal(SIGPIPE, SIG_IGN);
	FILE *to = child < 0 ? NULL : fdopen(pipes[1], "w");
	if (to) {
		write_program(to, result, svg);
		fclose(to);
	} else {
		close(pipes[1]);
	}
	signal(SIGPIPE, before);
	if (child < 0 || waitpid(child, &state, 0) != child)
		return refuse(why, "cannot start gnuplot: %s", strerror(errno));
	if (WIFEXITED(state) && WEXITSTATUS(state) == 127)
		return refuse(why, "%s is not drawn: there is no gnuplot; install gnuplot-nox", path);
	if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
		return refuse(why, "%s is not drawn: gnuplot failed", path);
	return true;
}
