/* Between the options of an adapter and those of a network. */
#include "train/network.h"

struct network_options network_options_of(const struct adapter_options *adapter)
{
	struct network_options options = NETWORK_OPTIONS_INIT;

	options.bits = (int)adapter->bits;
	options.fusion = adapter->fusion;
	options.policy = adapter->policy;
	options.fold = adapter->fold;
	options.max_match = (uint32_t)adapter->max_match;
	options.qk = adapter->qk;
	options.e_start = adapter->e_start;
	options.window = (size_t)adapter->window;
	options.sinks = (size_t)adapter->sinks;
	options.first_global_layers = (size_t)adapter->first_global_layers;
	options.learning = adapter->learning;
	return options;
}

struct adapter_options network_adapter_options(const struct network_options *options)
{
	return (struct adapter_options){.bits = (uint64_t)options->bits,
					.fusion = options->fusion,
					.policy = options->policy,
					.fold = options->fold,
					.max_match = options->max_match,
					.qk = options->qk,
					.e_start = options->e_start,
					.window = options->window,
					.sinks = options->sinks,
					.first_global_layers = options->first_global_layers,
					.learning = options->learning};
}
