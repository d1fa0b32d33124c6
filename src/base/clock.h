/* Time that never goes back, and waiting by it. */
#pragma once

#include <pthread.h>
#include <stdint.h>

/* Nanoseconds since some moment, and the same in seconds. */
uint64_t clock_ns(void);
double clock_now(void);
/* Nanoseconds of processor time of all threads of this process. */
uint64_t clock_processor_ns(void);

/* A condition for clock_wait. */
void clock_condition(pthread_cond_t *condition);
/* Waits for the condition, at most so many seconds. */
void clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds);
