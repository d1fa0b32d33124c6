/*
 * Messages.
 *
 * Functions below the commands never print: they return false with a reason, and the command that knows its own name
 * prints it. That keeps the parsers usable in tests and fuzzers, and gives every message the same beginning.
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
