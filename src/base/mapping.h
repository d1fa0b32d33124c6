/* Files mapped into memory, read only. */
#pragma once

#include "rosatune.h"

struct mapping {
	const uint8_t *data;
	size_t size;
};

/* A file that is empty (ROSA_EFORMAT), cannot be read or is not a regular file (ROSA_EIO) is refused with a message
 * that names it. Never blocks. */
rosa_status mapping_open(struct mapping *mapping, const char *path, rosa_error *err);
void mapping_close(struct mapping *mapping); /* safe on a zeroed one */
