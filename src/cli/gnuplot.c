/*
 * gnuplot, at the other end of two files without names.
 *
 * It reads the script, data and all, from a file that was removed as soon as it was made, and writes the picture to a
 * descriptor of ours. So there is nothing to clean up whatever happens, no shell that would interpret a name, and no
 * pipe that two programs could wait at for each other. What it says on stderr is kept back and shown if it fails.
 */
#include "gnuplot.h"

#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

FILE *gnuplot_script(struct failure *why)
{
	FILE *script = tmpfile();

	if (!script)
		refuse(why, "cannot make a temporary file: %s", strerror(errno));
	return script;
}

static bool start(int script, int output, int messages, pid_t *child, struct failure *why)
{
	char *const words[] = {(char *)"gnuplot", (char *)"-", NULL};
	posix_spawn_file_actions_t actions;
	int code = posix_spawn_file_actions_init(&actions);

	if (code == 0) {
		posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
		posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
		posix_spawn_file_actions_adddup2(&actions, messages, STDERR_FILENO);
		code = posix_spawnp(child, "gnuplot", &actions, NULL, words, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	if (code == ENOENT)
		return refuse(why, "gnuplot is not installed; it draws the curves (Debian: gnuplot-nox)");
	return code == 0 || refuse(why, "cannot start gnuplot: %s", strerror(code));
}

/* Waits for it to end; after Ctrl-C it is asked to. */
static int wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return -1;
		kill(child, SIGTERM);
	}
	return status;
}

/* The first line of what it said that says something. */
static void first_message(FILE *messages, char *text, size_t size)
{
	rewind(messages);
	while (fgets(text, (int)size, messages)) {
		text[strcspn(text, "\n")] = '\0';
		if (text[strspn(text, " \t^")])
			return;
	}
	snprintf(text, size, "it gave no reason");
}

bool gnuplot_run(FILE *script, int descriptor, struct failure *why)
{
	FILE *messages = tmpfile();
	char text[256];
	pid_t child;
	bool good = true;

	if (!messages || fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0)
		good = refuse(why, "cannot write a temporary file: %s", strerror(errno));
	good = good && start(fileno(script), descriptor, fileno(messages), &child, why);
	if (good) {
		int status = wait_for(child);
		good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !interrupted();
	}
	if (!good && messages && !why->text[0]) {
		first_message(messages, text, sizeof(text));
		refuse(why, "gnuplot failed: %s", interrupted() ? "interrupted" : text);
	}
	if (messages)
		fclose(messages);
	fclose(script);
	return good;
}
