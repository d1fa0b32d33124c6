/*
 * Run-time choice of the instruction set.
 *
 * The compiler's own runtime reads CPUID once, before main, and also asks whether the operating system saves the wide
 * registers, which is the part that hand-written detection gets wrong. Asking it costs a load and a test, so there is
 * nothing worth caching here and no state of ours that threads could race for.
 */
#include "base/cpu.h"

const char *rosa_isa_name(rosa_isa isa)
{
	static const char *const names[ROSA_ISA_COUNT] = {"plain", "avx2", "avx512"};

	return (unsigned)isa < ROSA_ISA_COUNT ? names[isa] : "unknown";
}

int rosa_isa_available(rosa_isa isa)
{
#if ROSA_X86_VARIANTS
	__builtin_cpu_init(); /* idempotent; needed only if a constructor of the program calls us before libgcc's ran */
	/* Every processor with AVX2 has LZCNT too, which cannot be asked for by name everywhere. */
	if (isa == ROSA_ISA_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
		       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
	if (isa == ROSA_ISA_AVX512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       rosa_isa_available(ROSA_ISA_AVX2);
#endif
	return isa == ROSA_ISA_PLAIN;
}

rosa_isa rosa_isa_best(void)
{
	for (int isa = ROSA_ISA_COUNT - 1; isa > ROSA_ISA_PLAIN; isa--)
		if (rosa_isa_available((rosa_isa)isa))
			return (rosa_isa)isa;
	return ROSA_ISA_PLAIN;
}
