/* Saved states as bytes, for tests that alter them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
	IMAGE_VERSION = 8, /* where the version is */
	IMAGE_DELAY = 20,
	IMAGE_HEADER = 40, /* where the first route begins */
	IMAGE_SEAL = 8     /* bytes of checksum at the end */
};

/* Put the right checksum at the end of an image of at least IMAGE_SEAL bytes. */
void image_seal(uint8_t *image, size_t size);
