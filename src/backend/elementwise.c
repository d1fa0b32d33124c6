/* Variants of the simple loops, one for each instruction set. */
#include "backend/elementwise.h"
#include "backend/lanes.h"
#include "backend/sigmoid.h"

#include "rosatune.h"

#include <math.h>
#include <string.h>

#define GATES      ((size_t)64)
#define READ_STEPS ((size_t)16) /* what one cache line of weights holds */
#define WORD       ((size_t)64) /* bits */

/* By masks, since old vector instructions cannot shift each lane by another number. */
static const uint32_t bit_masks[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31,
};

/* The bits of channels c .. c + 31 of a row of `words` words; zeros behind its end. */
static inline uint32_t bits_from(const uint64_t *row, size_t words, size_t c)
{
	const size_t word = c / WORD, shift = c % WORD;
	uint64_t bits = row[word] >> shift;

	if (shift > 32 && word + 1 < words)
		bits |= row[word + 1] << (WORD - shift);
	return (uint32_t)bits;
}

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
		    pack_##name, read_##name, gate_##name                                                              \
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
