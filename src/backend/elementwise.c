/*
 * Variants of the simple loops, one for each instruction set.
 *
 * The square sum of a norm is taken in double precision: the frameworks that models come from take it in float32, each
 * in an order of its own, and the exact sum is the one number that is near all of them.
 */
#include "backend/elementwise.h"

#include <math.h>
#include <string.h>

#define SUM_LANES 16
#define GATES     ((size_t)64)

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
