/*
 * The operations of retrieval/cuda/team.h for a team of several threads of the processor, in warps of eight.
 *
 * Threads of a device that wait for each other less often than they should may go unnoticed for long. Here they are
 * threads that the system interrupts anywhere, and ThreadSanitizer sees every pair of accesses that nothing orders.
 */
#pragma once

#include <pthread.h>

#define TEAM_CODE    static inline
#define TEAM_LANES   8
#define TEAM_THREADS (4 * TEAM_LANES)

/* One team at a time; the barriers belong to the test that starts it. */
static pthread_barrier_t team_barrier, team_warp_barrier[TEAM_THREADS / TEAM_LANES];
static bool team_flags[TEAM_THREADS];
static uint32_t team_values[TEAM_THREADS];
static _Thread_local unsigned team_warp;

TEAM_CODE void team_wait(void)
{
	pthread_barrier_wait(&team_barrier);
}

TEAM_CODE void team_wait_warp(void)
{
	pthread_barrier_wait(&team_warp_barrier[team_warp]);
}

TEAM_CODE unsigned team_leading_zeros(uint64_t word)
{
	return (unsigned)__builtin_clzll(word);
}

TEAM_CODE uint32_t team_count(const struct team *team, bool flag, uint32_t *all)
{
	uint32_t before = 0;

	team_flags[team->rank] = flag;
	team_wait();
	*all = 0;
	for (unsigned i = 0; i < team->size; i++) {
		before += i < team->rank && team_flags[i];
		*all += team_flags[i];
	}
	team_wait();
	return before;
}

TEAM_CODE void team_add(unsigned long long *sum, unsigned long long number)
{
	__atomic_fetch_add(sum, number, __ATOMIC_RELAXED);
}

TEAM_CODE void team_increment(uint32_t *count)
{
	__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

TEAM_CODE void team_or(uint64_t *word, uint64_t bits)
{
	__atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
}

TEAM_CODE void team_least(unsigned long long *least, unsigned long long number)
{
	unsigned long long seen = __atomic_load_n(least, __ATOMIC_RELAXED);

	while (number < seen &&
	       !__atomic_compare_exchange_n(least, &seen, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

TEAM_CODE void team_equals(const struct team *team, bool active, uint32_t value, unsigned *back, bool *last)
{
	const unsigned first = team->warp * TEAM_LANES;

	team_flags[team->rank] = active;
	team_values[team->rank] = value;
	team_wait_warp();
	*back = 0;
	*last = active;
	for (unsigned lane = 0; lane < TEAM_LANES && active; lane++) {
		if (!team_flags[first + lane] || team_values[first + lane] != value)
			continue;
		if (lane < team->lane)
			*back = team->lane - lane;
		if (lane > team->lane)
			*last = false;
	}
	team_wait_warp();
}
