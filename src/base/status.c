/* Statuses, messages and the version: the small change of the interface. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)

const char *rosa_version(void)
{
	return TEXT(ROSA_VERSION_MAJOR) "." TEXT(ROSA_VERSION_MINOR) "." TEXT(ROSA_VERSION_PATCH);
}

const char *rosa_status_name(rosa_status status)
{
	switch (status) {
	case ROSA_OK:
		return "success";
	case ROSA_EINVAL:
		return "invalid argument";
	case ROSA_ESYMBOL:
		return "symbol out of range";
	case ROSA_ENOMEM:
		return "out of memory";
	case ROSA_EIO:
		return "input or output error";
	case ROSA_EFORMAT:
		return "bad saved state";
	case ROSA_ECANCELLED:
		return "cancelled";
	}
	return "unknown status";
}

rosa_status rosa_fail(rosa_error *err, rosa_status status, const char *format, ...)
{
	if (err) {
		va_list args;

		err->status = status;
		va_start(args, format);
		vsnprintf(err->message, sizeof(err->message), format, args);
		va_end(args);
	}
	return status;
}
