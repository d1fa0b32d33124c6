/* Worker threads that divide numbered pieces of work among themselves. */
#pragma once

#include "rosatune.h"

#include <stdbool.h>

struct pool;

/* Do piece `i`; `worker` counts from 0, the calling thread. */
typedef void pool_work(void *context, size_t i, unsigned worker);

/* A pool of `threads` workers, the caller being one of them. NULL if there is no memory. If some threads
 * cannot be started, the others do the work. */
struct pool *pool_new(const rosa_allocator *allocator, unsigned threads);
void pool_free(struct pool *pool, const rosa_allocator *allocator);

/* Do pieces 0 .. count-1, in any order, on all workers. `between`, if not NULL, is called on the calling thread after
 * each piece it does; once it returns nonzero no further piece is begun. Runs of several threads take turns. */
void pool_run(struct pool *pool, size_t count, pool_work *work, void *context, int (*between)(void *context));

/* The pool that a call with these options uses: that of options.workers, or a new one of `threads`. NULL if there
 * is no memory. */
struct pool *pool_for(const rosa_options *options, unsigned threads);
/* Ends its use. Safe on NULL. */
void pool_done(const rosa_options *options, struct pool *pool);

/* The number of threads of kept workers. */
unsigned pool_kept_threads(const rosa_workers *workers);

/* Whether this number of threads is allowed. */
rosa_status pool_check_threads(int threads, rosa_error *err);

/* The number of workers for options.threads: 0 means one per processor. */
unsigned pool_threads(int threads);
