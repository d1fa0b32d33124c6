/*
 * The threads that work on one route together: a block of a CUDA device, or a single thread of the processor.
 *
 * The search (search_template.h) is written for a team of any size and asks for little: to wait for one another, to
 * count, to add up, and to find equal values among neighbours. Compiled by nvcc a team is a block; compiled as plain C
 * it is one thread and its warps have one lane. The plain form exists for the tests, which hold the search against the
 * definition on machines without a device. A test may bring operations of its own, for teams of several threads: it
 * names their file as TEAM_OPERATIONS.
 *
 * Work is divided by `for (i = team->rank; i < n; i += team->size)`.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define TEAM_WARPS 32 /* of a team, at most */

/* What a team shares beside the index. */
struct team_board {
	uint32_t counts[TEAM_WARPS]; /* team_count(): of each warp */
	unsigned long long sum;      /* whatever is added up */
	struct {
		uint32_t context, run, length;
	} diagonal[2]; /* search_template.h, "Long matches" */
	uint64_t gave_up;
};

struct team {
	unsigned rank, size;        /* this thread, of so many */
	unsigned warp, warps, lane; /* its warp, of so many; its place in the warp */
	struct team_board *board;
};

#ifdef __CUDACC__

#define TEAM_CODE  static __device__ __forceinline__
#define TEAM_LANES 32

TEAM_CODE void team_wait(void)
{
	__syncthreads();
}

TEAM_CODE void team_wait_warp(void)
{
	__syncwarp();
}

TEAM_CODE unsigned team_leading_zeros(uint64_t word)
{
	return (unsigned)__clzll((long long)word);
}

/* How many threads before this one set `flag`; *all: how many of all. Every thread of the team calls it. */
TEAM_CODE uint32_t team_count(const struct team *team, bool flag, uint32_t *all)
{
	const unsigned mine = __ballot_sync(~0u, flag);
	uint32_t before = (uint32_t)__popc(mine & ((1u << team->lane) - 1)), total = 0;

	__syncthreads(); /* the counts of the call before have been read */
	if (team->lane == 0)
		team->board->counts[team->warp] = (uint32_t)__popc(mine);
	__syncthreads();
	for (unsigned w = 0; w < team->warps; w++) {
		const uint32_t count = team->board->counts[w];

		before += w < team->warp ? count : 0;
		total += count;
	}
	*all = total;
	return before;
}

TEAM_CODE void team_add(unsigned long long *sum, unsigned long long number)
{
	atomicAdd(sum, number);
}

TEAM_CODE void team_increment(uint32_t *count)
{
	atomicAdd(count, 1u);
}

TEAM_CODE void team_or(uint64_t *word, uint64_t bits)
{
	atomicOr((unsigned long long *)word, (unsigned long long)bits);
}

TEAM_CODE void team_least(unsigned long long *least, unsigned long long number)
{
	atomicMin(least, number);
}

/* Among the active lanes of a warp: *back lanes before this one is the nearest of equal value (0: there is none), and
 * *last says that no later lane has it. All lanes of the warp call it. */
TEAM_CODE void team_equals(const struct team *team, bool active, uint32_t value, unsigned *back, bool *last)
{
	const unsigned among = __ballot_sync(~0u, active);

	*back = 0;
	*last = false;
	if (active) {
		const unsigned equal = __match_any_sync(among, value);
		const unsigned before = equal & ((1u << team->lane) - 1);

		*back = before ? team->lane - (31 - (unsigned)__clz((int)before)) : 0;
		*last = equal >> team->lane == 1;
	}
}

#elif defined(TEAM_OPERATIONS)

#include TEAM_OPERATIONS

#else

#define TEAM_CODE  static inline
#define TEAM_LANES 1

TEAM_CODE void team_wait(void)
{
}

TEAM_CODE void team_wait_warp(void)
{
}

TEAM_CODE unsigned team_leading_zeros(uint64_t word)
{
	return (unsigned)__builtin_clzll(word);
}

TEAM_CODE uint32_t team_count(const struct team *team, bool flag, uint32_t *all)
{
	(void)team;
	*all = flag;
	return 0;
}

TEAM_CODE void team_add(unsigned long long *sum, unsigned long long number)
{
	*sum += number;
}

TEAM_CODE void team_increment(uint32_t *count)
{
	++*count;
}

TEAM_CODE void team_or(uint64_t *word, uint64_t bits)
{
	*word |= bits;
}

TEAM_CODE void team_least(unsigned long long *least, unsigned long long number)
{
	if (number < *least)
		*least = number;
}

TEAM_CODE void team_equals(const struct team *team, bool active, uint32_t value, unsigned *back, bool *last)
{
	(void)team;
	(void)value;
	*back = 0;
	*last = active;
}

#endif
