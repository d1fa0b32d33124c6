/* The monotonic clock: the wall clock may be set back during a wait. */
#include "serve/clock.h"

#include <time.h>

#define NANOSECONDS 1000000000L

double clock_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / (double)NANOSECONDS;
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
	const time_t whole = (time_t)seconds;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += whole;
	until.tv_nsec += (long)((seconds - (double)whole) * (double)NANOSECONDS);
	if (until.tv_nsec >= NANOSECONDS) {
		until.tv_nsec -= NANOSECONDS;
		until.tv_sec++;
	}
	pthread_cond_timedwait(condition, lock, &until);
}
