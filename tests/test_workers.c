/* Workers that are kept between calls: the answers equal those of a call with threads of its own, also if calls
 * overlap. */
#include "support_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUTES = 24, STEPS = 700, BITS = 4, CALLERS = 3 };

static void make_symbols(uint16_t *symbols, uint32_t seed)
{
	for (size_t i = 0; i < (size_t)ROUTES * STEPS; i++) {
		seed = seed * 1664525 + 1013904223;
		symbols[i] = (uint16_t)(seed >> 24 & ((1 << BITS) - 1));
	}
}

struct trial {
	uint16_t query[ROUTES * STEPS], key[ROUTES * STEPS];
	int32_t wanted[ROUTES * STEPS], found[ROUTES * STEPS], length[ROUTES * STEPS];
	rosa_workers *workers;
	rosa_status status;
};

static rosa_status retrieve(const struct trial *trial, rosa_workers *workers, int32_t *tau)
{
	rosa_options options = ROSA_OPTIONS_INIT;

	options.bits = BITS;
	options.workers = workers;
	return rosa_retrieve(&options, ROUTES, STEPS, trial->query, trial->key, tau, NULL, NULL, NULL);
}

static struct trial *new_trial(rosa_workers *workers, uint32_t seed)
{
	struct trial *trial = test_alloc(sizeof(*trial));

	make_symbols(trial->query, seed);
	make_symbols(trial->key, seed + 1);
	trial->workers = workers;
	assert_int_equal(retrieve(trial, NULL, trial->wanted), ROSA_OK);
	memset(trial->found, 0x55, sizeof(trial->found));
	return trial;
}

TEST(test_batch)
{
	for (int threads = 1; threads <= 40; threads = threads * 3 + 1) {
		rosa_workers *workers;
		struct trial *trial;

		must(rosa_workers_new(threads, NULL, &workers, &err));
		trial = new_trial(workers, 7);
		for (int again = 0; again < 3; again++) {
			assert_int_equal(retrieve(trial, workers, trial->found), ROSA_OK);
			assert_memory_equal(trial->found, trial->wanted, sizeof(trial->wanted));
		}
		rosa_workers_free(workers);
	}
}

TEST(test_streams_share_them)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream *one, *other;
	struct trial *trial;
	const size_t half = STEPS / 2;

	options.bits = BITS;
	must(rosa_workers_new(3, NULL, &options.workers, &err));
	trial = new_trial(options.workers, 11);
	must(rosa_stream_new(&options, ROUTES, &one, &err));
	must(rosa_stream_push(one, half, trial->query, trial->key, STEPS, trial->found, NULL, NULL, &err));
	must(rosa_stream_fork(one, &other, &err));
	rosa_stream_free(one);
	/* the threads are still there for the copy */
	for (size_t t = half; t < STEPS; t++)
		must(rosa_stream_push(other, 1, trial->query + t, trial->key + t, STEPS, trial->found + t, NULL, NULL,
				      &err));
	assert_memory_equal(trial->found, trial->wanted, sizeof(trial->wanted));
	rosa_stream_free(other);
	rosa_workers_free(options.workers);
}

static void *call(void *argument)
{
	struct trial *trial = argument;

	for (int again = 0; again < 5 && !trial->status; again++)
		trial->status = retrieve(trial, trial->workers, trial->found);
	return NULL;
}

TEST(test_calls_take_turns)
{
	struct trial *trial[CALLERS];
	pthread_t caller[CALLERS];
	rosa_workers *workers;

	must(rosa_workers_new(2, NULL, &workers, &err));
	for (int i = 0; i < CALLERS; i++) {
		trial[i] = new_trial(workers, (uint32_t)(100 * i));
		trial[i]->status = ROSA_OK;
		assert_int_equal(pthread_create(&caller[i], NULL, call, trial[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		assert_int_equal(pthread_join(caller[i], NULL), 0);
		assert_int_equal(trial[i]->status, ROSA_OK);
		assert_memory_equal(trial[i]->found, trial[i]->wanted, sizeof(trial[i]->wanted));
	}
	rosa_workers_free(workers);
}

/* A layer, forward and backward, must not care whose threads they are. */
TEST(test_layer)
{
	enum { C = 16, T = 90 };
	static float h[T * C], gout[T * C], out[2][T * C], gh[2][T * C], w[C * C], norm[C], e0[C], e1[C], gw[2][C * C];
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_learning learning = ROSA_LEARNING_INIT;
	rosa_layer layer = {.size = sizeof(layer),
			    .channels = C,
			    .norm_eps = 1e-6f,
			    .norm = norm,
			    .wq = w,
			    .wk = w,
			    .wv = w,
			    .e0 = e0,
			    .e1 = e1,
			    .wout = w};

	options.bits = BITS;
	for (size_t i = 0; i < T * C; i++) {
		h[i] = (float)((i * 7919) % 101) / 50 - 1;
		gout[i] = (float)((i * 104729) % 97) / 48 - 1;
	}
	for (size_t i = 0; i < C * C; i++)
		w[i] = (float)((i * 31) % 23) / 11 - 1;
	for (size_t i = 0; i < C; i++) {
		norm[i] = 1;
		e0[i] = -0.5f;
		e1[i] = 0.25f;
	}
	for (int kept = 0; kept < 2; kept++) {
		rosa_layer_grads grads = {.size = sizeof(grads), .wq = gw[kept]};
		rosa_tape *tape;

		options.threads = 2;
		if (kept)
			must(rosa_workers_new(5, NULL, &options.workers, &err));
		must(rosa_layer_forward(&options, &learning, &layer, 1, T, h, out[kept], &tape, &err));
		must(rosa_layer_backward(tape, &layer, gout, &grads, gh[kept], &err));
		rosa_tape_free(tape);
		rosa_workers_free(options.workers);
	}
	assert_memory_equal(out[0], out[1], sizeof(out[0]));
	assert_memory_equal(gh[0], gh[1], sizeof(gh[0]));
	assert_memory_equal(gw[0], gw[1], sizeof(gw[0]));
}

TEST(test_bad_numbers)
{
	rosa_workers *workers = (rosa_workers *)8;

	assert_int_equal(rosa_workers_new(-1, NULL, &workers, &err), ROSA_EINVAL);
	assert_null(workers);
	must_say("-1");
	assert_int_equal(rosa_workers_new(1, NULL, NULL, &err), ROSA_EINVAL);
	rosa_workers_free(NULL);
}

/* ---- a process that forks ---- */

enum { FORKS = 24, PATIENCE = 60 /* seconds until a child that hangs is ended */ };

struct pusher {
	const struct trial *trial;
	rosa_stream *stream;
	atomic_bool stop;
};

/* Reads the same steps again and again, so that a fork finds it at any point. */
static void *keep_pushing(void *context)
{
	struct pusher *pusher = context;

	while (!atomic_load(&pusher->stop)) {
		if (rosa_stream_rewind(pusher->stream, 0, NULL) ||
		    rosa_stream_push(pusher->stream, STEPS, pusher->trial->query, pusher->trial->key, 0, NULL, NULL,
				     NULL, NULL))
			return pusher;
	}
	return NULL;
}

/* In the child: the workers do their work without threads, the stream is refused or good, and all can be freed. */
static int child(struct trial *trial, struct pusher *pusher)
{
	rosa_status status;

	alarm(PATIENCE);
	if (retrieve(trial, trial->workers, trial->found) ||
	    memcmp(trial->found, trial->wanted, sizeof(trial->wanted)) != 0)
		return 2;
	status = rosa_stream_rewind(pusher->stream, 0, NULL);
	if (!status)
		status = rosa_stream_push(pusher->stream, STEPS, trial->query, trial->key, 0, trial->found, NULL, NULL,
					  NULL);
	if (status != ROSA_EINVAL && (status || memcmp(trial->found, trial->wanted, sizeof(trial->wanted)) != 0))
		return 3;
	rosa_stream_free(pusher->stream);
	rosa_workers_free(trial->workers);
	return 0;
}

TEST(test_fork_while_pushing)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	struct trial *trial;
	struct pusher pusher = {.stop = false};
	pthread_t thread;
	void *failed = NULL;

	options.bits = BITS;
	must(rosa_workers_new(3, NULL, &options.workers, &err));
	trial = new_trial(options.workers, 11);
	pusher.trial = trial;
	must(rosa_stream_new(&options, ROUTES, &pusher.stream, &err));
	assert_int_equal(pthread_create(&thread, NULL, keep_pushing, &pusher), 0);
	for (int i = 0; i < FORKS; i++) {
		int status = -1;
		pid_t pid;

		usleep(500 + 137 * (unsigned)i);
		pid = fork();
		if (pid == 0)
			_exit(child(trial, &pusher));
		assert_true(pid > 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			fail_msg("child %d ended with status 0x%x", i, (unsigned)status);
	}
	atomic_store(&pusher.stop, true);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	rosa_stream_free(pusher.stream);
	rosa_workers_free(options.workers);
}
