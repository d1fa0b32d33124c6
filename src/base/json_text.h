/* JSON text that is being written. */
#ifndef ROSATUNE_JSON_TEXT_H
#define ROSATUNE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

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
/* A string, quoted and escaped; NULL: null. */
void json_text_string(struct json_text *text, const char *string);
/* The same for a string of `size` bytes, which may have NUL inside. */
void json_text_bytes(struct json_text *text, const char *string, size_t size);
/* A number that reads back as the same bits; null if it is not finite. */
void json_text_number(struct json_text *text, double number);
/* The same for a float: the shortest form that reads back as the same float. */
void json_text_float(struct json_text *text, float number);
void json_text_free(struct json_text *text); /* safe on a zeroed one */

#endif
