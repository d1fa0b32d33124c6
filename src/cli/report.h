/* Error messages and exit codes. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

/* A signal ends the program with 128 + its number, as shells expect: see interrupt.h. */
enum { DONE = 0, FAILED = 1, MISUSED = 2 };

/* Prints "rosatune COMMAND: message" to stderr; command NULL leaves only "rosatune: ". */
void complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the reason (one that is too long is cut) and returns false, so that a caller can write `return refuse(...)`. The
 * status is ROSA_EINVAL: the program uses the message only. */
bool refuse(rosa_error *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The exit code of a command. One that is not done says why, or that a signal ended it. */
int command_end(const char *command, bool done, const rosa_error *why);
/* Likewise where the result is a file, which a signal leaves as it was. */
int command_end_file(const char *command, bool done, const rosa_error *why);
