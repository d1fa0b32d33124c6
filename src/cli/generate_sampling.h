/* How tokens are drawn: options, the model's own advice, and defaults. */
#ifndef ROSATUNE_GENERATE_SAMPLING_H
#define ROSATUNE_GENERATE_SAMPLING_H

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
	{.name = "temperature",                                                                                        \
	 .kind = ARG_DECIMAL,                                                                                          \
	 .target = &(a)->temperature,                                                                                  \
	 .value = "T",                                                                                                 \
	 .most = SAMPLING_LARGEST,                                                                                     \
	 .help = "how freely tokens are drawn; 0: always the likeliest (default 0; in a chat 0.6)"},                   \
	    {.name = "top-k",                                                                                          \
	     .kind = ARG_NUMBER,                                                                                       \
	     .target = &(a)->top_k,                                                                                    \
	     .value = "K",                                                                                             \
	     .max = UINT32_MAX,                                                                                        \
	     .help = "draw from the K likeliest tokens; 0: from all (default 0; in a chat 40)"},                       \
	    {.name = "top-p",                                                                                          \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(a)->top_p,                                                                                    \
	     .value = "P",                                                                                             \
	     .most = 1,                                                                                                \
	     .help = "then from the fewest whose probability reaches P (default 1: all; in a chat 0.9)"},              \
	    {.name = "min-p",                                                                                          \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(a)->min_p,                                                                                    \
	     .value = "P",                                                                                             \
	     .most = 1,                                                                                                \
	     .help = "then from those at least P times as likely as the likeliest (default 0)"},                       \
	    {.name = "repetition-penalty",                                                                             \
	     .kind = ARG_DECIMAL,                                                                                      \
	     .target = &(a)->repetition,                                                                               \
	     .value = "R",                                                                                             \
	     .least = 0.01,                                                                                            \
	     .most = 100,                                                                                              \
	     .help = "make tokens seen less likely (default 1: no; in a chat 1.05)"},                                  \
	    {.name = "repeat-last",                                                                                    \
	     .kind = ARG_SIZE,                                                                                         \
	     .target = &(a)->repeat_last,                                                                              \
	     .value = "N",                                                                                             \
	     .max = ROSA_MAX_STEPS,                                                                                    \
	     .help = "how many of the last tokens count as seen (default 64; 0: all)"},                                \
	{                                                                                                              \
		.name = "seed", .kind = ARG_NUMBER, .target = &(a)->seed, .value = "S", .max = UINT64_MAX,             \
		.help = "the same seed gives the same text (default 0)"                                                \
	}

/* What counts: an option that was given, else in a chat the model's generation config, else the default. */
bool sampling_choose(const struct sampling_args *args, bool chat, const struct checkpoint *checkpoint,
		     struct sampler_options *options, rosa_error *why);

#endif
