/*
 * Messages.
 *
 * Functions called by commands do not print errors: they return false with a reason, and the command prints it after
 * its own name. So parsers can be used in tests and fuzzers, and all messages begin in the same way.
 */
#include "cli/report.h"

#include "base/status.h"
#include "base/utf8.h"
#include "cli/interrupt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void complain(const char *command, const char *format, ...)
{
	char text[4096], shown[sizeof(text)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* A message may quote a file, which must not control the terminal. */
	utf8_printable(shown, sizeof(shown), text, strlen(text));
	fprintf(stderr, "rosatune%s%s: %s\n", command ? " " : "", command ? command : "", shown);
}

bool refuse(rosa_error *why, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	rosa_vfail(why, ROSA_EINVAL, format, arguments);
	va_end(arguments);
	return false;
}

static int end(const char *command, bool done, const char *stopped, const rosa_error *why)
{
	if (done)
		return DONE;
	complain(command, "%s", interrupted() ? stopped : why->message);
	return interrupted() ? interrupted() : FAILED;
}

int command_end(const char *command, bool done, const rosa_error *why)
{
	return end(command, done, "interrupted", why);
}

int command_end_file(const char *command, bool done, const rosa_error *why)
{
	return end(command, done, "interrupted; nothing was written", why);
}
