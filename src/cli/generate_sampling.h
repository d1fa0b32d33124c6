/* How tokens are drawn: options, the model's own advice, and defaults. */
#pragma once

#include "cli/args.h"
#include "cli/models.h"
#include "model/sampler.h"

#define NOT_SET (-1.0f) /* of a decimal that was not given: no option can be set to it */

struct sampling_args {
	float temperature, top_p, min_p, repetition;
	uint64_t top_k, repeat_last, seed;
};

#define SAMPLING_ARGS_INIT                                                                                             \
	{                                                                                                              \
		NOT_SET, NOT_SET, NOT_SET, NOT_SET, NOT_GIVEN, 64, 0                                                   \
	}

#define SAMPLING_LARGEST 1e6

/* Rows of an option table for them; the help names the defaults of text and chat. */
#define SAMPLING_ARGS(a)                                                                                               \
	OPTION_DECIMAL("temperature", &(a)->temperature, "T", 0, SAMPLING_LARGEST,                                     \
		       "sampling temperature; 0: always the likeliest token (default 0; in a chat 0.6)"),              \
	    OPTION_NUMBER("top-k", &(a)->top_k, "K", 0, UINT32_MAX,                                                    \
			  "sample from the K likeliest tokens; 0: from all (default 0; in a chat 40)"),                \
	    OPTION_DECIMAL("top-p", &(a)->top_p, "P", 0, 1,                                                            \
			   "sample from the fewest tokens of total probability P (default 1: all; in a chat 0.9)"),    \
	    OPTION_DECIMAL("min-p", &(a)->min_p, "P", 0, 1,                                                            \
			   "sample from tokens at least P times as likely as the likeliest (default 0: all)"),         \
	    OPTION_DECIMAL("repetition-penalty", &(a)->repetition, "R", 0.01, 100,                                     \
			   "penalise tokens that occurred recently (default 1: off; in a chat 1.05)"),                 \
	    OPTION_SIZE("repeat-last", &(a)->repeat_last, "N", 0, ROSA_MAX_STEPS,                                      \
			"the repetition penalty covers the last N tokens (default 64; 0: all)"),                       \
	    OPTION_NUMBER("seed", &(a)->seed, "S", 0, UINT64_MAX,                                                      \
			  "seed of the sampling: the same seed gives the same text (default 0)")

/* What counts: an option that was given, else in a chat the model's generation config, else the default. */
bool sampling_choose(const struct sampling_args *args, bool chat, const struct checkpoint *checkpoint,
		     struct sampler_options *options, rosa_error *why);
