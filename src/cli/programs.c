/* Other programs. Started without a shell, which would interpret a name. */
#include "cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool program_find(const char *name, char *path, size_t size)
{
	const char *folders = getenv("PATH");

	for (const char *at = folders ? folders : "/usr/bin:/bin"; *at; at += *at == ':') {
		int length = (int)strcspn(at, ":");
		char whole[4096];
		struct stat status;

		/* An empty part of PATH is the current folder. */
		snprintf(whole, sizeof(whole), "%.*s%s%s", length, at, length ? "/" : "", name);
		at += length;
		if (access(whole, X_OK) == 0 && stat(whole, &status) == 0 && S_ISREG(status.st_mode)) {
			if (path)
				snprintf(path, size, "%s", whole);
			return true;
		}
	}
	return false;
}

int program_run(const char *const *words, const int streams[3], int *status)
{
	posix_spawn_file_actions_t actions;
	pid_t child;
	int code = posix_spawn_file_actions_init(&actions);

	if (code)
		return code;
	for (int i = 0; i < 3; i++)
		posix_spawn_file_actions_adddup2(&actions, streams[i], i);
	code = posix_spawnp(&child, words[0], &actions, NULL, (char *const *)words, environ);
	posix_spawn_file_actions_destroy(&actions);
	while (!code && waitpid(child, status, 0) < 0) {
		if (errno != EINTR)
			code = errno;
		else
			kill(child, SIGTERM);
	}
	return code;
}

bool program_ask(const char *const *words, char *line, size_t size)
{
	const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
	FILE *output = tmpfile();
	int status = -1;
	bool good;

	line[0] = '\0';
	good = nothing >= 0 && output &&
	       program_run(words, (const int[]){nothing, fileno(output), nothing}, &status) == 0 && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 0;
	if (good) {
		rewind(output);
		if (fgets(line, (int)size, output))
			line[strcspn(line, "\n")] = '\0';
	}
	if (output)
		fclose(output);
	if (nothing >= 0)
		close(nothing);
	return good;
}
