/* GGUF files, versions 2 and 3, little-endian. */
#pragma once

#include "model/tensors.h"

/* As in the file. */
enum gguf_type {
	GGUF_UINT8 = 0,
	GGUF_INT8 = 1,
	GGUF_UINT16 = 2,
	GGUF_INT16 = 3,
	GGUF_UINT32 = 4,
	GGUF_INT32 = 5,
	GGUF_FLOAT32 = 6,
	GGUF_BOOL = 7,
	GGUF_STRING = 8,
	GGUF_ARRAY = 9,
	GGUF_UINT64 = 10,
	GGUF_INT64 = 11,
	GGUF_FLOAT64 = 12
};

struct gguf_text {
	const char *at; /* inside the file, not terminated */
	size_t length;
};

struct gguf_entry {
	const char *key; /* terminated; UTF-8 without control characters */
	enum gguf_type type;
	enum gguf_type element; /* of an array */
	size_t count;           /* of an array's elements; else 1 */
	/* The value inside the file: numbers not aligned, strings with their lengths before them. */
	const uint8_t *data;
	struct gguf_text *texts; /* [count]: a string, or an array of strings */
};

struct gguf {
	unsigned version;
	struct gguf_entry *entries; /* sorted by key */
	size_t count;
	struct tensors tensors;

	/* Behind the entries: */
	char *keys;
	struct gguf_text *texts;
};

/* Reads a file that lies in memory, which must stay there unchanged as long as the result is used. `name` is the
 * file's, for messages, and must stay too. `data` is aligned to 8 bytes or more, as memory from malloc or a mapping is.
 * Every count, length, offset and type is checked before it is believed. *gguf is zeroed if this fails. */
rosa_status gguf_read(const uint8_t *data, size_t size, const char *name, struct gguf *gguf, rosa_error *err);
void gguf_free(struct gguf *gguf); /* safe on a zeroed one */

/* Bytes of a value; 0 for strings and arrays, whose size is their own. */
size_t gguf_value_bytes(enum gguf_type type);

/* NULL if there is no such key. */
const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key);

/* A value as a C type: element `i` of an array, or the value itself for i = 0. False if `entry` is NULL (the key is
 * missing), there is no such element, or it is of a kind that cannot be one: an integer may be stored as a whole
 * floating point number or as a bool, a fraction is none, and what exceeds 63 bits is none either. */
bool gguf_integer(const struct gguf_entry *entry, size_t i, int64_t *value);
bool gguf_number(const struct gguf_entry *entry, size_t i, double *value);
bool gguf_string(const struct gguf_entry *entry, size_t i, struct gguf_text *text);
