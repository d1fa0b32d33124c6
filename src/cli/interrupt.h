/* Ctrl-C as a flag that long work looks at now and then. */
#pragma once

#include "base/file.h"

/* From now on SIGINT, SIGTERM and SIGHUP only set a flag. A second signal ends the program at once, in case the work
 * does not look at the flag. */
void interrupt_watch(void);

/* What the first signal writes to stderr, for work that goes on for long after it; NULL: nothing. The text is not
 * copied, and must not change while it is in use. */
void interrupt_announce(const char *text);

/* Between these two calls, which may be nested, there are files to clean up, and a second signal only sets the flag,
 * too. */
void interrupt_hold(void);
void interrupt_release(void);

/* Clears the flag: the caller has seen it, and the program goes on, perhaps only to save what there is. */
void interrupt_forget(void);

/* The exit code to end with, 128 + the signal's number, or 0 if no signal came. */
int interrupted(void);
/* The same as a rosa_progress. */
int interrupt_progress(void *context, uint64_t done, uint64_t total);

/* How the commands read and write files: given up after a signal, and cleaned up after. */
extern const struct file_hooks interrupt_hooks;
extern const struct file_options program_files;
