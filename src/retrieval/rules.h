/* From a caller's options to the rules that routes follow. */
#pragma once

#include "retrieval/route.h"

/* Take the caller's options, those it knows, over the defaults; check them. */
rosa_status rules_from_options(const rosa_options *options, rosa_options *full, struct route_rules *rules,
			       rosa_error *err);

/* Are all symbols below 2^bits? `what` names the stream in the message, `first` is the step of the first column. */
rosa_status rules_check_symbols(const char *what, const void *symbols, size_t routes, size_t steps, size_t stride,
				size_t first, unsigned bits, rosa_error *err);

/* ROSA_ESYMBOL: `symbol`, such as "query symbol 17", does not fit into `bits` bits. */
rosa_status rules_refuse_symbol(const char *symbol, size_t route, size_t step, unsigned bits, rosa_error *err);

/* Counterfactuals are looked up for symbols of at most ROSA_MAX_BITS bits. */
rosa_status rules_check_flips(const struct route_rules *rules, rosa_error *err);
