/*
 * rosatune: hands over to the command.
 *
 * Output that could not be written (a full disk behind a redirection) is noticed here, once for all commands, since a
 * program that lost its output has not succeeded.
 */
#include "cli/commands.h"
#include "cli/features.h"
#include "cli/programs.h"
#include "cli/report.h"
#include "rosatune.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
	if (strcmp(words[0], "--version") == 0) {
		print_version();
		return DONE;
	}
	return command_run(count, words);
}

int main(int argc, char **argv)
{
	int code = dispatch(argc > 0 ? argc - 1 : 0, argv + 1);

	if (fflush(stdout) != 0 || ferror(stdout)) {
		complain(NULL, "cannot write to standard output: %s", strerror(errno));
		return code == DONE ? FAILED : code;
	}
	return code;
}
