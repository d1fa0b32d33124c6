/*
 * The read-out alone: from destinations and value symbols to y.
 *
 * It runs the backend's `read`, as the layer does. That writes float32; for bfloat16 it is done some rows at a time,
 * and these are rounded. y is e0, e1 or 0, so rounding y and rounding e0 and e1 beforehand are the same.
 */
#include "backend/cpu_parts.h"
#include "base/status.h"
#include "retrieval/rules.h"
#include "rosa/arguments.h"
#include "rosa/lookup.h"
#include "rosa/scratch.h"

#define ROWS ((size_t)256) /* rounded at a time */

rosa_status rosa_read(const rosa_options *options, rosa_dtype dtype, size_t batch, size_t steps, size_t channels,
		      const uint16_t *value, size_t value_steps, const void *read, const float *e0, const float *e1,
		      void *y, rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	struct cpu_backend cpu;
	struct scratch scratch = {0};
	rosa_workers *own = NULL;
	size_t routes;
	uint32_t *found;
	float *wide = NULL;
	bool good;
	rosa_status status;

	if (!options)
		return rosa_fail(err, ROSA_EINVAL, "options is NULL");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = activations_check(dtype, batch, steps, channels, rules.bits, err);
	if (status)
		return status;
	if (!value || !read || !e0 || !e1 || !y)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL",
				 !value  ? "value"
				 : !read ? "read"
				 : !e0   ? "e0"
				 : !e1   ? "e1"
					 : "y");
	if (!value_steps || value_steps > ROSA_MAX_STEPS)
		return rosa_fail(err, ROSA_EINVAL, "%zu value steps; there must be 1 to %zu", value_steps,
				 ROSA_MAX_STEPS);
	routes = channels / rules.bits;
	scratch.allocator = &full.allocator;
	found = scratch_take(&scratch, batch * routes * steps, sizeof(*found));
	if (dtype != ROSA_FLOAT32)
		wide = scratch_floats(&scratch, (steps < ROWS ? steps : ROWS) * channels);
	if (scratch.short_of_memory)
		status = rosa_fail(err, ROSA_ENOMEM, "no memory to read %zu steps of %zu channels", steps, channels);
	else if (!full.workers)
		status = rosa_workers_new(full.threads, &full.allocator, &own, err);
	if (status) {
		scratch_free(&scratch);
		return status;
	}
	cpu_backend_borrow(own ? own : full.workers, &cpu);
	good = lookup_gather(cpu.pool, batch * routes, steps, read, value, value_steps, found);
	for (size_t b = 0; b < batch; b++) {
		for (size_t t = 0, some; t < steps; t += some) {
			const size_t at = (b * steps + t) * channels;

			some = wide && steps - t > ROWS ? ROWS : steps - t;
			cpu.backend.ops->read_found(&cpu.backend, some, channels, (int)rules.bits,
						    found + b * routes * steps + t, steps, e0, e1,
						    wide ? wide : (float *)y + at);
			if (wide)
				cpu_narrow(&cpu, dtype, some * channels, wide, (uint16_t *)y + at);
		}
	}
	rosa_workers_free(own);
	scratch_free(&scratch);
	return good ? ROSA_OK
		    : rosa_fail(err, ROSA_EINVAL, "read has a destination that is not below the %zu value steps",
				value_steps);
}
