/* How the program speaks of what went wrong, and the exit codes it ends with. */
#ifndef ROSATUNE_REPORT_H
#define ROSATUNE_REPORT_H

#include <stdbool.h>

/* A signal ends the program with 128 + its number, as shells expect: see interrupt.h. */
enum { DONE = 0, FAILED = 1, MISUSED = 2 };

/* Prints "rosatune COMMAND: message" to stderr; command NULL leaves only "rosatune: ". */
void complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Why a function returned false, in words that can follow "rosatune COMMAND: ". */
struct failure {
	char text[512];
};

/* Fills in the reason (too long a one is cut) and returns false, so that `return refuse(...)` is all a caller writes.
 */
bool refuse(struct failure *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
