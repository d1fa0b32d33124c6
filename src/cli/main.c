/*
 * rosatune: hands over to the command.
 *
 * Output that could not be written (a full disk behind a redirection) is noticed here, once for all commands, since a
 * program that lost its output has not succeeded.
 *
 * OpenBLAS starts a thread per processor when it is loaded, before main(). Each maps a buffer of 128 MiB and tries
 * again for ever if there is no room, so under a limit on memory (ulimit -v) the program would neither work nor end. It
 * needs none of these threads: it calls OpenBLAS from its own (backend/gemm.c). The only way to do without them is a
 * variable of the environment, so under a limit the program sets it and starts itself again.
 */
#ifdef __linux__
#define _GNU_SOURCE /* environ */
#endif

#include "cli/commands.h"
#include "cli/features.h"
#include "cli/programs.h"
#include "cli/report.h"
#include "rosatune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void print_version(void)
{
	printf("rosatune %s\n", rosa_version());
	printf("instruction set: %s\n", rosa_pack_isa());
	printf("optional: %s%sgnuplot: %s\n", features_list(), features_list()[0] ? ", " : "",
	       program_find("gnuplot", NULL, 0) ? "found" : "not found");
}

static int dispatch(int count, char **words)
{
	if (count == 0) {
		commands_help(stderr);
		return MISUSED;
	}
	if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0) {
		commands_help(stdout);
		return DONE;
	}
	if (strcmp(words[0], "--version") == 0 || strcmp(words[0], "-V") == 0) {
		print_version();
		return DONE;
	}
	return command_run(count, words);
}

static bool memory_is_limited(void)
{
	struct rlimit space, data;

	return (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) ||
	       (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur != RLIM_INFINITY);
}

static void start_without_blas_threads(char **argv)
{
	static const char variable[] = "OPENBLAS_NUM_THREADS";

	if (getenv(variable) || !memory_is_limited() || setenv(variable, "1", 1) != 0)
		return;
	execv("/proc/self/exe", argv); /* if it fails, all is as before */
}

int main(int argc, char **argv)
{
	start_without_blas_threads(argv);

	int code = dispatch(argc > 0 ? argc - 1 : 0, argv + 1);

	if (fflush(stdout) != 0 || ferror(stdout)) {
		complain(NULL, "cannot write to standard output: %s", strerror(errno));
		return code == DONE ? FAILED : code;
	}
	return code;
}
