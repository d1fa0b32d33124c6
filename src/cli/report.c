/*
 * Messages.
 *
 * Functions called by commands do not print errors: they return false with a reason, and the command prints it after
 * its own name. So parsers can be used in tests and fuzzers, and all messages begin in the same way.
 */
#include "cli/report.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

void complain(const char *command, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "rosatune%s%s: ", command ? " " : "", command ? command : "");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

bool refuse(rosa_error *why, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	rosa_vfail(why, ROSA_EINVAL, format, arguments);
	va_end(arguments);
	return false;
}
