/* Decompression of gzip, xz and zstd, which are recognised by their first bytes. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_XZ, COMPRESSION_ZSTD };

/* From the first bytes of a file, of which COMPRESSION_MAGIC are enough. */
#define COMPRESSION_MAGIC 6
enum compression compression_of(const uint8_t *first, size_t size);

struct decompressor;

/* Fails if this build cannot; the message says what to install. */
rosa_status decompressor_new(enum compression compression, struct decompressor **made, rosa_error *err);
void decompressor_free(struct decompressor *decompressor); /* safe on NULL */

/* Reads from `from` and writes to `to`; both are moved past what was used. With `last` nothing follows `from`, and
 * input that ends in the middle is refused. If `last` is set, `from` is empty and nothing was written, the output is
 * complete.
 */
struct byte_span {
	uint8_t *at;
	size_t size;
};
rosa_status decompress(struct decompressor *decompressor, struct byte_span *from, bool last, struct byte_span *to,
		       rosa_error *err);
