/*
 * Recall: does a model know what lies beyond its window?
 *
 * Losses are averaged apart over far tokens (train/far.h) and over all others. A memory shows on far tokens, and it
 * vanishes when the adapter reads at random places; a gain that random reads keep is style.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum recall_condition {
	RECALL_GLOBAL,  /* the model with global attention */
	RECALL_WINDOW,  /* window and sinks, no adapter */
	RECALL_ADAPTER, /* window, sinks and adapter */
	RECALL_OFF,     /* the same adapter, nothing injected */
	RECALL_RANDOM,  /* the same adapter, each destination replaced by a random earlier one */
	RECALL_POINTER, /* window, sinks and pointer, no adapter */
	RECALL_BOTH,    /* window, sinks, adapter and pointer */
	RECALL_CONDITIONS
};

extern const char *const recall_names[]; /* by recall_condition; ends with NULL */

/* Losses by distance to the last occurrence: bin b holds distances from 2^b to 2^(b+1) - 1. */
#define RECALL_BINS 32

/* Sums of losses. A zeroed one is empty; two are added up by recall_join. */
struct recall_sums {
	double far, rest, by_distance[RECALL_BINS];
	uint64_t far_count, rest_count, distance_count[RECALL_BINS];
};

/* Adds the losses of tokens first .. count-1 of a text, whose distances far_distances found. */
void recall_add(struct recall_sums *sums, const double *losses, const uint32_t *distance, size_t first, size_t count,
		size_t window);
void recall_join(struct recall_sums *sums, const struct recall_sums *more);

/* Mean losses in nats per token, and perplexity over all tokens. A mean of no tokens is NaN. */
struct recall_means {
	double ppl, far, rest;
};
struct recall_means recall_means(const struct recall_sums *sums);

/* The standard error, over books, of the mean loss on far tokens, or on all tokens: that of a ratio of sums, each book
 * being one draw. NaN for fewer than two books that have such tokens. */
double recall_error(const struct recall_sums *books, size_t count, bool far);
