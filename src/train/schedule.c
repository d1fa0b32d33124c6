/*
 * Warm-up and cosine.
 *
 * The rate is a function of the step's number and nothing else, so a run that is resumed needs no state for it. The
 * first step has a rate above 0 (one with 0 would be spent on nothing), the last one of the warm-up has the maximum,
 * and the last one of all has the minimum exactly. A stage of one step has the maximum.
 */
#include "train/schedule.h"

#include <math.h>

double schedule_rate(const struct schedule *schedule, uint64_t step)
{
	const double pi = 3.14159265358979323846;

	if (step < schedule->warmup)
		return schedule->max * (double)(step + 1) / (double)schedule->warmup;
	if (step + 1 >= schedule->steps)
		return step > 0 ? schedule->min : schedule->max;
	/* the fall begins after the last step of the warm-up, or with the first one where there is none */
	const uint64_t first = schedule->warmup ? schedule->warmup - 1 : 0;
	const double share = (double)(step - first) / (double)(schedule->steps - 1 - first);

	return schedule->min + 0.5 * (schedule->max - schedule->min) * (1 + cos(pi * share));
}
