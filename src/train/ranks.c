/*
 * Processes that train together.
 *
 * The result of MPI_Allreduce may depend on the number of processes, the size of the message and the library, and two
 * processes whose weights differ in one bit drift apart for good. So sums are made here, in the order of ranks: every
 * process gets one slice of the numbers of all processes, adds them up, and sends the sum to all. That moves as many
 * bytes as the best of MPI's own ways, and all processes end with the same bits.
 *
 * MPI is begun only where mpirun started the program, which is known from the environment: alone it would cost a
 * tenth of a second and start helper processes for nothing. Its errors end the process, which is MPI's default: a
 * process that lost its partners has nothing left to do, and the checkpoints are there.
 */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#endif

#include "train/ranks.h"

#include "base/pool.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* What the usual starters (Open MPI; MPICH, Intel and Slurm's PMI) tell the processes. */
static const char *const size_names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};

/* Processes that a starter began us among; 0: none did. */
static long started_among(void)
{
	for (size_t i = 0; i < sizeof(size_names) / sizeof(size_names[0]); i++) {
		const char *size = getenv(size_names[i]);

		if (size && strtol(size, NULL, 10) > 0)
			return strtol(size, NULL, 10);
	}
	return 0;
}

int ranks_processors(const struct ranks *ranks, int *bound)
{
	const int all = (int)pool_threads(0), share = all / ranks->local;

	*bound = all;
#ifdef __linux__
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
		*bound = CPU_COUNT(&set);
#endif
	return share > 1 ? share : 1;
}

rosa_status ranks_agree(const struct ranks *ranks, rosa_status mine, rosa_error *err)
{
	if (ranks_any(ranks, mine != ROSA_OK) && mine == ROSA_OK)
		return rosa_fail(err, ROSA_ECANCELLED, "another process failed");
	return mine;
}

#ifdef ROSATUNE_MPI

#include <mpi.h>

#define SLICE_BYTES ((size_t)1 << 22) /* of one process's numbers in one message */

rosa_status ranks_begin(struct ranks *ranks, rosa_error *err)
{
	MPI_Comm here;
	int level;

	*ranks = (struct ranks)RANKS_ALONE;
	if (!started_among())
		return ROSA_OK;
	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
		return rosa_fail(err, ROSA_EIO, "MPI could not be started");
	MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks->count);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
	MPI_Comm_size(here, &ranks->local);
	MPI_Comm_free(&here);
	return ROSA_OK;
}

static bool begun(void)
{
	int begun = 0, ended = 0;

	MPI_Initialized(&begun);
	MPI_Finalized(&ended);
	return begun && !ended;
}

void ranks_end(struct ranks *ranks)
{
	if (begun())
		MPI_Finalize();
	*ranks = (struct ranks)RANKS_ALONE;
}

/* `count` slices of `own` numbers, one from each process: their sum to the first. */
static void add_floats(void *to, const void *slices, size_t own, size_t count)
{
	float *sum = to;
	const float *from = slices;

	memcpy(sum, from, own * sizeof(*sum));
	for (size_t r = 1; r < count; r++)
		for (size_t i = 0; i < own; i++)
			sum[i] += from[r * own + i];
}

static void add_doubles(void *to, const void *slices, size_t own, size_t count)
{
	double *sum = to;
	const double *from = slices;

	memcpy(sum, from, own * sizeof(*sum));
	for (size_t r = 1; r < count; r++)
		for (size_t i = 0; i < own; i++)
			sum[i] += from[r * own + i];
}

/* What floats and doubles differ in. */
struct numbers {
	MPI_Datatype type;
	size_t size;
	void (*add)(void *to, const void *slices, size_t own, size_t count);
};

/* A piece of count * own numbers, each process adding up a slice of `own`. */
static void sum_piece(const struct ranks *ranks, const struct numbers *kind, void *piece, size_t own, void *slices,
		      void *sum)
{
	MPI_Alltoall(piece, (int)own, kind->type, slices, (int)own, kind->type, MPI_COMM_WORLD);
	kind->add(sum, slices, own, (size_t)ranks->count);
	MPI_Allgather(sum, (int)own, kind->type, piece, (int)own, kind->type, MPI_COMM_WORLD);
}

static rosa_status sum_numbers(const struct ranks *ranks, const struct numbers *kind, void *numbers, size_t count,
			       rosa_error *err)
{
	const size_t processes = (size_t)ranks->count;
	size_t own = (count + processes - 1) / processes, most = SLICE_BYTES / kind->size;
	char *memory;

	if (processes == 1 || count == 0)
		return ROSA_OK;
	own = own < most ? own : most;
	/* a whole piece for the end that fills none, the slices of all, and their sum */
	memory = malloc((2 * processes + 1) * own * kind->size);
	if (ranks_agree(ranks, memory ? ROSA_OK : ROSA_ENOMEM, NULL) != ROSA_OK) {
		free(memory);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for sums over %d processes", ranks->count);
	}
	char *slices = memory + processes * own * kind->size, *sum = slices + processes * own * kind->size;
	for (size_t at = 0; at < count; at += processes * own) {
		const size_t left = count - at, bytes = (left < processes * own ? left : processes * own) * kind->size;
		char *here = (char *)numbers + at * kind->size;

		if (left >= processes * own) {
			sum_piece(ranks, kind, here, own, slices, sum);
			continue;
		}
		memset(memory, 0, processes * own * kind->size);
		memcpy(memory, here, bytes);
		sum_piece(ranks, kind, memory, own, slices, sum);
		memcpy(here, memory, bytes);
	}
	free(memory);
	return ROSA_OK;
}

rosa_status ranks_sum_floats(const struct ranks *ranks, float *numbers, size_t count, rosa_error *err)
{
	const struct numbers kind = {MPI_FLOAT, sizeof(float), add_floats};

	return sum_numbers(ranks, &kind, numbers, count, err);
}

rosa_status ranks_sum_doubles(const struct ranks *ranks, double *numbers, size_t count, rosa_error *err)
{
	const struct numbers kind = {MPI_DOUBLE, sizeof(double), add_doubles};

	return sum_numbers(ranks, &kind, numbers, count, err);
}

rosa_status ranks_share(const struct ranks *ranks, void *data, size_t size, rosa_error *err)
{
	(void)err;
	if (ranks->count == 1)
		return ROSA_OK;
	for (size_t at = 0; at < size; at += SLICE_BYTES) {
		const size_t left = size - at;

		MPI_Bcast((char *)data + at, (int)(left < SLICE_BYTES ? left : SLICE_BYTES), MPI_BYTE, 0,
			  MPI_COMM_WORLD);
	}
	return ROSA_OK;
}

bool ranks_any(const struct ranks *ranks, bool mine)
{
	int any = mine;

	if (ranks->count > 1)
		MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	return any;
}

#else

rosa_status ranks_begin(struct ranks *ranks, rosa_error *err)
{
	const long among = started_among();

	*ranks = (struct ranks)RANKS_ALONE;
	if (among > 1)
		return rosa_fail(err, ROSA_EINVAL,
				 "started as one of %ld processes, but this build has no MPI, so each would train all "
				 "of it: install libopenmpi-dev and build again, or start it without mpirun",
				 among);
	return ROSA_OK;
}

void ranks_end(struct ranks *ranks)
{
	(void)ranks;
}

rosa_status ranks_sum_floats(const struct ranks *ranks, float *numbers, size_t count, rosa_error *err)
{
	(void)ranks, (void)numbers, (void)count, (void)err;
	return ROSA_OK;
}

rosa_status ranks_sum_doubles(const struct ranks *ranks, double *numbers, size_t count, rosa_error *err)
{
	(void)ranks, (void)numbers, (void)count, (void)err;
	return ROSA_OK;
}

rosa_status ranks_share(const struct ranks *ranks, void *data, size_t size, rosa_error *err)
{
	(void)ranks, (void)data, (void)size, (void)err;
	return ROSA_OK;
}

bool ranks_any(const struct ranks *ranks, bool mine)
{
	(void)ranks;
	return mine;
}

#endif
