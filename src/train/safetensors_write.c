/*
 * safetensors files, written.
 *
 * The header says where each tensor lies, so all shapes are wanted first and the numbers then stream through a small
 * buffer: a model that just fits into memory can be saved. The header is filled up with spaces to a multiple of 8
 * bytes, as the format asks for, so that tensors are aligned.
 */
#include "train/safetensors_write.h"

#include "base/json_text.h"
#include "base/status.h"

#include <stdlib.h>

#define PIECE ((size_t)1 << 16) /* numbers fetched at a time */

static size_t numbers_of(const struct tensor_source *tensor)
{
	size_t numbers = 1;

	for (int i = 0; i < tensor->dims; i++)
		numbers *= tensor->shape[i];
	return numbers;
}

static void add_tensor(struct json_text *header, const struct tensor_source *tensor, uint64_t *at)
{
	const uint64_t end = *at + (uint64_t)numbers_of(tensor) * sizeof(float);

	json_text_add(header, ",");
	json_text_string(header, tensor->name);
	json_text_add(header, ":{\"dtype\":\"F32\",\"shape\":[");
	for (int i = 0; i < tensor->dims; i++)
		json_text_add(header, "%s%zu", i ? "," : "", tensor->shape[i]);
	json_text_add(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at, (unsigned long long)end);
	*at = end;
}

static void make_header(struct json_text *header, const struct tensor_source *tensors, size_t count,
			const char *const *metadata)
{
	uint64_t at = 0;

	json_text_add(header, "{\"__metadata__\":{");
	for (size_t i = 0; metadata[i]; i += 2) {
		json_text_add(header, i ? "," : "");
		json_text_string(header, metadata[i]);
		json_text_add(header, ":");
		json_text_string(header, metadata[i + 1]);
	}
	json_text_add(header, "}");
	for (size_t i = 0; i < count; i++)
		add_tensor(header, &tensors[i], &at);
	json_text_add(header, "}");
	while (header->size % 8 && !header->failed)
		json_text_add(header, " ");
}

static rosa_status write_header(struct file_writer *file, const struct json_text *header, rosa_error *err)
{
	uint8_t size[8];
	rosa_status status;

	for (int i = 0; i < 8; i++)
		size[i] = (uint8_t)((uint64_t)header->size >> 8 * i);
	status = file_write(file, size, sizeof(size), err);
	return status == ROSA_OK ? file_write(file, header->data, header->size, err) : status;
}

static rosa_status write_tensor(struct file_writer *file, const struct tensor_source *tensor, tensor_fetch fetch,
				void *context, float *piece, rosa_error *err)
{
	const size_t numbers = numbers_of(tensor);
	rosa_status status = ROSA_OK;

	for (size_t at = 0; at < numbers && status == ROSA_OK; at += PIECE) {
		const size_t count = numbers - at < PIECE ? numbers - at : PIECE;

		fetch(context, tensor, at, count, piece);
		status = file_write(file, piece, count * sizeof(float), err);
	}
	return status;
}

rosa_status safetensors_write(struct file_writer *file, const struct tensor_source *tensors, size_t count,
			      const char *const *metadata, tensor_fetch fetch, void *context, rosa_error *err)
{
	struct json_text header = {0};
	float *piece = malloc(PIECE * sizeof(*piece));
	rosa_status status = ROSA_OK;

	make_header(&header, tensors, count, metadata);
	if (!piece || header.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write it", file->path);
	if (status == ROSA_OK)
		status = write_header(file, &header, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++)
		status = write_tensor(file, &tensors[i], fetch, context, piece, err);
	json_text_free(&header);
	free(piece);
	return status;
}
