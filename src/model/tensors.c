/*
 * Tensors, and the checks that every weight file has to pass.
 *
 * A list is sorted by name, so that finding is a binary search and names that are there twice are neighbours; sorted by
 * place, tensors that overlap are neighbours too. Names lie behind the array in the same block of memory, because they
 * live exactly as long.
 *
 * In messages names are cut: a hostile one could push everything else out of them.
 */
#include "model/tensors.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
	const uint8_t *left = ((const struct tensor *)a)->data, *right = ((const struct tensor *)b)->data;

	return (left > right) - (left < right);
}

/* qsort must not be given NULL, which an empty list may be. */
static void sort(struct tensors *tensors, int (*compare)(const void *, const void *))
{
	if (tensors->count > 1)
		qsort(tensors->all, tensors->count, sizeof(*tensors->all), compare);
}

const struct tensor *tensors_find(const struct tensors *tensors, const char *name)
{
	const struct tensor wanted = {.name = name};

	if (!tensors->count)
		return NULL;
	return bsearch(&wanted, tensors->all, tensors->count, sizeof(*tensors->all), compare_names);
}

size_t tensor_numbers(const struct tensor *tensor)
{
	size_t numbers = 1;

	for (int i = 0; i < tensor->dims; i++)
		numbers *= tensor->shape[i];
	return numbers;
}

const char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT])
{
	size_t at = (size_t)snprintf(text, TENSOR_SHAPE_TEXT, "[");

	for (int i = 0; i < tensor->dims; i++)
		at += (size_t)snprintf(text + at, TENSOR_SHAPE_TEXT - at, "%s%zu", i ? ", " : "", tensor->shape[i]);
	snprintf(text + at, TENSOR_SHAPE_TEXT - at, "]");
	return text;
}

rosa_status tensors_new(struct tensors *tensors, size_t count, size_t name_bytes, char **names, const char *file,
			rosa_error *err)
{
	const size_t width = sizeof(*tensors->all);

	*tensors = (struct tensors){NULL, 0};
	if (count > (SIZE_MAX - name_bytes) / width - 1)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for a list of %zu tensors", file, count);
	tensors->all = malloc((count + 1) * width + name_bytes);
	if (!tensors->all)
		return rosa_fail(err, ROSA_ENOMEM, "%s: no memory for a list of %zu tensors", file, count);
	tensors->count = count;
	*names = (char *)(tensors->all + count);
	return ROSA_OK;
}

void tensors_free(struct tensors *tensors)
{
	free(tensors->all);
	*tensors = (struct tensors){NULL, 0};
}

rosa_status tensors_join(const struct tensors *const *parts, size_t count, struct tensors *joined, rosa_error *err)
{
	const char *file = count && parts[0]->count ? parts[0]->all[0].file : "tensors";
	size_t total = 0, at = 0;
	char *names;
	rosa_status status;

	for (size_t i = 0; i < count; i++)
		total += parts[i]->count; /* of arrays that all lie in memory */
	status = tensors_new(joined, total, 0, &names, file, err);
	if (status)
		return status;
	for (size_t i = 0; i < count; i++) {
		if (parts[i]->count)
			memcpy(joined->all + at, parts[i]->all, parts[i]->count * sizeof(*joined->all));
		at += parts[i]->count;
	}
	status = tensors_sort_by_name(joined, err);
	if (status)
		tensors_free(joined);
	return status;
}

/* -------------------------------------------------------------------------------------------------------- checks -- */

bool weight_name_is_valid(const char *name, size_t size)
{
	size_t length;

	for (size_t at = 0; at < size; at += length) {
		const uint32_t point = utf8_next(name + at, size - at, &length);

		if (point == UTF8_BAD || utf8_active(point))
			return false;
	}
	return size > 0;
}

/* Computes `bytes` from `row_blocks` blocks per row; false if it does not fit a size_t. The number of numbers must fit
 * as well, because tensor_numbers does not check. */
static bool multiply_sizes(struct tensor *tensor, const struct format_info *format, size_t row_blocks)
{
	size_t blocks = row_blocks, numbers;

	for (int i = 0; i + 1 < tensor->dims; i++)
		if (__builtin_mul_overflow(blocks, tensor->shape[i], &blocks))
			return false;
	return !__builtin_mul_overflow(blocks, format->numbers, &numbers) &&
	       !__builtin_mul_overflow(blocks, format->bytes, &tensor->bytes);
}

rosa_status tensor_measure(struct tensor *tensor, rosa_error *err)
{
	const struct format_info *format = &format_info[tensor->format];
	const size_t row = tensor->dims ? tensor->shape[tensor->dims - 1] : 1;
	char shape[TENSOR_SHAPE_TEXT];

	for (int i = 0; i < tensor->dims; i++)
		if (!tensor->shape[i])
			return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: a size in its shape %s is 0",
					 tensor->file, tensor->name, tensor_shape_text(tensor, shape));
	if (row % format->numbers)
		return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: rows of %zu numbers; %s has blocks of %zu",
				 tensor->file, tensor->name, row, format->name, format->numbers);
	if (!multiply_sizes(tensor, format, row / format->numbers))
		return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s: shape %s is larger than any file", tensor->file,
				 tensor->name, tensor_shape_text(tensor, shape));
	return ROSA_OK;
}

rosa_status tensor_place(struct tensor *tensor, const uint8_t *file, size_t size, uint64_t offset, rosa_error *err)
{
	const struct format_info *format = &format_info[tensor->format];

	if (offset > size || tensor->bytes > size - offset)
		return rosa_fail(
		    err, ROSA_EFORMAT,
		    "%s: tensor %.100s: %zu bytes at %llu, but the file has %zu; it is cut short or damaged",
		    tensor->file, tensor->name, tensor->bytes, (unsigned long long)offset, size);
	if (offset % format->alignment)
		return rosa_fail(
		    err, ROSA_EFORMAT,
		    "%s: tensor %.100s: %s data at byte %llu, which is no multiple of %zu; save the file again",
		    tensor->file, tensor->name, format->name, (unsigned long long)offset, format->alignment);
	tensor->data = file + offset;
	return ROSA_OK;
}

rosa_status tensors_sort_by_place(struct tensors *tensors, rosa_error *err)
{
	sort(tensors, compare_places);
	for (size_t i = 1; i < tensors->count; i++) {
		const struct tensor *one = &tensors->all[i - 1], *next = one + 1;

		if ((size_t)((const uint8_t *)next->data - (const uint8_t *)one->data) < one->bytes)
			return rosa_fail(err, ROSA_EFORMAT, "%s: tensors %.80s and %.80s overlap", one->file, one->name,
					 next->name);
	}
	return ROSA_OK;
}

rosa_status tensors_sort_by_name(struct tensors *tensors, rosa_error *err)
{
	sort(tensors, compare_names);
	for (size_t i = 1; i < tensors->count; i++) {
		const struct tensor *one = &tensors->all[i - 1], *next = one + 1;

		if (strcmp(one->name, next->name) != 0)
			continue;
		if (one->file == next->file)
			return rosa_fail(err, ROSA_EFORMAT, "%s: tensor %.100s is there twice", one->file, one->name);
		return rosa_fail(err, ROSA_EFORMAT, "tensor %.80s is in %.70s and in %.70s", one->name, one->file,
				 next->file);
	}
	return ROSA_OK;
}
