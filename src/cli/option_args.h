/* Command-line options for the rows of an adapter's option tables: max_match becomes --max-match; a row that is true or
 * false becomes what changes it, fold --no-fold and gain --gain. */
#pragma once

#include "cli/args.h"
#include "model/adapter_options.h"

#define OPTION_ARGS_MOST 32

/* Room for what the options point to. */
struct option_args {
	struct {
		char name[40], help[160];
		const struct key *row;
		void *value;
		bool given;       /* of a row that is true or false */
		const char *text; /* of a row that is set from text; NULL: not given */
	} all[OPTION_ARGS_MOST];
	size_t count;
};

/* Appends an option to `to` for every row of a table, which sets the row's value in `values`. Their defaults are what
 * `values` holds. Returns how many there are. `room` must live as long as the options. */
size_t option_args_add(struct option_args *room, const struct key_table *table, struct adapter_options *values,
		       struct arg *to);
/* After args_parse: sets what the parser of arguments does not set itself. */
rosa_status option_args_apply(const struct option_args *room, rosa_error *err);
