/* What reading and writing have in common: waiting for a pipe without missing a signal. */
#pragma once

#include "base/file.h"

bool file_cancelled(const struct file_options *options); /* options may be NULL */

/* Pipes are read and written without blocking and waited for in short spells: a signal that arrives just before a
 * blocking call would not interrupt it. Makes no difference to regular files. */
void file_never_block(int descriptor);

/* After a read() or write() that moved nothing, or between two: waits if `error` says so. `events` as poll() has them,
 * `doing` is "reading" or "writing". Not ROSA_OK: give up. */
rosa_status file_wait(int descriptor, short events, int error, const struct file_options *options, const char *path,
		      const char *doing, rosa_error *err);
