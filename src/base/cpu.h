/* Which of the library's instruction-set variants this processor can run. */
#pragma once

/* Variants for x86-64 are compiled with function attributes, so the library as a whole still runs on any x86-64. */
#if defined(__x86_64__) && defined(__GNUC__)
#define ROSA_X86_VARIANTS 1
#else
#define ROSA_X86_VARIANTS 0
#endif

/* In rising order: the greatest that is available is the fastest. */
typedef enum rosa_isa {
	ROSA_ISA_PLAIN = 0,  /* C11 alone */
	ROSA_ISA_AVX2 = 1,   /* AVX2 */
	ROSA_ISA_AVX512 = 2, /* AVX-512 F and BW, and BMI2 */
	ROSA_ISA_COUNT = 3
} rosa_isa;

/* "plain", "avx2" or "avx512". */
const char *rosa_isa_name(rosa_isa isa);

/* Nonzero if code of this variant was compiled in and runs here. */
int rosa_isa_available(rosa_isa isa);

rosa_isa rosa_isa_best(void);
