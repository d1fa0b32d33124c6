/*
 * The tensors of a weight file: names, shapes and where their bytes are.
 *
 * Both parsers fill these in and apply the same checks: how many bytes a shape takes, whether they lie in the file,
 * whether two tensors overlap. Code that uses a tensor need not check again.
 */
#pragma once

#include "backend/format.h"

#include "rosatune.h"

#define TENSOR_MAX_DIMS 4

struct tensor {
	const char *name; /* terminated; as in the file, UTF-8 without control characters */
	enum format format;
	int dims;                      /* 0 (a single number) to TENSOR_MAX_DIMS */
	size_t shape[TENSOR_MAX_DIMS]; /* slowest first, as PyTorch has it; GGUF's order is turned round; none is 0 */
	const void *data;              /* inside the mapped file, aligned as the format wants it */
	size_t bytes;
	const char *file; /* the file it is in, for messages */
};

/* Everything in here has been checked: shapes fit the bytes, the bytes lie inside the file, names are there once. */
struct tensors {
	struct tensor *all; /* sorted by name */
	size_t count;
};

/* NULL if there is none of that name. */
const struct tensor *tensors_find(const struct tensors *tensors, const char *name);

/* Numbers in a tensor. */
size_t tensor_numbers(const struct tensor *tensor);

/* "[49152, 576]", for messages and lists; returns `text`. */
#define TENSOR_SHAPE_TEXT 96
const char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT]);

/* The tensors of several files as one list, which refers to theirs: their names and files must stay. A name that two
 * files have is refused, naming both. */
rosa_status tensors_join(const struct tensors *const *parts, size_t count, struct tensors *joined, rosa_error *err);

void tensors_free(struct tensors *tensors); /* safe on a zeroed one */

/* --------------------------------------------------------------------------------------------------- for parsers -- */

/* Room for `count` tensors and `name_bytes` bytes of their names, which begin at *names; one block. */
rosa_status tensors_new(struct tensors *tensors, size_t count, size_t name_bytes, char **names, const char *file,
			rosa_error *err);

/* Whether a name, of a tensor or of metadata, may be one: UTF-8, not empty, and without characters that a terminal acts
 * on. */
bool weight_name_is_valid(const char *name, size_t size);

/* Works out `bytes` from format, dims and shape. Refuses sizes of 0, rows that are no whole blocks, and what no size_t
 * holds. */
rosa_status tensor_measure(struct tensor *tensor, rosa_error *err);

/* Places a measured tensor at `offset` of a file of `size` bytes, or refuses: it must fit and be aligned. */
rosa_status tensor_place(struct tensor *tensor, const uint8_t *file, size_t size, uint64_t offset, rosa_error *err);

/* Puts the list in the order of their places and refuses overlaps; puts it in the order of names and refuses what is
 * there twice. */
rosa_status tensors_sort_by_place(struct tensors *tensors, rosa_error *err);
rosa_status tensors_sort_by_name(struct tensors *tensors, rosa_error *err);
