/* From a caller's options to the rules that routes follow. */
#include "retrieval/rules.h"
#include "base/pool.h"
#include "base/status.h"

rosa_status rules_from_options(const rosa_options *options, rosa_options *full, struct route_rules *rules,
			       rosa_error *err)
{
	rosa_status status;

	*full = (rosa_options)ROSA_OPTIONS_INIT;
	if (options) {
		if (options->size < offsetof(rosa_options, bits) + sizeof(options->bits))
			return rosa_fail(err, ROSA_EINVAL,
					 "options.size is %zu; start from ROSA_OPTIONS_INIT, which sets it to %zu",
					 options->size, sizeof(rosa_options));
		memcpy(full, options, options->size < sizeof(*full) ? options->size : sizeof(*full));
	}
	if (full->bits < ROSA_MIN_BITS || full->bits > ROSA_MAX_BITS)
		return rosa_fail(err, ROSA_EINVAL, "bits is %d; a symbol has %d to %d bits", full->bits, ROSA_MIN_BITS,
				 ROSA_MAX_BITS);
	if ((int)full->policy < ROSA_READABLE || (int)full->policy > ROSA_INCLUSIVE)
		return rosa_fail(err, ROSA_EINVAL,
				 "policy is %d; use ROSA_READABLE (0), ROSA_LITERAL (1) or ROSA_INCLUSIVE (2)",
				 (int)full->policy);
	if (full->workers)
		full->threads = (int)pool_kept_threads(full->workers);
	status = pool_check_threads(full->threads, err);
	if (status)
		return status;
	*rules = (struct route_rules){.bits = (unsigned)full->bits,
				      .policy = full->policy,
				      .fold = full->fold != 0,
				      .max_match = full->max_match ? full->max_match : UINT32_MAX,
				      .engine = ROSA_ENGINE_AUTO};
	return ROSA_OK;
}

rosa_status rules_check_symbols(const char *what, const uint16_t *symbols, size_t routes, size_t steps, size_t stride,
				size_t first, int bits, rosa_error *err)
{
	const unsigned limit = 1u << bits;

	if (bits == ROSA_MAX_BITS)
		return ROSA_OK; /* their type sees to it */
	for (size_t r = 0; r < routes; r++) {
		const uint16_t *row = symbols + r * stride;
		unsigned all = 0;

		for (size_t t = 0; t < steps; t++)
			all |= row[t];
		if (all < limit)
			continue;
		for (size_t t = 0; t < steps; t++)
			if (row[t] >= limit)
				return rosa_fail(err, ROSA_ESYMBOL,
						 "%s symbol %u at route %zu, step %zu does not fit into %d bits; "
						 "symbols must be below %u",
						 what, (unsigned)row[t], r, first + t, bits, limit);
	}
	return ROSA_OK;
}
