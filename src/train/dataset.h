/* What training reads: shards, mixed and shuffled in an order that depends on the seed alone. */
#pragma once

#include "train/tokens_file.h"

struct dataset_source {
	const char *path; /* a shard, or a folder of shards (all *.tokens in it, by name) */
	double weight;    /* its share of the samples, relative to the others'; 0 in all: by their size */
};

typedef struct dataset dataset;

/* Samples of `length` + 1 tokens: `length` inputs, and the same shifted by one as targets. Shards of text are cut into
 * consecutive samples across documents; the last sample of a source is filled up (with weight 0). Of conversations each
 * document is a sample, cut or filled up.
 *
 * Sources without weights are shuffled together, and an epoch has each of their samples once. With weights, each source
 * has its own epochs, and among the first n samples, for any n, the share of each is that of its weight to within one
 * sample (for up to 4 sources; half a sample more for every doubling of their number).
 *
 * Errors are shards of different tokenizers, weights for some sources only, and conversations so long that no sample
 * would have an answer. */
rosa_status dataset_open(const struct dataset_source *sources, size_t count, size_t length, uint64_t seed,
			 dataset **made, rosa_error *err);
void dataset_free(dataset *dataset); /* safe on NULL */

/* Facts about all shards together. */
struct dataset_facts {
	size_t vocabulary;
	uint64_t tokenizer;  /* fingerprint: see tokens_fingerprint */
	uint64_t samples;    /* of one epoch */
	uint64_t tokens;     /* in all shards */
	uint64_t cut;        /* conversations that are longer than a sample */
	uint64_t no_answer;  /* of these, those truncated before their first answer token */
	uint64_t checksum;   /* of all shards in their order, from the checksums in their headers */
	uint64_t changed;    /* when one of them was last written, in nanoseconds */
	const char *no_mask; /* the path of a shard that has no answer mask, so that every token counts; NULL: none */
};

const struct dataset_facts *dataset_facts(const dataset *dataset);

/* Reads all shards written after that time and compares them with their checksums. */
rosa_status dataset_verify(const dataset *dataset, uint64_t since, rosa_error *err);

/* Sample number n, from 0 and without end: epochs follow each other, each in its own order. It is a function of n, the
 * files and the seed, so the only state is the number of samples read, and any process can read any sample. All three
 * arrays are [length]. May be called from several threads at once. */
void dataset_sample(const dataset *dataset, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight);
