/*
 * Which steps begin runs: one bit per step, and a way back from a run to its first step.
 *
 * A list of first steps is four bytes per run, more than a link of the index. A bitmap is an eighth of a byte per
 * step, and two small tables beside it find the n-th bit set:
 *
 *     sample[j]   the step at which run 32 j begins, for each 32nd run
 *     rank[i]     how many runs begin before step 512 i, for each 512th step
 *
 * A run lies between its sample and the next. Mostly it begins among the 57 steps and more that a word read from the
 * sample's byte on holds. Where runs are longer, the bits of the words behind it are counted. Where they are long,
 * samples may lie any number of steps apart; then a search by halves in rank[] leaves eight words to count. A stream
 * whose runs are short pays 0.13 bytes per run for the two tables, and one whose runs are long pays 0.008 bytes per
 * step.
 *
 * Where only "does a run begin here?" is ever asked, as of the query, both tables are left out.
 *
 * Going back to fewer steps changes counts alone. The bits behind stay to be read until steps are taken again, which
 * is how a route that is undone knows what to take again.
 */
#pragma once

#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>

#define STARTS_WORD   64  /* steps per word of the bitmap */
#define STARTS_BLOCK  512 /* steps an entry of rank */
#define STARTS_SAMPLE 32  /* runs an entry of sample */

struct starts {
	uint64_t *bits;
	uint32_t *sample, *rank; /* NULL: first steps will not be asked for */
	size_t bits_capacity, sample_capacity, rank_capacity;
	uint32_t steps, runs;
	bool fast; /* the processor counts bits and finds the n-th by itself */
};

/* Room for `steps` steps and `runs` runs in all, at least one of each. `select`: first steps of runs will be asked for;
 * to be answered the same way on every call. False if memory is short; nothing is lost. */
bool starts_reserve(struct starts *starts, const rosa_allocator *allocator, size_t steps, size_t runs, bool select);
/* Make `to`, which owns nothing, a copy. False if memory is short; `to` is then empty. */
bool starts_copy(struct starts *to, const struct starts *from, const rosa_allocator *allocator);
void starts_free(struct starts *starts, const rosa_allocator *allocator);
size_t starts_bytes(const struct starts *starts);

/* The first step of a run; there must be one of this number, and the tables. */
uint32_t starts_select(const struct starts *starts, uint32_t run);
/* The runs that begin at the first `steps` steps, which must be there; needs the tables. */
uint32_t starts_count(const struct starts *starts, uint32_t steps);
/* Go back to the first `steps` steps, at a cost that grows with the steps given up. */
void starts_truncate(struct starts *starts, uint32_t steps);

/* Does a run begin at this step? Steps given up by truncation may be asked for as well. */
static inline bool starts_begins(const struct starts *starts, uint32_t step)
{
	return starts->bits[step / STARTS_WORD] >> (step % STARTS_WORD) & 1;
}

/* One more step; room was made before. */
static inline void starts_push(struct starts *starts, bool begins)
{
	const uint32_t step = starts->steps++, runs = starts->runs;
	uint64_t *word = &starts->bits[step / STARTS_WORD];

	*word = (*word & ~(UINT64_C(1) << (step % STARTS_WORD))) | (uint64_t)begins << (step % STARTS_WORD);
	if (starts->rank && step % STARTS_BLOCK == 0)
		starts->rank[step / STARTS_BLOCK] = runs;
	if (!begins)
		return;
	if (starts->sample && runs % STARTS_SAMPLE == 0)
		starts->sample[runs / STARTS_SAMPLE] = step;
	starts->runs = runs + 1;
}
