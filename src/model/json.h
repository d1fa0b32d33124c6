/*
 * JSON as models come with it: configurations, tokenizers, headers and indexes of weights.
 *
 * A thin layer over jansson. A value knows the file and the field it came from, so a caller that expects a number and
 * finds a string gets a complete message without writing one. Fields that are null count as missing, as in Python's
 * configurations. Only json.c uses jansson. Without the library these functions still exist, and reading fails with a
 * message that says so.
 *
 *     struct json root, scaling;
 *     size_t width, context = 0;
 *
 *     status = json_load("model/config.json", &root, err);
 *     if (!status)
 *             status = json_get_size(root, "hidden_size", JSON_NEEDED, &width, err);
 *     if (!status)
 *             status = json_get_size(root, "max_position_embeddings", JSON_OPTIONAL, &context, err);
 *     scaling = json_find(root, "rope_scaling");
 *     if (!status && json_there(scaling))
 *             ...
 *     json_free(&root);
 */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct json_t;

/* A value, or nothing. Passed by value; lives as long as the root it came from. */
struct json {
	const struct json_t *value; /* NULL: not there */
	const char *file;           /* for messages */
	const char *outer, *field;  /* the names that led here, the last two; NULL: none */
	size_t index;               /* in an array; JSON_NO_INDEX: in none */
};

#define JSON_NO_INDEX SIZE_MAX

/* --------------------------------------------------------------------------------------------------------- whole -- */

/* From memory, which may go away then. `file` is for messages and must stay. Names that occur twice in an object are
 * refused, as are bytes that are not UTF-8. *root is nothing if this fails. */
rosa_status json_read(const char *text, size_t size, const char *file, struct json *root, rosa_error *err);
/* From a file; the path must stay, being the name for messages. */
rosa_status json_load(const char *path, struct json *root, rosa_error *err);
void json_free(struct json *root); /* safe on a zeroed one */

/* -------------------------------------------------------------------------------------------------------- fields -- */

/* What a missing field is: a mistake, or a reason to leave *value as it is. */
enum json_need { JSON_NEEDED, JSON_OPTIONAL };

/* Each refuses, with a message that names file and field, what has another type or does not fit. A whole number may be
 * written as 512 or 512.0. A string is terminated and has no NUL inside. */
rosa_status json_get_size(struct json object, const char *name, enum json_need need, size_t *value, rosa_error *err);
rosa_status json_get_integer(struct json object, const char *name, enum json_need need, int64_t *value,
			     rosa_error *err);
rosa_status json_get_number(struct json object, const char *name, enum json_need need, double *value, rosa_error *err);
rosa_status json_get_bool(struct json object, const char *name, enum json_need need, bool *value, rosa_error *err);
rosa_status json_get_string(struct json object, const char *name, enum json_need need, const char **value,
			    rosa_error *err);
/* Objects and arrays; an optional one that is missing gives nothing. */
rosa_status json_get_object(struct json object, const char *name, enum json_need need, struct json *value,
			    rosa_error *err);
rosa_status json_get_array(struct json object, const char *name, enum json_need need, struct json *value,
			   rosa_error *err);

/* -------------------------------------------------------------------------------------------------------- values -- */

enum json_kind {
	JSON_IS_NOTHING, /* missing, or null */
	JSON_IS_BOOL,
	JSON_IS_NUMBER,
	JSON_IS_STRING,
	JSON_IS_ARRAY,
	JSON_IS_OBJECT
};

enum json_kind json_kind(struct json value);
bool json_there(struct json value); /* neither missing nor null */

/* A field of an object: nothing if there is none of that name, or if `object` is none. */
struct json json_find(struct json object, const char *name);
/* Entries of an array or object; else 0. */
size_t json_count(struct json value);
/* An element of an array: nothing beyond its end. */
struct json json_at(struct json array, size_t i);

/* The fields of an object, in the file's order. A zeroed walk is a beginning; false at the end. */
struct json_walk {
	void *at;
	bool begun;
};
bool json_next(struct json object, struct json_walk *walk, const char **name, struct json *value);

/* A value as a C type; the message of a refusal names where it is. Nothing is refused as well. */
rosa_status json_as_size(struct json value, size_t *to, rosa_error *err);
rosa_status json_as_integer(struct json value, int64_t *to, rosa_error *err);
rosa_status json_as_number(struct json value, double *to, rosa_error *err);
rosa_status json_as_bool(struct json value, bool *to, rosa_error *err);
rosa_status json_as_string(struct json value, const char **to, rosa_error *err);
/* With its length: NUL may be inside. */
rosa_status json_as_text(struct json value, const char **to, size_t *length, rosa_error *err);

/* Fails with a message that begins with file and field: "config.json: rope_scaling.factor: " and what `format` says. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
rosa_status
json_refuse(struct json value, rosa_error *err, const char *format, ...);
