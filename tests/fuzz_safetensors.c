/*
 * Any bytes as a safetensors file.
 *
 * An input is tried as it is, and as the header of a file that is right up to there and has bytes enough after it: few
 * inputs would get the length right by themselves. What is accepted must be what the format says, every byte of the
 * file a tensor's and of one only; what is refused comes with a reason and leaves nothing behind.
 */
#include "model/safetensors.h"

#include "support_fuzz.h"
#include "support_weights.h"

#define DATA_BYTES 32

static volatile uint64_t sink;

static void check_tensors(const struct tensors *tensors, const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < tensors->count; i++) {
		const struct tensor *tensor = &tensors->all[i];
		const size_t at = (size_t)((const uint8_t *)tensor->data - data);

		check(tensor->format <= FORMAT_BF16 && tensor->dims >= 0 && tensor->dims <= TENSOR_MAX_DIMS);
		check(at <= size && tensor->bytes <= size - at && at % format_info[tensor->format].alignment == 0);
		check(tensor_numbers(tensor) * format_info[tensor->format].bytes == tensor->bytes && tensor->bytes > 0);
		check(tensors_find(tensors, tensor->name) == tensor);
		check(!i || strcmp(tensors->all[i - 1].name, tensor->name) < 0);
		for (size_t k = 0; k < tensor->bytes; k++)
			sink += data[at + k];
	}
}

static void try(const uint8_t *data, size_t size)
{
	struct safetensors file;
	rosa_error err = {ROSA_OK, ""};
	size_t bytes = 0;
	uint64_t header = 0;
	struct json_walk walk = {0};
	struct json value;
	const char *name, *text;

	if (safetensors_read(data, size, "file", &file, &err)) {
		check(err.status != ROSA_OK && !strncmp(err.message, "file: ", 6));
		check(!file.header.value && !file.tensors.all);
		return;
	}
	check_tensors(&file.tensors, data, size);
	for (size_t i = 0; i < file.tensors.count; i++)
		bytes += file.tensors.all[i].bytes;
	for (size_t i = 0; i < 8; i++)
		header |= (uint64_t)data[i] << (8 * i);
	check(8 + header + bytes == size);
	while (json_next(json_find(file.header, "__metadata__"), &walk, &name, &value))
		check(json_as_string(value, &text, NULL) == ROSA_OK && safetensors_metadata(&file, name) == text);
	safetensors_free(&file);
}

/* The header filled up with spaces, so that the data is aligned. */
static void try_as_header(const uint8_t *data, size_t size)
{
	struct bytes file = {NULL, 0, 0};
	uint8_t *exact;

	bytes_number(&file, size + -size % 8, 8);
	bytes_put(&file, data, size);
	while (file.size % 8)
		bytes_put(&file, " ", 1);
	for (size_t i = 0; i < DATA_BYTES; i++)
		bytes_number(&file, i, 1);
	exact = bytes_copy(&file, file.size);
	try(exact, file.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try(data, size);
	try_as_header(data, size);
	test_release(0);
	return 0;
}
