/* Processes that train together; without MPI, or started alone, there is one. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct ranks {
	int rank, count;
	int local; /* processes on this machine */
};

#define RANKS_ALONE                                                                                                    \
	{                                                                                                              \
		0, 1, 1                                                                                                \
	}

/* Begins (MPI_Init where the build has MPI and mpirun started us). A build without MPI that mpirun started several
 * times is refused: each process would train all of it and write over the others. */
rosa_status ranks_begin(struct ranks *ranks, rosa_error *err);
void ranks_end(struct ranks *ranks);

/* The processors that are this process's share of the machine, and those it is bound to; both 1 at least. mpirun binds
 * processes to one processor each unless told otherwise, and threads that share one are slower than none. */
int ranks_processors(const struct ranks *ranks, int *bound);

/* Sums over all processes, in rank order, so that every one has the same bits. All of these must be called by all
 * processes alike. */
rosa_status ranks_sum_floats(const struct ranks *ranks, float *numbers, size_t count, rosa_error *err);
rosa_status ranks_sum_doubles(const struct ranks *ranks, double *numbers, size_t count, rosa_error *err);
/* The first process's bytes to all. */
rosa_status ranks_share(const struct ranks *ranks, void *data, size_t size, rosa_error *err);
/* True on all if it is true on any. */
bool ranks_any(const struct ranks *ranks, bool mine);
/* Whether all processes got here well: `mine`, or ROSA_ECANCELLED where it was another one that failed. Whatever may
 * fail on one process alone is followed by this, or the others would wait for it forever. */
rosa_status ranks_agree(const struct ranks *ranks, rosa_status mine, rosa_error *err);
