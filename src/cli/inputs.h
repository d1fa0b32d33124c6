/* What the commands that retrieve have in common: their options, and the pair of symbol files. */
#pragma once

#include "cli/args.h"
#include "cli/report.h"
#include "model/adapter_options.h"
#include "rosatune.h"

struct retrieval_args {
	uint64_t bits, max_match, delay, threads;
	int policy; /* a rosa_policy */
	bool no_fold;
};

/* Rows of an option table for them; `bits_help` and `threads_help` name the command's defaults. */
#define RETRIEVAL_ARGS(a, bits_required, bits_help, threads_help)                                                      \
	OPTION_NUMBER("bits", &(a)->bits, "M", ROSA_MIN_BITS, ROSA_MAX_SYMBOL_BITS, bits_help,                         \
		      .required = (bits_required)),                                                                    \
	    OPTION_CHOICE("policy", &(a)->policy, "P", policy_names,                                                   \
			  "readable (default), literal or inclusive: which runs may be found"),                        \
	    OPTION_FLAG("no-fold", &(a)->no_fold, "every step is a run of its own"),                                   \
	    OPTION_SIZE("max-match", &(a)->max_match, "L", 0, UINT32_MAX,                                              \
			"compare matches up to this length (default 0: no cut)"),                                      \
	    OPTION_SIZE("delay", &(a)->delay, "D", 0, UINT32_MAX, "find nothing younger than D steps (default 0)"),    \
	    OPTION_NUMBER("threads", &(a)->threads, "N", 0, 1024, threads_help)

/* Where retrieval runs: the values of an option --device. */
enum { DEVICE_CPU, DEVICE_CUDA };
extern const char *const device_names[];

rosa_options retrieval_options(const struct retrieval_args *args);

/* Query and key of the same shape, [routes][steps], every symbol below 2^bits: uint16_t, or uint32_t above 16 bits. */
struct symbol_pair {
	int dims; /* 1: the files had shape [T], and so have the results */
	size_t routes, steps;
	unsigned bits;
	void *query, *key;
};

bool symbol_pair_load(struct symbol_pair *pair, const char *query, const char *key, int bits, rosa_error *why);
bool symbol_pair_new(struct symbol_pair *pair, size_t routes, size_t steps, int bits, rosa_error *why);
void symbol_pair_free(struct symbol_pair *pair); /* safe on a zeroed pair */
/* Pushes steps `at` .. at + steps - 1 of the pair through a stream; tau and length (NULL: not wanted) are
 * [routes][pair's steps], `table` as in rosa_stream_push. */
rosa_status symbol_pair_push(const struct symbol_pair *pair, rosa_stream *stream, size_t at, size_t steps, int32_t *tau,
			     int32_t *length, int32_t *table, rosa_error *why);

/* malloc of `count` elements of `size` bytes, checked for overflow; a failure names `what`. */
void *get_memory(size_t count, size_t size, const char *what, rosa_error *why);
