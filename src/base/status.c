/* Statuses, messages and the version: what every function of the interface returns. */
#include "base/status.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

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
	case ROSA_EDEVICE:
		return "no usable device";
	}
	return "unknown status";
}

rosa_status rosa_vfail(rosa_error *err, rosa_status status, const char *format, va_list args)
{
	if (err) {
		/* longer than the message, so that what is cut is cut between characters */
		char text[2 * sizeof(err->message)];

		err->status = status;
		vsnprintf(text, sizeof(text), format, args);
		utf8_printable(err->message, sizeof(err->message), text, strlen(text));
	}
	return status;
}

rosa_status rosa_fail(rosa_error *err, rosa_status status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	rosa_vfail(err, status, format, args);
	va_end(args);
	return status;
}
