/* Small weight files, made in memory: what the tests of parsers and models read. */
#pragma once

#include "backend/format.h"
#include "model/gguf.h"

/* ---------------------------------------------------------------------------------------------------- bytes, raw -- */

/* Bytes in the making. A zeroed one is empty. Their memory is that of the test (support_alloc.h). */
struct bytes {
	uint8_t *data;
	size_t size, room;
};

void bytes_put(struct bytes *bytes, const void *data, size_t size);
void bytes_number(struct bytes *bytes, uint64_t number, size_t width); /* little-endian */
/* The letters of a text alone. */
void bytes_words(struct bytes *bytes, const char *words);
void bytes_text(struct bytes *bytes, const char *text); /* GGUF's: length (8 bytes), characters */
void bytes_fill(struct bytes *bytes, size_t multiple);  /* zeros, up to a multiple */
/* A copy of the first bytes, allocated exactly, so that a sanitizer sees a read beyond its end. */
uint8_t *bytes_copy(const struct bytes *bytes, size_t size);

/* Writes a file or ends the test. */
void bytes_save(const struct bytes *bytes, const char *path);

/* -------------------------------------------------------------------------------------------------- weight files -- */

enum weights_kind { WEIGHTS_GGUF, WEIGHTS_SAFETENSORS };

/* A file in the making. */
struct weights_writer;

struct weights_writer *weights_new(enum weights_kind kind);

/* A tensor: shape slowest first, `data` the bytes as the format has them (copied). safetensors has the plain formats
 * only. Names are not checked: a test may add one twice. */
void weights_add(struct weights_writer *writer, const char *name, enum format format, int dims, const size_t *shape,
		 const void *data);
/* The same from float32, for the plain formats: rounded to nearest. */
void weights_add_floats(struct weights_writer *writer, const char *name, enum format format, int dims,
			const size_t *shape, const float *numbers);
/* Random numbers, about normal around `mean` with deviation `scale` (plain formats), or blocks whose scales give
 * numbers of about that size around 0 (the others; mean must be 0). Any *state will do and is moved on. */
void weights_add_random(struct weights_writer *writer, const char *name, enum format format, int dims,
			const size_t *shape, uint64_t *state, double mean, double scale);

/* Metadata. Integers and numbers go into the given GGUF type. safetensors has strings only (weights_set_string). */
void weights_set_string(struct weights_writer *writer, const char *key, const char *value);
void weights_set_integer(struct weights_writer *writer, const char *key, enum gguf_type type, int64_t value);
void weights_set_number(struct weights_writer *writer, const char *key, enum gguf_type type, double value);
void weights_set_strings(struct weights_writer *writer, const char *key, size_t count, const char *const *values);
void weights_set_integers(struct weights_writer *writer, const char *key, enum gguf_type element, size_t count,
			  const int64_t *values);
void weights_set_numbers(struct weights_writer *writer, const char *key, enum gguf_type element, size_t count,
			 const double *values);

/* GGUF's version (3 unless set) and alignment (32; anything else is written as general.alignment). */
void weights_set_version(struct weights_writer *writer, unsigned version);
void weights_set_alignment(struct weights_writer *writer, uint32_t alignment);

/* The whole file, and the end of the writer. */
struct bytes weights_finish(struct weights_writer *writer);
/* The same into a file. */
void weights_save(struct weights_writer *writer, const char *path);

/* ------------------------------------------------------------------------------------------------------ refusals -- */

/* A parser of weight files; *read is what it fills in. */
typedef rosa_status weights_parser(const uint8_t *data, size_t size, const char *name, void *read, rosa_error *err);

/* That a parser refuses a file as ROSA_EFORMAT with a message that begins with the file's name and
 * has these words; that it leaves `read_size` zero bytes behind, and needs nowhere to put the message. */
void weights_check_refused(struct bytes file, const char *what, const char *words, weights_parser *parser,
			   size_t read_size);

/* Sees to it that what a parser took lies inside the file, and frees it. */
typedef void weights_accepted(void *read, const uint8_t *data, size_t size);

/* That every beginning of a good file is refused, and every altered byte is either refused with a message or harmless.
 */
void weights_check_damage(struct bytes file, weights_parser *parser, size_t read_size, weights_accepted *accepted);
