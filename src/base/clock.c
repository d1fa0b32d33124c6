/* The monotonic clock: the wall clock may be set back during a wait. */
#include "base/clock.h"

#include <time.h>

#define NANOSECONDS UINT64_C(1000000000)

static uint64_t read_clock(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * NANOSECONDS + (uint64_t)time.tv_nsec;
}

uint64_t clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_processor_ns(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

double clock_now(void)
{
	return (double)clock_ns() * 1e-9;
}

void clock_condition(pthread_cond_t *condition)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

void clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds)
{
	const uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9);
	const struct timespec until = {(time_t)(end / NANOSECONDS), (long)(end % NANOSECONDS)};

	pthread_cond_timedwait(condition, lock, &until);
}
