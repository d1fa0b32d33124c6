/* From a caller's options to the rules that routes follow. */
#include "retrieval/rules.h"
#include "base/pool.h"
#include "base/status.h"

#include <stdio.h>

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
	if (full->bits < ROSA_MIN_BITS || full->bits > ROSA_MAX_SYMBOL_BITS)
		return rosa_fail(err, ROSA_EINVAL, "bits is %d; a symbol has %d to %d bits", full->bits, ROSA_MIN_BITS,
				 ROSA_MAX_SYMBOL_BITS);
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
				      .delay = full->delay,
				      .engine = ROSA_ENGINE_AUTO};
	return ROSA_OK;
}

/* The first of `count` symbols that is not below `limit`; `count`: there is none. */
static size_t first_beyond(const void *symbols, unsigned bits, size_t count, uint32_t limit)
{
	uint32_t all = 0;

	if (bits > 16)
		for (size_t i = 0; i < count; i++)
			all |= ((const uint32_t *)symbols)[i];
	else
		for (size_t i = 0; i < count; i++)
			all |= ((const uint16_t *)symbols)[i];
	if (all < limit)
		return count;
	for (size_t i = 0; i < count; i++)
		if (symbol_get(symbols, bits, i) >= limit)
			return i;
	return count;
}

rosa_status rules_refuse_symbol(const char *symbol, size_t route, size_t step, unsigned bits, rosa_error *err)
{
	return rosa_fail(err, ROSA_ESYMBOL,
			 "%s at route %zu, step %zu does not fit into %u bits; symbols must be below %u", symbol, route,
			 step, bits, 1u << bits);
}

rosa_status rules_check_symbols(const char *what, const void *symbols, size_t routes, size_t steps, size_t stride,
				size_t first, unsigned bits, rosa_error *err)
{
	const uint32_t limit = UINT32_C(1) << bits;

	if (bits == 16)
		return ROSA_OK; /* their type sees to it */
	for (size_t r = 0; r < routes; r++) {
		const void *const row = symbols_from(symbols, bits, r * stride);
		const size_t t = first_beyond(row, bits, steps, limit);

		if (t < steps) {
			char symbol[64];

			snprintf(symbol, sizeof(symbol), "%s symbol %u", what, (unsigned)symbol_get(row, bits, t));
			return rules_refuse_symbol(symbol, r, first + t, bits, err);
		}
	}
	return ROSA_OK;
}

rosa_status rules_check_flips(const struct route_rules *rules, rosa_error *err)
{
	if (rules->bits <= ROSA_MAX_BITS)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "counterfactuals of symbols of %u bits; there are some up to %d bits: ask for none, or use "
			 "narrower symbols",
			 rules->bits, ROSA_MAX_BITS);
}
