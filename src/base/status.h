/* How library code fails: a status for the program, a sentence for the person. */
#pragma once

#include "rosatune.h"

#include <stdarg.h>

/* Fill in *err (may be NULL) from a printf format and return `status`. Messages quote names and strings from files, so
 * the whole message is made safe for a terminal (utf8_printable). An argument may be the message that is there. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
rosa_status
rosa_fail(rosa_error *err, rosa_status status, const char *format, ...);

/* The same with its arguments in a list. */
rosa_status rosa_vfail(rosa_error *err, rosa_status status, const char *format, va_list args);
