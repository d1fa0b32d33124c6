/* The packing of rosatune.h with the instruction set named by the caller, for the tests to compare the variants. */
#pragma once

#include "base/cpu.h"
#include "rosatune.h"

/* rosa_pack, by one variant; ROSA_EINVAL if it is not available here. */
rosa_status rosa_pack_with(rosa_isa isa, rosa_dtype dtype, const void *rows, size_t row_stride, size_t steps,
			   size_t channels, int bits, uint16_t *symbols, size_t route_stride, rosa_error *err);
