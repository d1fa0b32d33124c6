/*
 * NumPy files.
 *
 * A .npy file is a magic number, a version, the length of a header, the header (the text of a Python dictionary with
 * exactly the keys descr, fortran_order and shape) and the elements. A small parser reads this grammar and no more: no
 * Python expression is evaluated, and an unknown key is an error, since it may change what the bytes mean.
 *
 * Everything is parsed from memory, so that a fuzzer can try any bytes. The shape is compared with the size of the file
 * before memory is allocated: its product must not overflow and must give exactly the bytes that are there.
 */
#include "cli/npy.h"

#include "cli/interrupt.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* ----------------------------------------------------------------------------------------- the dictionary's text -- */

struct cursor {
	const uint8_t *at, *end;
};

static void skip_space(struct cursor *text)
{
	while (text->at < text->end && (*text->at == ' ' || *text->at == '\n' || *text->at == '\t'))
		text->at++;
}

/* Skips spaces and takes the next character if it is this one. */
static bool take(struct cursor *text, char wanted)
{
	skip_space(text);
	if (text->at == text->end || *text->at != (uint8_t)wanted)
		return false;
	text->at++;
	return true;
}

static bool take_word(struct cursor *text, const char *word)
{
	size_t length = strlen(word);

	skip_space(text);
	if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
		return false;
	text->at += length;
	return true;
}

/* A quoted string without escapes (type names and keys have none), at most room - 1 characters, all printable. */
static bool take_string(struct cursor *text, char *into, size_t room)
{
	size_t length = 0;
	char quote = '\'';

	if (!take(text, quote)) {
		quote = '"';
		if (!take(text, quote))
			return false;
	}
	for (; text->at < text->end && *text->at != (uint8_t)quote; text->at++) {
		if (length + 1 == room || !isprint(*text->at) || *text->at == '\\')
			return false;
		into[length++] = (char)*text->at;
	}
	into[length] = '\0';
	return take(text, quote);
}

static bool take_number(struct cursor *text, size_t *number)
{
	skip_space(text);
	if (text->at == text->end || !isdigit(*text->at))
		return false;
	*number = 0;
	for (; text->at < text->end && isdigit(*text->at); text->at++) {
		size_t digit = (size_t)(*text->at - '0');
		if (*number > (SIZE_MAX - digit) / 10)
			return false;
		*number = *number * 10 + digit;
	}
	if (text->at < text->end && *text->at == 'L') /* as Python 2 wrote long integers */
		text->at++;
	return true;
}

/* ---------------------------------------------------------------------------------------------- the three fields -- */

static bool read_descr(struct cursor *text, struct npy_header *header, rosa_error *why)
{
	char descr[16];
	unsigned width = 0;
	const char *at = descr;

	if (!take_string(text, descr, sizeof(descr)))
		return refuse(why,
			      "field 'descr' is not the name of a plain element type; save an array of whole numbers");
	header->order = strchr("<>|=", *at) && *at ? *at++ : '|';
	header->kind = *at ? *at++ : '?';
	for (; isdigit((unsigned char)*at) && width < 1000; at++)
		width = width * 10 + (unsigned)(*at - '0');
	if (*at || width == 0)
		return refuse(why, "field 'descr': element type '%s' is not known; save an array of whole numbers",
			      descr);
	header->width = width;
	return true;
}

static bool read_order(struct cursor *text, struct npy_header *header, rosa_error *why)
{
	header->fortran = take_word(text, "True");
	if (!header->fortran && !take_word(text, "False"))
		return refuse(why, "field 'fortran_order' is neither True nor False; the header is damaged");
	return true;
}

static bool read_shape(struct cursor *text, struct npy_header *header, rosa_error *why)
{
	bool comma = true;

	header->dims = 0;
	if (!take(text, '('))
		return refuse(why, "field 'shape' is not a tuple; the header is damaged");
	while (!take(text, ')')) {
		if (!comma || header->dims == NPY_MAX_DIMS)
			return refuse(why, "field 'shape' is damaged or has more than %d dimensions", NPY_MAX_DIMS);
		if (!take_number(text, &header->shape[header->dims]))
			return refuse(why, "field 'shape': dimension %d is not a number that fits in memory",
				      header->dims);
		header->dims++;
		comma = take(text, ',');
	}
	if (header->dims == 1 && !comma)
		return refuse(why, "field 'shape' is a number in brackets, not a tuple; the header is damaged");
	return true;
}

static const struct field {
	const char *name;
	bool (*read)(struct cursor *text, struct npy_header *header, rosa_error *why);
} fields[] = {{"descr", read_descr}, {"fortran_order", read_order}, {"shape", read_shape}};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static bool read_field(struct cursor *text, struct npy_header *header, unsigned *seen, rosa_error *why)
{
	char key[32];

	if (!take_string(text, key, sizeof(key)) || !take(text, ':'))
		return refuse(why, "the header is not a dictionary of named fields; the file is damaged");
	for (size_t i = 0; i < FIELDS; i++) {
		if (strcmp(key, fields[i].name) != 0)
			continue;
		if (*seen & 1u << i)
			return refuse(why, "field '%s' stands twice in the header; the file is damaged", key);
		*seen |= 1u << i;
		return fields[i].read(text, header, why);
	}
	return refuse(why, "field '%s' in the header is not known; save the file again with numpy.save", key);
}

static bool read_dictionary(struct cursor text, struct npy_header *header, rosa_error *why)
{
	unsigned seen = 0;
	bool comma = true;

	if (!take(&text, '{'))
		return refuse(why, "the header does not begin with '{'; the file is damaged");
	while (!take(&text, '}')) {
		if (!comma)
			return refuse(why, "the header's fields are not separated by commas; the file is damaged");
		if (!read_field(&text, header, &seen, why))
			return false;
		comma = take(&text, ',');
	}
	for (size_t i = 0; i < FIELDS; i++) {
		if (!(seen & 1u << i))
			return refuse(why, "field '%s' is missing from the header; the file is damaged",
				      fields[i].name);
	}
	skip_space(&text);
	if (text.at != text.end)
		return refuse(why, "there is text after the '}' of the header; the file is damaged");
	return true;
}

/* --------------------------------------------------------------------------------------------------- whole files -- */

static bool check_size(size_t size, struct npy_header *header, rosa_error *why)
{
	size_t have = size - header->offset, bytes = header->width;
	bool empty = false, fits = true;

	for (int i = 0; i < header->dims; i++)
		empty = empty || header->shape[i] == 0;
	for (int i = 0; i < header->dims && !empty && fits; i++)
		fits = !__builtin_mul_overflow(bytes, header->shape[i], &bytes);
	if (empty)
		bytes = 0;
	if (!fits)
		return refuse(why, "field 'shape' needs more bytes than a computer can address; the file is damaged");
	if (bytes > have)
		return refuse(why, "field 'shape' needs %zu bytes of elements, the file holds %zu; it was cut short",
			      bytes, have);
	if (bytes < have)
		return refuse(why,
			      "field 'shape' needs %zu bytes of elements, the file holds %zu; save one array per file",
			      bytes, have);
	header->count = bytes / header->width;
	return true;
}

bool npy_parse(const uint8_t *data, size_t size, struct npy_header *header, rosa_error *why)
{
	size_t prefix, length = 0;

	memset(header, 0, sizeof(*header));
	if (size < 8 || memcmp(data, magic, sizeof(magic)) != 0)
		return refuse(why, "not a NumPy file: it does not begin with \\x93NUMPY; save it with numpy.save");
	header->version = data[6];
	if (header->version < 1 || header->version > 3 || data[7] != 0)
		return refuse(why, "field 'version': format %d.%d is not known, only 1.0, 2.0 and 3.0", data[6],
			      data[7]);
	prefix = header->version == 1 ? 10 : 12;
	if (size < prefix)
		return refuse(why, "field 'header length' is missing; the file was cut short");
	for (size_t i = prefix; i-- > 8;)
		length = length << 8 | data[i];
	if (length > size - prefix)
		return refuse(why, "field 'header length' is %zu, the file has %zu bytes left; it was cut short",
			      length, size - prefix);
	header->offset = prefix + length;
	return read_dictionary((struct cursor){data + prefix, data + header->offset}, header, why) &&
	       check_size(size, header, why);
}

/* ---------------------------------------------------------------------------------------- rows of whole numbers -- */

/* What a caller wants of the elements. */
struct wish {
	const char *what;   /* "symbols" */
	const char *types;  /* accepted element types, each as kind and width, separated by spaces */
	const char *named;  /* the same, for messages */
	const char *remedy; /* the type to convert others to */
	const char *row;    /* what a row is called */
};

static const struct wish wishes[] = {
    [NPY_SYMBOLS] = {"symbols", "u1 u2 u4", "uint8, uint16 or uint32", "uint16", "route"},
    [NPY_TOKENS] = {"tokens", "u2 i4 u4 i8", "uint16, int32, uint32 or int64", "int32", "text"},
};

static bool accept_type(const struct npy_header *header, const struct wish *wish, rosa_error *why)
{
	char type[16];

	snprintf(type, sizeof(type), "%c%u", header->kind, header->width);
	if (header->width > 8 || !strstr(wish->types, type))
		return refuse(why, "field 'descr': elements are '%s', %s must be %s; convert with .astype('%s')", type,
			      wish->what, wish->named, wish->remedy);
	if (header->order == '>' && header->width > 1)
		return refuse(why, "field 'descr': byte order is big endian ('>%s'); convert with .astype('<%s')", type,
			      type);
	return true;
}

static bool accept_shape(const struct npy_header *header, const struct wish *wish, rosa_error *why)
{
	if (header->dims != 1 && header->dims != 2)
		return refuse(why, "field 'shape' has %d dimensions, %s have shape [T] or [N,T]", header->dims,
			      wish->what);
	if (header->fortran && header->dims == 2)
		return refuse(
		    why, "field 'fortran_order' is True: columns come first; convert with numpy.ascontiguousarray");
	if (header->count == 0)
		return refuse(why, "field 'shape' has a dimension of 0; there must be at least one %s and one step",
			      wish->row);
	return true;
}

/* The bits of an element, sign-extended to 64 bits. */
static uint64_t element(const uint8_t *from, const struct npy_header *header)
{
	uint64_t bits = header->kind == 'i' && from[header->width - 1] & 0x80 ? UINT64_MAX : 0;

	for (unsigned i = header->width; i-- > 0;)
		bits = bits << 8 | from[i];
	return bits;
}

bool npy_read(const uint8_t *data, size_t size, enum npy_kind kind, struct npy_rows *rows, rosa_error *why)
{
	const struct wish *wish = &wishes[kind];
	struct npy_header header;
	uint32_t *values;

	*rows = (struct npy_rows){0};
	if (!npy_parse(data, size, &header, why) || !accept_type(&header, wish, why) ||
	    !accept_shape(&header, wish, why))
		return false;
	values = header.count > SIZE_MAX / sizeof(*values) ? NULL : malloc(header.count * sizeof(*values));
	if (!values)
		return refuse(why, "not enough memory for %zu %s", header.count, wish->what);
	for (size_t i = 0; i < header.count; i++) {
		const uint64_t value = element(data + header.offset + i * header.width, &header);

		if (value > UINT32_MAX) {
			free(values);
			return refuse(why, "element %zu is %lld; %s are 0 to %lu", i, (long long)value, wish->what,
				      (unsigned long)UINT32_MAX);
		}
		values[i] = (uint32_t)value;
	}
	*rows = (struct npy_rows){header.dims, header.dims == 2 ? header.shape[0] : 1, header.shape[header.dims - 1],
				  values};
	return true;
}

bool npy_load(const char *path, enum npy_kind kind, struct npy_rows *rows, rosa_error *why)
{
	uint8_t *data;
	size_t size;

	*rows = (struct npy_rows){0};
	if (file_read(path, &program_files, &data, &size, why) != ROSA_OK)
		return false;
	const bool done = npy_read(data, size, kind, rows, why);
	free(data);
	return done || refuse(why, "%s: %s", path, why->message);
}

/* ------------------------------------------------------------------------------------------------------- writing -- */

bool npy_create(struct file_writer *writer, const char *path, const char *type, int dims, const size_t *shape,
		rosa_error *why)
{
	char header[256], tuple[128] = "";
	size_t used = 0;

	for (int i = 0; i < dims && i < NPY_MAX_DIMS; i++)
		used +=
		    (size_t)snprintf(tuple + used, sizeof(tuple) - used, "%zu,%s", shape[i], i + 1 < dims ? " " : "");
	if (dims > 1)
		tuple[used - 1] = '\0';
	/* The elements begin at a multiple of 64 bytes, the header ending in spaces and a newline. */
	int length = snprintf(header + 10, sizeof(header) - 10,
			      "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, tuple);
	size_t whole = ((size_t)length + 10 + 1 + 63) / 64 * 64;
	memset(header + 10 + length, ' ', whole - 10 - (size_t)length);
	header[whole - 1] = '\n';
	memcpy(header, magic, sizeof(magic));
	header[6] = 1;
	header[7] = 0;
	header[8] = (char)((whole - 10) & 0xff);
	header[9] = (char)((whole - 10) >> 8);
	return file_create(writer, path, &program_files, why) == ROSA_OK &&
	       file_write(writer, header, whole, why) == ROSA_OK;
}
