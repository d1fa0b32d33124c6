/*
 * JSON through jansson, with messages that say where.
 *
 * Only the first half uses the library. Builds without it have a second version of that half, which finds nothing, so
 * that every caller compiles and links; json_read then fails with the one message about it.
 *
 * Python writes integers of any size, and tokenizers contain them: "no limit" is 10^30. jansson refuses integers of
 * more than 64 bits, so such a file is read again with all integers as floating point numbers. They are accepted as
 * integers if they are whole and at most 2^53, up to where floating point is exact.
 */
#include "model/json.h"

#include "base/mapping.h"
#include "base/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FLOAT_INTEGER_MAX 9007199254740992.0 /* 2^53 */

/* A number as it is in the tree. */
struct scalar {
	bool whole; /* then `integer`, else `number` */
	int64_t integer;
	double number;
};

static struct json value_in(struct json from, const struct json_t *value, const char *field, size_t index)
{
	const bool element = index != JSON_NO_INDEX;

	return (struct json){value, from.file, element ? from.outer : from.field, element ? from.field : field, index};
}

#ifdef ROSATUNE_JANSSON

#include <jansson.h>

/* For functions of jansson that lack a const. */
static json_t *tree(struct json value)
{
	return (json_t *)value.value;
}

rosa_status json_read(const char *text, size_t size, const char *file, struct json *root, rosa_error *err)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
	json_error_t error;
	json_t *value = json_loadb(text, size, flags, &error);

	*root = (struct json){NULL, file, NULL, NULL, JSON_NO_INDEX};
	if (!value && json_error_code(&error) == json_error_numeric_overflow)
		value = json_loadb(text, size, flags | JSON_DECODE_INT_AS_REAL, &error);
	/* without memory, the library mostly gives no message */
	if (!value && !*error.text)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for %zu bytes of JSON", file, size);
	if (!value)
		return rosa_fail(err, ROSA_EFORMAT, "%s: line %d, column %d: %s", file, error.line, error.column,
				 error.text);
	root->value = value;
	return ROSA_OK;
}

void json_free(struct json *root)
{
	json_decref(tree(*root));
	*root = (struct json){.index = JSON_NO_INDEX};
}

enum json_kind json_kind(struct json value)
{
	if (!value.value)
		return JSON_IS_NOTHING;
	switch (json_typeof(value.value)) {
	case JSON_OBJECT:
		return JSON_IS_OBJECT;
	case JSON_ARRAY:
		return JSON_IS_ARRAY;
	case JSON_STRING:
		return JSON_IS_STRING;
	case JSON_INTEGER:
	case JSON_REAL:
		return JSON_IS_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return JSON_IS_BOOL;
	case JSON_NULL:
		break;
	}
	return JSON_IS_NOTHING;
}

struct json json_find(struct json object, const char *name)
{
	return value_in(object, json_object_get(object.value, name), name, JSON_NO_INDEX);
}

size_t json_count(struct json value)
{
	return json_kind(value) == JSON_IS_ARRAY ? json_array_size(value.value) : json_object_size(value.value);
}

struct json json_at(struct json array, size_t i)
{
	return value_in(array, json_array_get(array.value, i), NULL, i);
}

bool json_next(struct json object, struct json_walk *walk, const char **name, struct json *value)
{
	walk->at = walk->begun ? json_object_iter_next(tree(object), walk->at) : json_object_iter(tree(object));
	walk->begun = walk->at != NULL;
	if (!walk->at)
		return false;
	*name = json_object_iter_key(walk->at);
	*value = value_in(object, json_object_iter_value(walk->at), *name, JSON_NO_INDEX);
	return true;
}

static struct scalar scalar_of(struct json value)
{
	if (json_is_integer(value.value))
		return (struct scalar){true, json_integer_value(value.value), 0};
	return (struct scalar){false, 0, json_real_value(value.value)};
}

static bool truth_of(struct json value)
{
	return json_is_true(value.value);
}

static const char *text_of(struct json value, size_t *length)
{
	*length = json_string_length(value.value);
	return json_string_value(value.value);
}

#else

rosa_status json_read(const char *text, size_t size, const char *file, struct json *root, rosa_error *err)
{
	(void)text;
	(void)size;
	*root = (struct json){NULL, file, NULL, NULL, JSON_NO_INDEX};
	return rosa_fail(err, ROSA_EINVAL, "%s: this build has no JSON reader: install libjansson-dev and build again",
			 file);
}

void json_free(struct json *root)
{
	*root = (struct json){.index = JSON_NO_INDEX};
}

enum json_kind json_kind(struct json value)
{
	(void)value;
	return JSON_IS_NOTHING;
}

struct json json_find(struct json object, const char *name)
{
	return value_in(object, NULL, name, JSON_NO_INDEX);
}

size_t json_count(struct json value)
{
	(void)value;
	return 0;
}

struct json json_at(struct json array, size_t i)
{
	return value_in(array, NULL, NULL, i);
}

bool json_next(struct json object, struct json_walk *walk, const char **name, struct json *value)
{
	(void)object;
	(void)walk;
	(void)name;
	(void)value;
	return false;
}

static struct scalar scalar_of(struct json value)
{
	(void)value;
	return (struct scalar){false, 0, 0};
}

static bool truth_of(struct json value)
{
	(void)value;
	return false;
}

static const char *text_of(struct json value, size_t *length)
{
	(void)value;
	*length = 0;
	return "";
}

#endif

rosa_status json_load(const char *path, struct json *root, rosa_error *err)
{
	struct mapping mapping;
	rosa_status status = mapping_open(&mapping, path, err);

	*root = (struct json){NULL, path, NULL, NULL, JSON_NO_INDEX};
	if (!status)
		status = json_read((const char *)mapping.data, mapping.size, path, root, err);
	mapping_close(&mapping);
	return status;
}

bool json_there(struct json value)
{
	return json_kind(value) != JSON_IS_NOTHING;
}

/* ------------------------------------------------------------------------------------------------------ messages -- */

rosa_status json_refuse(struct json value, rosa_error *err, const char *format, ...)
{
	char what[sizeof(err->message)], where[224] = "", index[32] = "";
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	if (value.index != JSON_NO_INDEX)
		snprintf(index, sizeof(index), "[%zu]", value.index);
	if (value.field || *index)
		snprintf(where, sizeof(where), "%.80s%s%.80s%s: ", value.outer ? value.outer : "",
			 value.outer && value.field ? "." : "", value.field ? value.field : "", index);
	return rosa_fail(err, ROSA_EFORMAT, "%s: %s%s", value.file, where, what);
}

static const char *kind_name(struct json value)
{
	switch (json_kind(value)) {
	case JSON_IS_BOOL:
		return truth_of(value) ? "true" : "false";
	case JSON_IS_NUMBER:
		return "a number";
	case JSON_IS_STRING:
		return "a string";
	case JSON_IS_ARRAY:
		return "an array";
	case JSON_IS_OBJECT:
		return "an object";
	case JSON_IS_NOTHING:
		break;
	}
	return value.value ? "null" : "missing";
}

static rosa_status expect(struct json value, enum json_kind kind, const char *wanted, rosa_error *err)
{
	if (json_kind(value) == kind)
		return ROSA_OK;
	return json_refuse(value, err, "is %s; it must be %s", kind_name(value), wanted);
}

/* -------------------------------------------------------------------------------------------------------- values -- */

rosa_status json_as_integer(struct json value, int64_t *to, rosa_error *err)
{
	const char *wanted = "a whole number";
	struct scalar scalar;
	rosa_status status = expect(value, JSON_IS_NUMBER, wanted, err);

	if (status)
		return status;
	scalar = scalar_of(value);
	if (!scalar.whole && !(fabs(scalar.number) <= FLOAT_INTEGER_MAX && scalar.number == floor(scalar.number)))
		return json_refuse(value, err, "is %g; it must be %s", scalar.number, wanted);
	*to = scalar.whole ? scalar.integer : (int64_t)scalar.number;
	return ROSA_OK;
}

rosa_status json_as_size(struct json value, size_t *to, rosa_error *err)
{
	int64_t integer = 0;
	rosa_status status = json_as_integer(value, &integer, err);

	if (status)
		return status;
	if (integer < 0 || (uint64_t)integer > SIZE_MAX)
		return json_refuse(value, err, "is %lld; it must be 0 or more", (long long)integer);
	*to = (size_t)integer;
	return ROSA_OK;
}

rosa_status json_as_number(struct json value, double *to, rosa_error *err)
{
	struct scalar scalar;
	rosa_status status = expect(value, JSON_IS_NUMBER, "a number", err);

	if (status)
		return status;
	scalar = scalar_of(value);
	*to = scalar.whole ? (double)scalar.integer : scalar.number;
	return ROSA_OK;
}

rosa_status json_as_bool(struct json value, bool *to, rosa_error *err)
{
	rosa_status status = expect(value, JSON_IS_BOOL, "true or false", err);

	if (!status)
		*to = truth_of(value);
	return status;
}

rosa_status json_as_text(struct json value, const char **to, size_t *length, rosa_error *err)
{
	rosa_status status = expect(value, JSON_IS_STRING, "a string", err);

	if (!status)
		*to = text_of(value, length);
	return status;
}

rosa_status json_as_string(struct json value, const char **to, rosa_error *err)
{
	const char *text;
	size_t length;
	rosa_status status = json_as_text(value, &text, &length, err);

	if (status)
		return status;
	if (memchr(text, '\0', length))
		return json_refuse(value, err, "has a NUL character inside");
	*to = text;
	return ROSA_OK;
}

/* -------------------------------------------------------------------------------------------------------- fields -- */

/* True if there is no value to read: the field is missing, and *status is whether it may be. */
static bool is_missing(struct json object, struct json field, enum json_need need, rosa_status *status, rosa_error *err)
{
	*status = expect(object, JSON_IS_OBJECT, "an object", err);
	if (*status || json_there(field))
		return *status != ROSA_OK;
	if (need == JSON_NEEDED)
		*status = json_refuse(field, err, "is %s", kind_name(field));
	return true;
}

/* The getters differ in the type only. */
#define GETTER(what, type)                                                                                             \
	rosa_status json_get_##what(struct json object, const char *name, enum json_need need, type *value,            \
				    rosa_error *err)                                                                   \
	{                                                                                                              \
		const struct json field = json_find(object, name);                                                     \
		rosa_status status;                                                                                    \
                                                                                                                       \
		return is_missing(object, field, need, &status, err) ? status : json_as_##what(field, value, err);     \
	}

GETTER(size, size_t)
GETTER(integer, int64_t)
GETTER(number, double)
GETTER(bool, bool)
GETTER(string, const char *)

static rosa_status get_whole(struct json object, const char *name, enum json_need need, enum json_kind kind,
			     const char *wanted, struct json *value, rosa_error *err)
{
	rosa_status status;

	*value = json_find(object, name);
	return is_missing(object, *value, need, &status, err) ? status : expect(*value, kind, wanted, err);
}

rosa_status json_get_object(struct json object, const char *name, enum json_need need, struct json *value,
			    rosa_error *err)
{
	return get_whole(object, name, need, JSON_IS_OBJECT, "an object", value, err);
}

rosa_status json_get_array(struct json object, const char *name, enum json_need need, struct json *value,
			   rosa_error *err)
{
	return get_whole(object, name, need, JSON_IS_ARRAY, "an array", value, err);
}
