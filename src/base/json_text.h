/* JSON in the making: what is written to be read again. */
#ifndef ROSATUNE_JSON_TEXT_H
#define ROSATUNE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* A zeroed one is empty. Where memory ran out, `failed` says so and the rest is left out: one question at the end
 * instead of one after every piece. */
struct json_text {
	char *data; /* terminated */
	size_t size, room;
	bool failed;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void json_text_add(struct json_text *text, const char *format, ...);
/* A string with its quotes and what must be escaped; NULL: null. */
void json_text_string(struct json_text *text, const char *string);
/* A number that reads back as the same bits; null where it is none. */
void json_text_number(struct json_text *text, double number);
/* The same for one that was a float: as short as tells it from other floats. */
void json_text_float(struct json_text *text, float number);
void json_text_free(struct json_text *text); /* safe on a zeroed one */

#endif
