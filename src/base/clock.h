/* Time that never goes back, and waiting by it. */
#pragma once

#include <pthread.h>

/* Seconds since some moment. */
double clock_now(void);

/* A condition for clock_wait. */
void clock_condition(pthread_cond_t *condition);
/* Waits for the condition, at most so many seconds. */
void clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double seconds);
