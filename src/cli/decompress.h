/* Compressed bytes, known by their beginning and given as they were. */
#ifndef ROSATUNE_DECOMPRESS_H
#define ROSATUNE_DECOMPRESS_H

#include "cli/report.h"

#include <stddef.h>
#include <stdint.h>

enum compression { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_XZ, COMPRESSION_ZSTD };

/* By the first bytes of a file, of which COMPRESSION_MAGIC are enough. */
#define COMPRESSION_MAGIC 6
enum compression compression_of(const uint8_t *first, size_t size);

struct decompressor;

/* False if this build cannot; the reason says what to install. */
bool decompressor_new(enum compression compression, struct decompressor **made, rosa_error *why);
void decompressor_free(struct decompressor *decompressor); /* safe on NULL */

/* Takes from `from` and writes to `to`; both say how much of them was used. With `last` there is nothing after `from`,
 * and an end in the middle is refused, as is what cannot be read. Made 0 bytes of no bytes: all was given. */
struct byte_span {
	uint8_t *at;
	size_t size;
};
bool decompress(struct decompressor *decompressor, struct byte_span *from, bool last, struct byte_span *to,
		rosa_error *why);

#endif
