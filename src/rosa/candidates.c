/* The runs of a stream. */
#include "rosa/candidates.h"

struct runs *scratch_runs(struct scratch *scratch, size_t streams, size_t steps)
{
	struct runs *runs = scratch_take(scratch, streams, sizeof(*runs));
	int32_t *places = scratch_take(scratch, streams * steps, 2 * sizeof(*places));

	for (size_t i = 0; runs && places && i < streams; i++) {
		runs[i].start = places + 2 * i * steps;
		runs[i].of = runs[i].start + steps;
	}
	return runs;
}

void runs_find(struct runs *runs, const uint16_t *symbols, size_t steps, bool fold)
{
	size_t count = 0;

	for (size_t t = 0; t < steps; t++) {
		/* Written whether a run starts here or not, and counted if so: no branch to mispredict. */
		runs->start[count] = (int32_t)t;
		count += t == 0 || !fold || symbols[t] != symbols[t - 1];
		runs->of[t] = (int32_t)count - 1;
	}
	runs->count = count;
}
