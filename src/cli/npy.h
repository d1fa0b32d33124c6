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

/* Symbols: uint8, uint16 or uint32, shape [T] or [N,T]. `routes` is 1 for shape [T]. */
struct npy_symbols {
	int dims;
	size_t routes, steps;
	uint32_t *symbols; /* [routes][steps], from malloc; release with free */
};

/* From memory, with reasons that do not name the file; and from a file, with reasons that do. */
bool npy_read_symbols(const uint8_t *data, size_t size, struct npy_symbols *symbols, rosa_error *why);
bool npy_load_symbols(const char *path, struct npy_symbols *symbols, rosa_error *why);

/* Tokens: uint16, int32, uint32 or int64, shape [T] or [N,T], none of them negative or beyond 32 bits. `texts` is 1 for
 * shape [T]. */
struct npy_tokens {
	int dims;
	size_t texts, steps;
	uint32_t *tokens; /* [texts][steps], from malloc; release with free */
};

bool npy_read_tokens(const uint8_t *data, size_t size, struct npy_tokens *tokens, rosa_error *why);
bool npy_load_tokens(const char *path, struct npy_tokens *tokens, rosa_error *why);

/* Starts a file with the given shape; the elements follow with npy_write_* in any number of pieces, and then
 * file_finish. */
bool npy_create_int32(struct file_writer *writer, const char *path, int dims, const size_t *shape, rosa_error *why);
bool npy_write_int32(struct file_writer *writer, const int32_t *values, size_t count, rosa_error *why);
bool npy_create_float32(struct file_writer *writer, const char *path, int dims, const size_t *shape, rosa_error *why);
bool npy_write_float32(struct file_writer *writer, const float *values, size_t count, rosa_error *why);
