/* What a training run is to do, from a JSON file and the command line. */
#pragma once

#include "train/data_key.h"
#include "train/network.h"
#include "train/pointer_fit.h"

#include <stdbool.h>

/* What a stage trains: the adapter alone; everything; everything, on the answers of conversations; nothing, but a
 * pointer is fitted to what there is. */
enum tune_kind { TUNE_ADAPTER, TUNE_ALL, TUNE_SFT, TUNE_POINTER };

struct tune_stage {
	char *name, *note;
	int kind; /* enum tune_kind */
	struct key_data data, valid;
	uint64_t length;      /* tokens per sequence */
	uint64_t batch;       /* sequences per step, over all processes */
	uint64_t micro_batch; /* of them computed together */
	uint64_t tokens;      /* to train on, or 0: as many as */
	uint64_t steps;       /* these take, or 0 */
	double adapter_max, adapter_min, vector_factor, qk_factor, backbone_max, backbone_min;
	uint64_t warmup; /* steps */
	double weight_decay, beta1, beta2, eps, clip;
	uint64_t log_every, save_every, keep, valid_every, valid_samples;
	struct pointer_choice pointer; /* of TUNE_POINTER */
};

struct tune_config {
	char *note; /* for the reader: JSON has no comments */
	char *model, *out;
	uint64_t seed, threads;
	bool recompute;

	char *adapter; /* a folder to begin from; NULL: a new adapter, as follows */
	bool rosa;     /* there is an adapter */
	struct adapter_options options;
	const char *start_key; /* one of the options of a new adapter that was given, or NULL */

	struct tune_stage *stages;
	size_t stage_count;
};

/* Reads a file, then `settings`, each "key=value" (a later one wins over an earlier one), and checks that all of it
 * fits together. Stages are named stage.1.KEY, by number, stage.NAME.KEY, by name, or stage.*.KEY, all of them. Every
 * message names the key and what it may be. On failure *config is zeroed. */
rosa_status tune_config_load(const char *path, const char *const *settings, size_t count, struct tune_config *config,
			     rosa_error *err);
void tune_config_free(struct tune_config *config); /* safe on a zeroed one */

/* All of it as JSON that tune_config_load reads back as the same. */
void tune_config_write(const struct tune_config *config, struct json_text *text);

/* Whether a run that was begun with `was` can continue with `now` in stage number `stage`. What may change is passed to
 * `note` (NULL: it is not reported); what may not is refused. */
rosa_status tune_config_compare(const struct tune_config *was, const struct tune_config *now, size_t stage,
				void (*note)(void *context, const char *message), void *context, rosa_error *err);

bool tune_trains_backbone(const struct tune_stage *stage);

/* Steps of a stage: as given, or as many as its tokens fill, the last one perhaps only in part; 0 for a pointer. */
uint64_t tune_stage_steps(const struct tune_stage *stage);

/* A line of help for every key. */
void tune_config_help(struct json_text *text);

/* What a network is made with. */
struct network_options tune_config_network(const struct tune_config *config);

extern const char *const tune_kind_words[]; /* ends with NULL */
