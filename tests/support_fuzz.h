/* What every fuzz target has: the function that libFuzzer calls, and a check that ends the program. */
#pragma once

#include "support_alloc.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void check(bool condition)
{
	if (!condition)
		abort();
}
