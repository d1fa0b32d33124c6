/* The error of a rejected request: an HTTP status, and the fields of OpenAI's error object. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct api_error {
	unsigned status;   /* of HTTP; 0: there is no error */
	const char *param; /* the field at fault; NULL: none. A literal, as is `code`. */
	const char *code;  /* a word for programs; NULL: none */
	char message[512];
};

/* Fills in the error and returns false, so that a caller can write `return api_fail(...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
bool api_fail(struct api_error *error, unsigned status, const char *param, const char *code, const char *format, ...);

/* The same, from an error of the library. */
bool api_refuse(struct api_error *error, const char *param, const rosa_error *why);

/* OpenAI's `type` of an error with this HTTP status. */
const char *api_error_type(unsigned status);
