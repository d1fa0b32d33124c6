/*
 * safetensors files.
 *
 * Eight bytes give the length of the header; the header is a JSON object with one entry per tensor; the rest of the
 * file is the tensors' bytes, without gaps. That last rule is part of the format and is checked: a file cannot carry
 * bytes that belong to no tensor.
 *
 * The header is read twice, first to add up the lengths of names and texts, then to store them. The JSON tree is
 * released before this returns, so all that outlives it is copied. A file with a tensor of an unsupported type is
 * refused as a whole; otherwise that tensor would later seem to be missing.
 */
#include "model/safetensors.h"

#include "model/json.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES   8
#define HEADER_LARGEST 100000000 /* bytes; the format's own bound */
#define METADATA       "__metadata__"

struct reading {
	const uint8_t *data;
	size_t size;
	size_t begin; /* of the tensors' bytes */
	const char *file;
	struct json header;
	rosa_error *err;
};

/* -------------------------------------------------------------------------------------------------------- header -- */

static rosa_status find_header(struct reading *reading)
{
	uint64_t length = 0;

	if (reading->size <= LENGTH_BYTES)
		return rosa_fail(reading->err, ROSA_EFORMAT, "%s: %zu bytes are too few for a safetensors file",
				 reading->file, reading->size);
	for (size_t i = 0; i < LENGTH_BYTES; i++)
		length |= (uint64_t)reading->data[i] << (8 * i);
	if (reading->data[LENGTH_BYTES] != '{')
		return rosa_fail(reading->err, ROSA_EFORMAT,
				 "%s: is not a safetensors file: its header does not begin with '{'", reading->file);
	if (length > HEADER_LARGEST || length > reading->size - LENGTH_BYTES)
		return rosa_fail(reading->err, ROSA_EFORMAT,
				 "%s: a header of %llu bytes; at most %d are allowed and the file has %zu; it is cut "
				 "short or damaged",
				 reading->file, (unsigned long long)length, HEADER_LARGEST, reading->size);
	reading->begin = LENGTH_BYTES + (size_t)length;
	return ROSA_OK;
}

/* JSON that begins with '{' is an object. */
static rosa_status parse_header(struct reading *reading)
{
	rosa_status status = find_header(reading);

	return status ? status
		      : json_read((const char *)reading->data + LENGTH_BYTES, reading->begin - LENGTH_BYTES,
				  reading->file, &reading->header, reading->err);
}

/* Copies a string and moves on to where the next one goes. */
static char *store(char **to, const char *text, size_t length)
{
	char *stored = *to;

	memcpy(stored, text, length);
	stored[length] = '\0';
	*to += length + 1;
	return stored;
}

/* ------------------------------------------------------------------------------------------------------ metadata -- */

static rosa_status check_metadata(const struct reading *reading)
{
	struct json_walk walk = {NULL, false};
	struct json metadata, value;
	const char *name, *text;
	rosa_status status = json_get_object(reading->header, METADATA, JSON_OPTIONAL, &metadata, reading->err);

	while (!status && json_next(metadata, &walk, &name, &value))
		status = json_as_string(value, &text, reading->err);
	return status;
}

/* ------------------------------------------------------------------------------------------------------- tensors -- */

static rosa_status read_format(struct tensor *tensor, struct json description, rosa_error *err)
{
	static const enum format known[] = {FORMAT_F32, FORMAT_F16, FORMAT_BF16};
	const char *name;
	rosa_status status = json_get_string(description, "dtype", JSON_NEEDED, &name, err);

	if (status)
		return status;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(name, format_info[known[i]].name)) {
			tensor->format = known[i];
			return ROSA_OK;
		}
	return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: type %.20s is not supported; F32, F16 and BF16 are",
			 tensor->file, tensor->name, name);
}

static rosa_status read_shape(struct tensor *tensor, struct json description, rosa_error *err)
{
	struct json shape;
	rosa_status status = json_get_array(description, "shape", JSON_NEEDED, &shape, err);

	if (!status && json_count(shape) > TENSOR_MAX_DIMS)
		status = json_refuse(shape, err, "%zu dimensions; at most %d are supported", json_count(shape),
				     TENSOR_MAX_DIMS);
	if (status)
		return status;
	tensor->dims = (int)json_count(shape);
	for (int i = 0; i < tensor->dims && !status; i++)
		status = json_as_size(json_at(shape, (size_t)i), &tensor->shape[i], err);
	return status;
}

static rosa_status read_place(struct reading *reading, struct tensor *tensor, struct json description)
{
	struct json offsets;
	size_t from = 0, to = 0;
	rosa_status status = json_get_array(description, "data_offsets", JSON_NEEDED, &offsets, reading->err);

	if (!status && json_count(offsets) != 2)
		status = json_refuse(offsets, reading->err, "%zu numbers; it must be two", json_count(offsets));
	if (!status)
		status = json_as_size(json_at(offsets, 0), &from, reading->err);
	if (!status)
		status = json_as_size(json_at(offsets, 1), &to, reading->err);
	if (!status && (to < from || to - from != tensor->bytes))
		status = json_refuse(offsets, reading->err, "from %zu to %zu, but its shape and type make %zu bytes",
				     from, to, tensor->bytes);
	/* json's integers have 63 bits, so the sum fits */
	return status
		   ? status
		   : tensor_place(tensor, reading->data, reading->size, (uint64_t)reading->begin + from, reading->err);
}

static rosa_status read_tensor(struct reading *reading, struct tensor *tensor, struct json description)
{
	rosa_status status = read_format(tensor, description, reading->err);

	if (!status)
		status = read_shape(tensor, description, reading->err);
	if (!status)
		status = tensor_measure(tensor, reading->err);
	if (!status)
		status = read_place(reading, tensor, description);
	return status;
}

/* The next entry that is a tensor. */
static bool next_tensor(const struct reading *reading, struct json_walk *walk, const char **name, struct json *value)
{
	while (json_next(reading->header, walk, name, value))
		if (strcmp(*name, METADATA) != 0)
			return true;
	return false;
}

/* In the order of places, each must begin where the one before it ends, and the last end with the file. */
static rosa_status check_gaps(const struct reading *reading, const struct tensors *tensors)
{
	const uint8_t *at = reading->data + reading->begin, *end = reading->data + reading->size;

	for (size_t i = 0; i < tensors->count; i++) {
		const struct tensor *tensor = &tensors->all[i];

		if (tensor->data != at)
			return rosa_fail(reading->err, ROSA_EFORMAT,
					 "%s: %zu bytes before tensor %.100s belong to no tensor", reading->file,
					 (size_t)((const uint8_t *)tensor->data - at), tensor->name);
		at += tensor->bytes;
	}
	if (at != end)
		return rosa_fail(reading->err, ROSA_EFORMAT, "%s: %zu bytes at its end belong to no tensor",
				 reading->file, (size_t)(end - at));
	return ROSA_OK;
}

static rosa_status read_tensors(struct reading *reading, struct tensors *tensors)
{
	struct json_walk count_walk = {NULL, false}, walk = {NULL, false};
	size_t count = 0, name_bytes = 0;
	struct json value;
	const char *name;
	char *names;
	rosa_status status;

	for (; next_tensor(reading, &count_walk, &name, &value); count++) {
		if (!weight_name_is_valid(name, strlen(name)))
			return rosa_fail(reading->err, ROSA_EFORMAT,
					 "%s: the name of tensor %zu is empty or has control characters", reading->file,
					 count);
		name_bytes += strlen(name) + 1;
	}
	status = tensors_new(tensors, count, name_bytes, &names, reading->file, reading->err);
	for (size_t i = 0; !status && next_tensor(reading, &walk, &name, &value); i++) {
		tensors->all[i] = (struct tensor){.name = store(&names, name, strlen(name)), .file = reading->file};
		status = read_tensor(reading, &tensors->all[i], value);
	}
	if (!status)
		status = tensors_sort_by_place(tensors, reading->err);
	if (!status)
		status = check_gaps(reading, tensors);
	if (!status)
		status = tensors_sort_by_name(tensors, reading->err);
	return status;
}

/* --------------------------------------------------------------------------------------------------------- whole -- */

rosa_status safetensors_read(const uint8_t *data, size_t size, const char *name, struct safetensors *file,
			     rosa_error *err)
{
	struct reading reading = {.data = data, .size = size, .file = name, .err = err};
	rosa_status status = parse_header(&reading);

	*file = (struct safetensors){.header = reading.header};
	if (!status)
		status = check_metadata(&reading);
	if (!status)
		status = read_tensors(&reading, &file->tensors);
	if (status)
		safetensors_free(file);
	return status;
}

void safetensors_free(struct safetensors *file)
{
	tensors_free(&file->tensors);
	json_free(&file->header);
	*file = (struct safetensors){.header = {0}};
}

const char *safetensors_metadata(const struct safetensors *file, const char *name)
{
	const char *text = NULL;

	json_as_string(json_find(json_find(file->header, METADATA), name), &text, NULL);
	return text;
}
