/* The options of a ROSA adapter: one table for configuration files, command lines, adapter files and help texts. */
#ifndef ROSATUNE_ADAPTER_OPTIONS_H
#define ROSATUNE_ADAPTER_OPTIONS_H

#include "model/keys.h"

/* How the projections of q and k start: q as a copy of k, each at random, or one matrix for both. */
enum qk_start { QK_ALIGNED, QK_SEPARATE, QK_SHARED };

/* What an adapter is, beside which attention it works, and how it learns. */
struct adapter_options {
	uint64_t bits;
	rosa_fusion fusion;
	enum qk_start qk;
	float e_start;
	uint64_t window, sinks;
	uint64_t first_global_layers; /* layers at the front that are global and have no adapter */
	rosa_policy policy;
	bool fold;
	uint64_t max_match; /* 0: no cut */
	rosa_learning learning;
};

/* Rows over struct adapter_options. The first table is fixed once an adapter exists; the second may change while it is
 * trained. */
extern const struct key_table adapter_option_table, learning_option_table;

/* Both tables, as the object "options" of adapter_config.json. "layers" in it is no row: it lists the layers that have
 * an adapter, which the tensors of the folder must confirm. */
extern const struct keys adapter_option_keys;

struct adapter_options adapter_options_default(void);

/* What of them retrieval is told; the rest of rosa_options has its defaults. */
rosa_options adapter_options_retrieval(const struct adapter_options *options);

#endif
