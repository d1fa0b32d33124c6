/* The options of rosatune mqar. */
#pragma once

#include "cli/args.h"
#include "train/mqar_train.h"
#include "cli/report.h"

struct mqar_options {
	struct mqar_setup setup;
	int mode; /* a mqar_mode, or MQAR_MODES for all of them */
	uint64_t threads;
	const char *log, *plot; /* NULL: none */
	bool json;
	struct arg_texts frozen; /* what setup.frozen points to */
};

/* Reads the words after the command's name. A mistake in them is explained on stderr. */
enum args_result mqar_parse(struct mqar_options *options, int count, char **words);
