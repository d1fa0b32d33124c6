/*
 * Writing safetensors files.
 *
 * The header has the place of each tensor, so all shapes must be known first; the numbers then pass through a small
 * buffer, so that a model that just fits into memory can be saved. The header is padded with spaces to a multiple of 8
 * bytes, as the format recommends, so that tensors are aligned.
 */
#include "train/safetensors_write.h"

#include "backend/backend.h"
#include "backend/convert.h"
#include "base/json_text.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)1 << 16) /* numbers fetched at a time */

static size_t numbers_of(const struct tensor_source *tensor)
{
	size_t numbers = 1;

	for (int i = 0; i < tensor->dims; i++)
		numbers *= tensor->shape[i];
	return numbers;
}

static void add_tensor(struct json_text *header, const struct tensor_source *tensor, enum format format, uint64_t *at)
{
	const uint64_t end = *at + (uint64_t)numbers_of(tensor) * format_info[format].bytes;

	json_text_add(header, ",");
	json_text_string(header, tensor->name);
	json_text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", format_info[format].name);
	for (int i = 0; i < tensor->dims; i++)
		json_text_add(header, "%s%zu", i ? "," : "", tensor->shape[i]);
	json_text_add(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at, (unsigned long long)end);
	*at = end;
}

static void make_header(struct json_text *header, const struct tensor_source *tensors, size_t count, enum format format,
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
		add_tensor(header, &tensors[i], format, &at);
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

/* Numbers on their way to a file, a piece at a time. */
struct pieces {
	enum format format;
	tensor_fetch fetch;
	void *context;
	float *numbers;   /* [PIECE] */
	uint16_t *narrow; /* [PIECE], for bfloat16 */
};

static rosa_status pieces_new(struct pieces *pieces, rosa_error *err)
{
	pieces->numbers = malloc(PIECE * sizeof(*pieces->numbers));
	pieces->narrow = malloc(PIECE * sizeof(*pieces->narrow));
	if (pieces->numbers && pieces->narrow)
		return ROSA_OK;
	return rosa_fail(err, ROSA_ENOMEM, "no memory to write tensors");
}

static void pieces_free(struct pieces *pieces)
{
	free(pieces->numbers);
	free(pieces->narrow);
}

/* The next numbers of a tensor as the file has them: *bytes of them at the address returned. */
static const void *piece_at(const struct pieces *pieces, const struct tensor_source *tensor, size_t first, size_t count,
			    size_t *bytes)
{
	*bytes = count * format_info[pieces->format].bytes;
	pieces->fetch(pieces->context, tensor, first, count, pieces->numbers);
	if (pieces->format == FORMAT_F32)
		return pieces->numbers;
	for (size_t i = 0; i < count; i++)
		pieces->narrow[i] = float_to_bfloat16(pieces->numbers[i]);
	return pieces->narrow;
}

static rosa_status write_tensor(struct file_writer *file, const struct tensor_source *tensor,
				const struct pieces *pieces, rosa_error *err)
{
	const size_t numbers = numbers_of(tensor);
	rosa_status status = ROSA_OK;

	for (size_t at = 0; at < numbers && status == ROSA_OK; at += PIECE) {
		size_t bytes;
		const void *piece = piece_at(pieces, tensor, at, numbers - at < PIECE ? numbers - at : PIECE, &bytes);

		status = file_write(file, piece, bytes, err);
	}
	return status;
}

void fetch_from_backend(void *context, const struct tensor_source *tensor, size_t first, size_t count, float *numbers)
{
	struct backend *backend = context;

	backend->ops->get(backend, numbers, (const float *)tensor->from + first, count * sizeof(*numbers));
}

rosa_status safetensors_write(struct file_writer *file, const struct tensor_source *tensors, size_t count,
			      enum format format, const char *const *metadata, tensor_fetch fetch, void *context,
			      rosa_error *err)
{
	struct pieces pieces = {.format = format, .fetch = fetch, .context = context};
	struct json_text header = {0};
	rosa_status status = pieces_new(&pieces, err);

	make_header(&header, tensors, count, format, metadata);
	if (status == ROSA_OK && header.failed)
		status = rosa_fail(err, ROSA_ENOMEM, "%s: no memory to write it", file->path);
	if (status == ROSA_OK)
		status = write_header(file, &header, err);
	for (size_t i = 0; i < count && status == ROSA_OK; i++)
		status = write_tensor(file, &tensors[i], &pieces, err);
	json_text_free(&header);
	pieces_free(&pieces);
	return status;
}

rosa_status safetensors_digest(const struct tensor_source *tensors, size_t count, enum format format,
			       tensor_fetch fetch, void *context, char text[SAFETENSORS_DIGEST], rosa_error *err)
{
	struct pieces pieces = {.format = format, .fetch = fetch, .context = context};
	rosa_status status = pieces_new(&pieces, err);
	struct checksum sum;

	checksum_begin(&sum, 0);
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		const size_t numbers = numbers_of(&tensors[i]);

		checksum_add(&sum, tensors[i].name, strlen(tensors[i].name));
		checksum_add(&sum, tensors[i].shape, sizeof(tensors[i].shape));
		for (size_t at = 0; at < numbers; at += PIECE) {
			size_t bytes;
			const void *piece =
			    piece_at(&pieces, &tensors[i], at, numbers - at < PIECE ? numbers - at : PIECE, &bytes);

			checksum_add(&sum, piece, bytes);
		}
	}
	snprintf(text, SAFETENSORS_DIGEST, "%016" PRIx64, checksum_value(&sum));
	pieces_free(&pieces);
	return status;
}
