/* JSON text that is being written. */
#pragma once

#include "base/file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A zeroed one is empty. If memory runs out, `failed` is set and later additions do nothing, so that callers check once
 * at the end. */
struct json_text {
	char *data; /* terminated */
	size_t size, room;
	bool failed;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void json_text_add(struct json_text *text, const char *format, ...);
/* A string, quoted and escaped, with no control character left; NULL: null. */
void json_text_string(struct json_text *text, const char *string);
/* The same for a string of `size` bytes, which may have NUL inside. */
void json_text_bytes(struct json_text *text, const char *string, size_t size);
/* A number that reads back as the same bits; null if it is not finite. */
void json_text_number(struct json_text *text, double number);
/* The same for a float: the shortest form that reads back as the same float. */
void json_text_float(struct json_text *text, float number);
/* A file with this text, which is freed. */
rosa_status json_text_save(struct json_text *text, const char *path, const struct file_options *options,
			   rosa_error *err);
void json_text_free(struct json_text *text); /* safe on a zeroed one */

/* Members of an object, or elements of an array where `key` is NULL. All but the first of their brackets get a comma.
 * json_text_key is for values that are written by other functions; brackets are those of C. */
void json_text_key(struct json_text *text, const char *key);
void json_text_open(struct json_text *text, const char *key, char bracket);
void json_text_close(struct json_text *text, char bracket);
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void json_text_put(struct json_text *text, const char *key, const char *format, ...);
void json_text_put_string(struct json_text *text, const char *key, const char *string);
void json_text_put_number(struct json_text *text, const char *key, double number);
void json_text_put_size(struct json_text *text, const char *key, uint64_t size);
void json_text_put_bool(struct json_text *text, const char *key, bool truth);
