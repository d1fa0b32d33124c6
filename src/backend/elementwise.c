/* Variants of the simple loops, one for each instruction set. */
#include "backend/elementwise.h"
#include "backend/lanes.h"

#include "rosatune.h"

#include <math.h>
#include <string.h>

#define GATES      ((size_t)64)
#define READ_STEPS ((size_t)16) /* what one cache line of `found` holds */

static const uint32_t bit_masks[ROSA_MAX_BITS] = {
    1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
    1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15,
};

#define VECTORS VECTORS_PLAIN
#include "backend/vectors.h"
#include "backend/elementwise_template.h"

#if ROSA_X86_VARIANTS
#define VECTORS VECTORS_AVX2
#include "backend/vectors.h"
#include "backend/elementwise_template.h"

#define VECTORS VECTORS_AVX512
#include "backend/vectors.h"
#include "backend/elementwise_template.h"
#endif

#define VARIANT(name)                                                                                                  \
	{                                                                                                              \
		rms_norm_##name, swiglu_##name, add_##name, mix_##name, turn_halves_##name, turn_neighbours_##name,    \
		    read_##name                                                                                        \
	}

static const struct elementwise variants[ROSA_ISA_COUNT] = {
    [ROSA_ISA_PLAIN] = VARIANT(plain),
#if ROSA_X86_VARIANTS
    [ROSA_ISA_AVX2] = VARIANT(avx2),
    [ROSA_ISA_AVX512] = VARIANT(avx512),
#endif
};

const struct elementwise *elementwise_for(rosa_isa isa)
{
	return &variants[isa];
}
