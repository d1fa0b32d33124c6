/* Refusals. Messages may quote what a client sent, so they are made valid UTF-8 that a terminal can show. */
#include "serve/api_error.h"

#include "base/status.h"

#include <stdarg.h>
#include <string.h>

bool api_fail(struct api_error *error, unsigned status, const char *param, const char *code, const char *format, ...)
{
	rosa_error plain;
	va_list arguments;

	va_start(arguments, format);
	rosa_vfail(&plain, ROSA_EINVAL, format, arguments);
	va_end(arguments);
	*error = (struct api_error){.status = status, .param = param, .code = code};
	memcpy(error->message, plain.message, sizeof(error->message));
	return false;
}

bool api_refuse(struct api_error *error, const char *param, const rosa_error *why)
{
	return api_fail(error, why->status == ROSA_ENOMEM ? 500 : 400, param, NULL, "%s", why->message);
}

const char *api_error_type(unsigned status)
{
	if (status == 401)
		return "authentication_error";
	if (status == 429)
		return "rate_limit_error";
	return status < 500 ? "invalid_request_error" : "server_error";
}
