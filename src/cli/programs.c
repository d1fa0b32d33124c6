/* Other programs. Started without a shell, which would interpret a name. */
#include "cli/programs.h"

#include <errno.h>
#include <fcntl.h>
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

static bool start(const char *const *words, int output, pid_t *child)
{
	posix_spawn_file_actions_t actions;

	if (posix_spawn_file_actions_init(&actions) != 0)
		return false;
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
	posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	int code = posix_spawnp(child, words[0], &actions, NULL, (char *const *)words, environ);
	posix_spawn_file_actions_destroy(&actions);
	return code == 0;
}

bool program_ask(const char *const *words, char *line, size_t size)
{
	FILE *output = tmpfile();
	int status = -1;
	pid_t child;

	line[0] = '\0';
	if (!output)
		return false;
	if (start(words, fileno(output), &child)) {
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			continue;
		rewind(output);
		if (fgets(line, (int)size, output))
			line[strcspn(line, "\n")] = '\0';
	}
	fclose(output);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
