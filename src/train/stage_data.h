/* What a stage learns from and is measured on, opened and checked. */
#pragma once

#include "train/dataset.h"
#include "train/tune_config.h"

/* What data must fit: the model's vocabulary, and its tokenizer where it has one. */
struct data_rules {
	const char *model; /* its path */
	size_t vocabulary;
	uint64_t tokenizer; /* fingerprint */
	bool has_tokenizer;
};

struct data_rules data_rules_of(const char *model, size_t vocabulary);

struct stage_data {
	dataset *data, *valid; /* valid NULL: nothing is measured */
};

/* Refuses shards of another tokenizer and, for a stage that learns from answers only, shards in which they are not
 * marked. A file that is missing is reported with its key and the command that makes it. On failure nothing is open. */
rosa_status stage_data_open(const struct tune_config *config, size_t stage, const struct data_rules *rules,
			    struct stage_data *data, rosa_error *err);
void stage_data_close(struct stage_data *data); /* safe on a zeroed one */
