/* NumPy's .npy files, as far as symbols, destinations, tokens and logits need them. */
#pragma once

#include "base/file.h"
#include "cli/report.h"

#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_DIMS 4

/* The header of a file, already checked against the size of the file. */
struct npy_header {
	int version;    /* 1, 2 or 3 */
	char order;     /* '<', '>', '|' or '=' */
	char kind;      /* 'u', 'i', 'f', 'b', ... */
	unsigned width; /* bytes per element */
	bool fortran;   /* columns first */
	int dims;       /* 0 to NPY_MAX_DIMS */
	size_t shape[NPY_MAX_DIMS];
	size_t count;  /* elements, the product of shape */
	size_t offset; /* of the first element in the file */
};

/* Reads the header of a file in memory. Reads no byte beyond `size` and allocates nothing. */
bool npy_parse(const uint8_t *data, size_t size, struct npy_header *header, rosa_error *why);

/* Symbols of routes: uint8, uint16 or uint32. Tokens of texts: uint16, int32, uint32 or int64, none of them negative or
 * beyond 32 bits. Both have shape [T] or [N,T]. */
enum npy_kind { NPY_SYMBOLS, NPY_TOKENS };

struct npy_rows {
	int dims; /* 1: shape [T]; there is one row then */
	size_t rows, steps;
	uint32_t *values; /* [rows][steps], from malloc; release with free */
};

/* From memory, with reasons that do not name the file; and from a file, with reasons that do. */
bool npy_read(const uint8_t *data, size_t size, enum npy_kind kind, struct npy_rows *rows, rosa_error *why);
bool npy_load(const char *path, enum npy_kind kind, struct npy_rows *rows, rosa_error *why);

/* Starts a file with the given shape and type of elements, "<i4" or "<f4"; these follow by file_write, and then
 * file_finish. */
bool npy_create(struct file_writer *writer, const char *path, const char *type, int dims, const size_t *shape,
		rosa_error *why);
