/* Activations between float32 and the caller's type, on all workers. */
#include "backend/convert.h"
#include "backend/cpu_parts.h"

struct convert_call {
	rosa_dtype dtype;
	const void *from;
	void *to;
};

static void widen_some(struct cpu_backend *cpu, const void *arguments, size_t first, size_t count)
{
	const struct convert_call *call = arguments;

	(void)cpu;
	activations_load((float *)call->to + first, call->dtype, call->from, first, count);
}

static void narrow_some(struct cpu_backend *cpu, const void *arguments, size_t first, size_t count)
{
	const struct convert_call *call = arguments;

	(void)cpu;
	activations_store(call->to, call->dtype, (const float *)call->from + first, first, count);
}

void cpu_widen(struct cpu_backend *cpu, rosa_dtype dtype, size_t count, const void *from, float *to)
{
	const struct convert_call call = {dtype, from, to};

	cpu_each_rows(cpu, count, 1, widen_some, &call);
}

void cpu_narrow(struct cpu_backend *cpu, rosa_dtype dtype, size_t count, const float *from, void *to)
{
	const struct convert_call call = {dtype, from, to};

	cpu_each_rows(cpu, count, 1, narrow_some, &call);
}
