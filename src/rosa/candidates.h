/*
 * The candidates of a step, for the rules `linear` and `soft`, which weigh all of them.
 *
 * A candidate is a key run that has a run before it and began before the step. The query is compared with the symbol of
 * the preceding run and, with `suffix`, of the run before that one. So the runs of the key stream in order are all that
 * is needed: candidate i is run i+1, it starts at start[i+1], and the runs before it start at start[i] and start[i-1].
 * The number of candidates of a step is the number of the run that contains the step before it.
 */
#pragma once

#include "rosa/scratch.h"

/* The runs of one stream of symbols. */
struct runs {
	size_t count;
	int32_t *start; /* [count], first steps; allocated for `steps` runs */
	int32_t *of;    /* [steps], the run that contains the step */
};

/* Memory for the runs of `streams` streams, or NULL. */
struct runs *scratch_runs(struct scratch *scratch, size_t streams, size_t steps);

void runs_find(struct runs *runs, const uint16_t *symbols, size_t steps, bool fold);

/* The first step of the run `back` runs before the one that contains step t, or -1. */
static inline int32_t runs_before(const struct runs *runs, size_t t, int32_t back)
{
	return runs->of[t] >= back ? runs->start[runs->of[t] - back] : -1;
}

/* Whether a run starts at step t that has a run before it: a candidate for every later step. */
static inline bool candidate_at(const struct runs *keys, size_t t)
{
	return keys->of[t] > 0 && keys->start[keys->of[t]] == (int32_t)t;
}

/* The number of candidates of step t. */
static inline int32_t candidate_count(const struct runs *keys, size_t t)
{
	return t ? keys->of[t - 1] : 0;
}
