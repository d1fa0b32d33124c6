/*
 * Worker threads that divide numbered pieces of work among themselves.
 *
 * Every worker has its own share, the same in every run with the same number of pieces, so that its caches still hold
 * what it worked on last time. Pieces differ in cost, so a worker that has finished its share helps the others. Workers
 * are kept between calls: a decoding step takes some tens of microseconds, about as long as starting a thread. For the
 * same reason a worker that has finished spins for a moment before it sleeps.
 */
#include "base/pool.h"
#include "base/memory.h"
#include "base/status.h"

#include <string.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define SPINS       30000
#define MAX_THREADS 1024

struct pool {
	pid_t process; /* that started the threads: a child of fork() has the pool without them, and its locks as they
			  were at that moment, perhaps held for ever */
	pthread_mutex_t use; /* held during a run */
	pthread_mutex_t lock;
	pthread_cond_t wake, done;
	atomic_uint round;   /* raised for every run */
	atomic_uint working; /* threads other than the caller that have not finished the round */
	atomic_bool stop, quit;
	pool_work *work;
	void *context;
	unsigned started;
	struct worker {
		struct pool *pool;
		pthread_t thread;
		unsigned number;
		/* the pieces left of its share; worker 0, the caller, has a share too */
		atomic_size_t next;
		size_t end;
	} workers[];
};

/* Spins without the processor's pause instruction. A hypervisor may take many of these as a hint to schedule another
 * virtual machine, which would take longer than the wait. */
static inline void wait_briefly(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

static void do_pieces(struct pool *pool, unsigned worker, int (*between)(void *context))
{
	for (unsigned i = 0; i <= pool->started; i++) {
		struct worker *share = &pool->workers[(worker + i) % (pool->started + 1)];

		for (;;) {
			size_t piece = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);

			if (piece >= share->end)
				break;
			if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
				return;
			pool->work(pool->context, piece, worker);
			if (between && between(pool->context))
				atomic_store_explicit(&pool->stop, true, memory_order_relaxed);
		}
	}
}

static void *worker_main(void *argument)
{
	struct worker *self = argument;
	struct pool *pool = self->pool;
	unsigned seen = 0;

	for (;;) {
		for (int i = 0; i < SPINS && atomic_load(&pool->round) == seen; i++)
			wait_briefly();
		if (atomic_load(&pool->round) == seen) {
			pthread_mutex_lock(&pool->lock);
			while (atomic_load(&pool->round) == seen)
				pthread_cond_wait(&pool->wake, &pool->lock);
			pthread_mutex_unlock(&pool->lock);
		}
		seen = atomic_load(&pool->round);
		if (atomic_load(&pool->quit))
			return NULL;
		do_pieces(pool, self->number, NULL);
		if (atomic_fetch_sub(&pool->working, 1) == 1) {
			pthread_mutex_lock(&pool->lock);
			pthread_cond_signal(&pool->done);
			pthread_mutex_unlock(&pool->lock);
		}
	}
}

struct pool *pool_new(const rosa_allocator *allocator, unsigned threads)
{
	struct pool *pool = memory_resize(allocator, NULL, sizeof(*pool) + threads * sizeof(*pool->workers));

	if (!pool)
		return NULL;
	memset(pool, 0, sizeof(*pool));
	pool->process = getpid();
	pthread_mutex_init(&pool->use, NULL);
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	pthread_cond_init(&pool->done, NULL);
	for (unsigned i = 1; i < threads; i++) {
		struct worker *worker = &pool->workers[i];

		worker->pool = pool;
		worker->number = i;
		if (pthread_create(&worker->thread, NULL, worker_main, worker))
			break;
		pool->started++;
	}
	return pool;
}

static void start_round(struct pool *pool)
{
	atomic_store(&pool->working, pool->started);
	pthread_mutex_lock(&pool->lock);
	atomic_fetch_add(&pool->round, 1);
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

void pool_free(struct pool *pool, const rosa_allocator *allocator)
{
	if (!pool)
		return;
	if (pool->process != getpid()) {
		memory_free(allocator, pool);
		return;
	}
	atomic_store(&pool->quit, true);
	start_round(pool);
	for (unsigned i = 1; i <= pool->started; i++)
		pthread_join(pool->workers[i].thread, NULL);
	pthread_cond_destroy(&pool->done);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	pthread_mutex_destroy(&pool->use);
	memory_free(allocator, pool);
}

static void run(struct pool *pool, size_t count, pool_work *work, void *context, int (*between)(void *context))
{
	const unsigned workers = pool->started + 1;

	for (unsigned i = 0; i < workers; i++) {
		atomic_store(&pool->workers[i].next, count / workers * i + (i < count % workers ? i : count % workers));
		pool->workers[i].end = count / workers * (i + 1) + (i + 1 < count % workers ? i + 1 : count % workers);
	}
	pool->work = work;
	pool->context = context;
	atomic_store(&pool->stop, false);
	if (pool->started)
		start_round(pool);
	do_pieces(pool, 0, between);
	if (!pool->started)
		return;
	for (int i = 0; i < SPINS && atomic_load(&pool->working); i++)
		wait_briefly();
	pthread_mutex_lock(&pool->lock);
	while (atomic_load(&pool->working))
		pthread_cond_wait(&pool->done, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}

void pool_run(struct pool *pool, size_t count, pool_work *work, void *context, int (*between)(void *context))
{
	/* Without the threads, and without touching the locks. */
	if (pool->process != getpid()) {
		for (size_t i = 0; i < count; i++) {
			work(context, i, 0);
			if (between && between(context))
				return;
		}
		return;
	}
	pthread_mutex_lock(&pool->use);
	run(pool, count, work, context, between);
	pthread_mutex_unlock(&pool->use);
}

/* ---- workers kept by the caller ---- */

struct rosa_workers {
	rosa_allocator allocator;
	struct pool *pool;
	unsigned threads;
};

rosa_status rosa_workers_new(int threads, const rosa_allocator *allocator, rosa_workers **workers, rosa_error *err)
{
	const rosa_allocator plain = {NULL, NULL};
	rosa_workers *new;
	rosa_status status;

	if (!workers)
		return rosa_fail(err, ROSA_EINVAL, "workers is NULL");
	*workers = NULL;
	status = pool_check_threads(threads, err);
	if (status)
		return status;
	if (!allocator)
		allocator = &plain;
	new = memory_resize(allocator, NULL, sizeof(*new));
	if (!new)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for workers");
	*new = (rosa_workers){.allocator = *allocator, .threads = pool_threads(threads)};
	new->pool = pool_new(allocator, new->threads);
	if (!new->pool) {
		memory_free(allocator, new);
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", pool_threads(threads));
	}
	*workers = new;
	return ROSA_OK;
}

void rosa_workers_free(rosa_workers *workers)
{
	rosa_allocator allocator;

	if (!workers)
		return;
	allocator = workers->allocator;
	pool_free(workers->pool, &allocator);
	memory_free(&allocator, workers);
}

struct pool *pool_for(const rosa_options *options, unsigned threads)
{
	return options->workers ? options->workers->pool : pool_new(&options->allocator, threads);
}

void pool_done(const rosa_options *options, struct pool *pool)
{
	if (!options->workers)
		pool_free(pool, &options->allocator);
}

unsigned pool_kept_threads(const rosa_workers *workers)
{
	return workers->threads;
}

rosa_status pool_check_threads(int threads, rosa_error *err)
{
	if (threads < 0 || threads > MAX_THREADS)
		return rosa_fail(err, ROSA_EINVAL, "threads is %d; use 0 (one per processor) to %d", threads,
				 MAX_THREADS);
	return ROSA_OK;
}

unsigned pool_threads(int threads)
{
	long processors;

	if (threads > 0)
		return (unsigned)threads;
	processors = sysconf(_SC_NPROCESSORS_ONLN);
	return processors > 0 ? (unsigned)processors : 1;
}
