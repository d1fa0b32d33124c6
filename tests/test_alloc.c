/*
 * Every allocation fails once.
 *
 * Each operation is run with an allocator that refuses its n-th request, for n = 0, 1, 2, ... until a run needs no more
 * than n; once with that request alone refused, as when something else frees memory in time, and once with all that
 * follow it. The operation must say ROSA_ENOMEM, or succeed where it could do without; either way the stream must go on
 * exactly as the oracle says, and in the end nothing may be left allocated.
 */
#include "retrieval/engine.h"
#include "support_folder.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

#include <unistd.h>

/* More requests than any operation here may make. */
#define MOST_REQUESTS 20000

static const rosa_engine engines[] = {ROSA_ENGINE_AUTO, ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED, ROSA_ENGINE_EAGER};

/* A trial whose first `before` steps are pushed before the operation, up to `after` after it. */
struct scene {
	struct trial trial;
	struct test_memory memory;
	rosa_engine engine;
	size_t before, after;
	rosa_stream *stream;
	void *image; /* of the stream, in plain memory */
	size_t image_size;
	char how[128];
};

/* Push steps first..last-1 with all outputs and compare them with the oracle. */
static void push_checked(struct scene *scene, rosa_stream *stream, size_t first, size_t last)
{
	const struct trial *trial = &scene->trial;
	size_t n = last - first, bits = (size_t)trial->options.bits;
	int32_t *tau = test_alloc(trial->routes * trial->steps * sizeof(*tau));
	int32_t *length = test_alloc(trial->routes * trial->steps * sizeof(*length));
	int32_t *flips = test_alloc(trial->routes * n * bits * sizeof(*flips));

	must_for(scene->how, rosa_stream_push(stream, n, trial->query + first, trial->key + first, trial->steps, tau,
					      length, flips, &err));
	expect_all(trial, scene->how, "tau", first, n, 1, tau, trial->steps, trial->tau);
	expect_all(trial, scene->how, "length", first, n, 1, length, trial->steps, trial->length);
	expect_all(trial, scene->how, "flip", first, n, bits, flips, n, trial->flips);
}

static void expect_steps(struct scene *scene, size_t steps)
{
	rosa_stream_info info = {.size = sizeof(info)};

	assert_int_equal(rosa_stream_describe(scene->stream, &info, NULL), ROSA_OK);
	if (info.steps != steps)
		fail_msg("%s: the stream has %zu steps, want %zu", scene->how, info.steps, steps);
}

/* An operation: called with the allocator armed; disarms it as soon as the call under test is over, then sees to it
 * that what came out is right. The stream holds `before` steps and must hold them again when it returns. */
typedef rosa_status (*operation)(struct scene *scene, rosa_error *err);

static void disarm(struct scene *scene)
{
	scene->memory.refuse_from = -1;
}

static rosa_status do_retrieve(struct scene *scene, rosa_error *err)
{
	struct trial *trial = &scene->trial;
	size_t cells = trial->routes * trial->steps, bits = (size_t)trial->options.bits;
	long blocks = atomic_load(&scene->memory.blocks);
	int32_t *tau = test_alloc(cells * sizeof(*tau));
	int32_t *table = test_alloc(trial->steps * bits * sizeof(*table));
	rosa_flips flips = {0};
	rosa_status status = rosa_retrieve_by(scene->engine, &trial->options, trial->routes, trial->steps, trial->query,
					      trial->key, tau, NULL, &flips, err);

	disarm(scene);
	if (status == ROSA_OK) {
		for (size_t r = 0; r < trial->routes; r++) {
			size_t at = r * trial->steps;

			expect_same(trial, scene->how, "tau", r, 0, trial->steps, 1, tau + at, trial->tau + at);
			expect_status(scene->how, rosa_flips_expand(&flips, r, trial->steps, table, err), ROSA_OK, err);
			expect_same(trial, scene->how, "flip", r, 0, trial->steps, bits, table,
				    trial->flips + at * bits);
		}
	} else {
		/* The caller need not free what it did not get, but may. */
		assert_int_equal(atomic_load(&scene->memory.blocks), blocks);
	}
	rosa_flips_free(&flips);
	assert_int_equal(atomic_load(&scene->memory.blocks), blocks);
	return status;
}

/* What an operation made: a stream of so many steps that goes on as the oracle says, or nothing. */
static rosa_status check_made(struct scene *scene, rosa_status status, rosa_stream *made, size_t steps)
{
	disarm(scene);
	if (status == ROSA_OK)
		push_checked(scene, made, steps, scene->after);
	else
		assert_null(made);
	rosa_stream_free(made);
	return status;
}

static rosa_status do_new(struct scene *scene, rosa_error *err)
{
	rosa_stream *stream = NULL;
	rosa_status status = rosa_stream_new(&scene->trial.options, scene->trial.routes, &stream, err);

	return check_made(scene, status, stream, 0);
}

static rosa_status do_push(struct scene *scene, rosa_error *err)
{
	const struct trial *trial = &scene->trial;
	size_t n = scene->after - scene->before;
	int32_t *flips = test_alloc(trial->routes * n * (size_t)trial->options.bits * sizeof(*flips));
	rosa_status status = rosa_stream_push(scene->stream, n, trial->query + scene->before,
					      trial->key + scene->before, trial->steps, NULL, NULL, flips, err);

	disarm(scene);
	expect_steps(scene, status == ROSA_OK ? scene->after : scene->before);
	if (status == ROSA_OK)
		expect_status(scene->how, rosa_stream_rewind(scene->stream, scene->before, err), ROSA_OK, err);
	return status;
}

static rosa_status do_fork(struct scene *scene, rosa_error *err)
{
	rosa_stream *copy = NULL;
	rosa_status status = rosa_stream_fork(scene->stream, &copy, err);

	return check_made(scene, status, copy, scene->before);
}

static rosa_status do_save_memory(struct scene *scene, rosa_error *err)
{
	void *data = NULL;
	size_t size = 0;
	rosa_status status = rosa_stream_save_memory(scene->stream, &data, &size, err);

	disarm(scene);
	if (status == ROSA_OK) {
		assert_int_equal(size, scene->image_size);
		assert_memory_equal(data, scene->image, size);
		rosa_stream_free_memory(scene->stream, data);
	}
	return status;
}

static rosa_status do_load_memory(struct scene *scene, rosa_error *err)
{
	rosa_stream *loaded = NULL;
	rosa_status status =
	    rosa_stream_load_memory(&scene->trial.options, scene->image, scene->image_size, &loaded, err);

	return check_made(scene, status, loaded, scene->before);
}

static void scene_path(char *path, size_t size)
{
	snprintf(path, size, "test_alloc-%ld.state", (long)getpid());
}

static rosa_status do_save_file(struct scene *scene, rosa_error *err)
{
	char path[64];
	rosa_status status;

	scene_path(path, sizeof(path));
	status = rosa_stream_save(scene->stream, path, err);
	disarm(scene);
	if (status == ROSA_OK)
		assert_int_equal(unlink(path), 0);
	else
		assert_int_not_equal(access(path, F_OK), 0);
	return status;
}

static rosa_status do_load_file(struct scene *scene, rosa_error *err)
{
	char path[64];
	rosa_stream *loaded = NULL;
	rosa_status status;

	scene_path(path, sizeof(path));
	file_put(path, scene->image, scene->image_size);
	status = rosa_stream_load(&scene->trial.options, path, &loaded, err);
	assert_int_equal(unlink(path), 0);
	return check_made(scene, status, loaded, scene->before);
}

static rosa_status rewind_to(struct scene *scene, size_t steps, rosa_error *err)
{
	rosa_status status = rosa_stream_rewind(scene->stream, steps, err);

	disarm(scene);
	expect_steps(scene, status == ROSA_OK ? steps : scene->before);
	if (status == ROSA_OK)
		push_checked(scene, scene->stream, steps, scene->before);
	return status;
}

static rosa_status do_rewind_far(struct scene *scene, rosa_error *err)
{
	return rewind_to(scene, 7, err);
}

static rosa_status do_rewind_near(struct scene *scene, rosa_error *err)
{
	return rewind_to(scene, scene->before - 3, err);
}

static void scene_open(struct scene *scene)
{
	struct trial *trial = &scene->trial;
	void *data;

	test_memory_init(&scene->memory);
	trial->options.allocator = test_memory_allocator(&scene->memory);
	trial_make(trial);
	trial_solve(trial);
	snprintf(scene->how, sizeof(scene->how), "setting up");
	must(rosa_stream_new(&trial->options, trial->routes, &scene->stream, &err));
	rosa_stream_set_engine(scene->stream, scene->engine);
	push_checked(scene, scene->stream, 0, scene->before);
	must(rosa_stream_save_memory(scene->stream, &data, &scene->image_size, &err));
	scene->image = test_alloc(scene->image_size);
	memcpy(scene->image, data, scene->image_size);
	rosa_stream_free_memory(scene->stream, data);
}

static void scene_close(struct scene *scene)
{
	rosa_stream_free(scene->stream);
	if (atomic_load(&scene->memory.blocks) != 0)
		fail_msg("%s: %ld blocks leaked", scene->how, atomic_load(&scene->memory.blocks));
}

static void refuse_in_turn(const char *name, operation run, const struct scene *setting)
{
	for (long count = -1; count <= 1; count += 2) {
		long n = 0, refused = 1;

		for (; refused > 0 && n < MOST_REQUESTS; n++) {
			struct scene scene = *setting;
			rosa_status status;

			scene_open(&scene);
			snprintf(scene.how, sizeof(scene.how), "%s, engine %d, request %ld refused%s", name,
				 (int)scene.engine, n, count < 0 ? " and all after it" : "");
			test_memory_arm(&scene.memory, n, count);
			status = run(&scene, &err);
			refused = atomic_load(&scene.memory.refused);
			expect_status(scene.how, status, refused > 0 && status != ROSA_OK ? ROSA_ENOMEM : ROSA_OK,
				      &err);
			expect_steps(&scene, scene.before);
			push_checked(&scene, scene.stream, scene.before, scene.after);
			scene_close(&scene);
		}
		assert_true(n < MOST_REQUESTS);
	}
}

static const struct {
	const char *name;
	operation run;
} operations[] = {
    {"retrieve", do_retrieve},
    {"new", do_new},
    {"push", do_push},
    {"fork", do_fork},
    {"save to memory", do_save_memory},
    {"load from memory", do_load_memory},
    {"save to a file", do_save_file},
    {"load from a file", do_load_file},
    {"rewind far", do_rewind_far},
    {"rewind a little", do_rewind_near},
};

TEST(test_each_allocation)
{
	for (size_t e = 0; e < COUNT(engines); e++) {
		for (size_t i = 0; i < COUNT(operations); i++) {
			struct scene scene = {.trial = {.options = ROSA_OPTIONS_INIT, .routes = 3, .steps = 120},
					      .engine = engines[e],
					      .before = 60,
					      .after = 120};

			scene.trial.kind = (int)(e * COUNT(operations) + i) % 12;
			scene.trial.seed = e;
			scene.trial.options.bits = trial_bits[(e + i) % COUNT(trial_bits)];
			scene.trial.options.fold = i % 2 == 0;
			refuse_in_turn(operations[i].name, operations[i].run, &scene);
		}
	}
}

/* With workers, which of them is refused is up to chance; that nothing leaks and nothing is wrong is not. */
TEST(test_with_threads)
{
	static const size_t which[] = {0, 2, 8};

	for (size_t i = 0; i < COUNT(which); i++) {
		struct scene scene = {.trial = {.options = ROSA_OPTIONS_INIT, .routes = 4, .steps = 90},
				      .engine = ROSA_ENGINE_AUTO,
				      .before = 40,
				      .after = 90};

		scene.trial.options.bits = 4;
		scene.trial.options.threads = 3;
		refuse_in_turn(operations[which[i]].name, operations[which[i]].run, &scene);
	}
}
