/*
 * rosa_find beyond what the operator's own tests cover: match lengths, a delay, symbols of more than 16 bits, and a
 * batch of rows of one route each, which is what a source of token ids is.
 */
#include "oracle.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { MOST = 400 };

/* Compare what was found of one route with the oracle. Destinations have two bytes. */
static void expect_found(const struct trial *trial, size_t r, const uint16_t *read, const uint8_t *length,
			 const int32_t *want_tau, const int32_t *want_length)
{
	int32_t tau[MOST], lengths[MOST], cut[MOST];

	for (size_t t = 0; t < trial->steps; t++) {
		tau[t] = read[t] == UINT16_MAX ? -1 : read[t];
		lengths[t] = length[t];
		cut[t] = want_length[t] < 255 ? want_length[t] : 255;
	}
	expect_same(trial, "find", "tau", r, 0, trial->steps, 1, tau, want_tau);
	expect_same(trial, "find", "length", r, 0, trial->steps, 1, lengths, cut);
}

TEST(test_lengths)
{
	size_t cut = 0;

	for (int kind = 0; kind < stream_count(); kind++) {
		struct trial trial = {
		    .options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 2, .routes = 3, .steps = MOST};
		uint16_t read[3 * MOST], again[3 * MOST];
		uint8_t length[3 * MOST];

		trial.options.bits = trial_bits[(size_t)kind % COUNT(trial_bits)];
		trial.options.policy = trial_policies[kind % 3];
		trial.options.delay = trial_delays[(size_t)kind % 5];
		trial_make(&trial);
		trial_solve(&trial);
		must_for(trial.text,
			 rosa_find(&trial.options, NULL, 3, MOST, trial.query, trial.key, read, length, NULL, &err));
		for (size_t r = 0; r < 3; r++)
			expect_found(&trial, r, read + r * MOST, length + r * MOST, trial.tau + r * MOST,
				     trial.length + r * MOST);
		for (size_t i = 0; i < 3 * MOST; i++)
			cut += trial.length[i] > 255;
		must_for(trial.text,
			 rosa_find(&trial.options, NULL, 3, MOST, trial.query, trial.key, again, NULL, NULL, &err));
		assert_memory_equal(again, read, sizeof(read));
	}
	assert_true(cut > 0);
}

TEST(test_wide)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 1, .steps = MOST, .text = "wide"};
	uint32_t symbols[MOST];
	int32_t tau[MOST], lengths[MOST];
	rosa_learning learning = ROSA_LEARNING_INIT;
	uint16_t read[MOST], flips[MOST * 20];
	uint8_t length[MOST];
	uint64_t turn = 3;
	size_t runs = 1;

	trial.options.bits = 19;
	trial.options.delay = 4;
	for (size_t t = 0; t < MOST; t++) {
		symbols[t] = (uint32_t)(70000 * (1 + test_random(&turn, 5)));
		runs += t && symbols[t] != symbols[t - 1];
	}
	assert_int_equal(rosa_count_runs(1, MOST, symbols, 19, 1), runs);
	assert_int_equal(rosa_count_runs(1, MOST, symbols, 19, 0), MOST);
	oracle_route(&trial.options, MOST, symbols, symbols, tau, lengths, NULL);
	must(rosa_find(&trial.options, NULL, 1, MOST, symbols, symbols, read, length, NULL, &err));
	expect_found(&trial, 0, read, length, tau, lengths);
	learning.qk_grad = ROSA_QK_FLIPS;
	must_fail(rosa_find(&trial.options, &learning, 1, MOST, symbols, symbols, read, length, flips, &err),
		  ROSA_EINVAL, "19 bits");
}

/* Explored steps lead to the start of a run as old as the delay wants, and say so by a length of 0. */
TEST(test_explored)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 2, .steps = MOST, .seed = 4};
	rosa_learning learning = ROSA_LEARNING_INIT;
	uint16_t read[2 * MOST];
	uint8_t length[2 * MOST];
	size_t explored = 0;

	trial.kind = stream_find("sticky");
	trial.options.bits = 3;
	trial.options.delay = 30;
	trial_make(&trial);
	trial_solve(&trial);
	learning.explore = 0.5f;
	must(rosa_find(&trial.options, &learning, 2, MOST, trial.query, trial.key, read, length, NULL, &err));
	for (size_t i = 0; i < 2 * MOST; i++) {
		const size_t t = i % MOST;

		if (length[i]) {
			assert_int_equal(read[i], trial.tau[i]);
			assert_int_equal(length[i], trial.length[i]);
		} else if (read[i] != UINT16_MAX) {
			assert_true(read[i] > 0 && (size_t)read[i] + 30 < t);
			assert_int_not_equal(trial.key[i - t + read[i]], trial.key[i - t + read[i] - 1]);
			explored++;
		}
	}
	assert_in_range(explored, MOST / 2, 3 * MOST / 2);
}

/* Workers, seen by their calls of the allocator, and the caller, seen by its calls of the progress callback, wait for
 * each other. */
struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread[8];
	size_t threads, wanted;
	bool late; /* one waited in vain */
};

static void await_all(struct meeting *meeting)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	while (meeting->threads < meeting->wanted && !meeting->late)
		meeting->late = pthread_cond_timedwait(&meeting->changed, &meeting->lock, &until) != 0;
}

static void *meet_and_resize(void *context, void *pointer, size_t size)
{
	struct meeting *meeting = context;
	size_t i = 0;

	if (!size) {
		free(pointer);
		return NULL;
	}
	pthread_mutex_lock(&meeting->lock);
	while (i < meeting->threads && !pthread_equal(meeting->thread[i], pthread_self()))
		i++;
	/* the caller allocates before there are workers: it does not wait here */
	if (i == meeting->threads && i < COUNT(meeting->thread)) {
		meeting->thread[meeting->threads++] = pthread_self();
		pthread_cond_broadcast(&meeting->changed);
		if (i)
			await_all(meeting);
	}
	pthread_mutex_unlock(&meeting->lock);
	return realloc(pointer, size);
}

static int meet(void *context, uint64_t done, uint64_t total)
{
	struct meeting *meeting = context;

	pthread_mutex_lock(&meeting->lock);
	await_all(meeting);
	pthread_mutex_unlock(&meeting->lock);
	return 0;
}

/* Four rows of one route each are the work of four threads at once. */
TEST(test_rows)
{
	enum { ROWS = 4, STEPS = 20000 };
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = ROWS, .steps = STEPS, .seed = 6};
	struct meeting meeting = {
	    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wanted = ROWS};
	uint16_t *read = test_alloc(2 * ROWS * STEPS * sizeof(*read));
	uint8_t *length = test_alloc(2 * ROWS * STEPS);

	trial.kind = stream_find("ids");
	trial.options.fold = 0;
	trial.options.delay = 64;
	trial_make(&trial);
	must(rosa_find(&trial.options, NULL, ROWS, STEPS, trial.query, trial.key, read, length, NULL, &err));
	trial.options.threads = ROWS;
	trial.options.allocator = (rosa_allocator){meet_and_resize, &meeting};
	trial.options.progress = meet;
	trial.options.progress_context = &meeting;
	must(rosa_find(&trial.options, NULL, ROWS, STEPS, trial.query, trial.key, read + ROWS * STEPS,
		       length + ROWS * STEPS, NULL, &err));
	assert_int_equal(meeting.threads, ROWS);
	assert_false(meeting.late);
	assert_memory_equal(read, read + ROWS * STEPS, ROWS * STEPS * sizeof(*read));
	assert_memory_equal(length, length + ROWS * STEPS, ROWS * STEPS);
}
