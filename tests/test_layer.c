/* The operator as a layer, against its equations (support_layer.h). */
#include "support_layer.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define NEAR_32 1e-5
#define NEAR_16 4e-3 /* half a unit of bfloat16 is 2^-9 */

static double near(const struct layer_scene *scene)
{
	return scene->c.dtype == ROSA_FLOAT32 ? NEAR_32 : NEAR_16;
}

/* Where lots are drawn, the transcription is told what rosa_find drew. */
static void take_lots(struct layer_scene *scene)
{
	const struct operator_case *c = &scene->c;
	const size_t all = operator_route_steps(c), width = (size_t)c->options.bits + 1;
	uint16_t *query = test_alloc(all * sizeof(*query)), *key = test_alloc(all * sizeof(*key));
	void *read = test_alloc(all * 4), *flips = test_alloc(all * width * 4);
	size_t runs;

	operator_symbols(c, scene->q, query);
	operator_symbols(c, scene->k, key);
	must_for(scene->text,
		 rosa_find(&c->options, &c->learning, all / c->steps, c->steps, query, key, read, NULL, flips, &err));
	runs = rosa_count_runs(all / c->steps, c->steps, query, c->options.bits, c->options.fold);
	scene->tau[0] = from_destinations(read, c->steps, all);
	if (c->learning.qk_grad == ROSA_QK_FLIPS)
		scene->flips = from_destinations(flips, c->steps, runs * width);
}

TEST(test_grid)
{
	static const size_t lengths[] = {1, 2, 9, 33, 70};
	const size_t cells = 4 * 2 * 2 * 3;

	for (size_t i = 0, mark = test_mark(); i < test_rounds(6) * cells; i++, test_release(mark)) {
		struct layer_scene scene = layer_start(i);
		uint64_t turn = i;

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.dtype = i / 4 % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.fusion = i / 8 % 2 ? ROSA_PRE : ROSA_POST;
		scene.sharing = (enum sharing)(i / 16 % 3);
		scene.c.options.bits = 1 + (int)test_random(&turn, 16);
		scene.c.options.policy = trial_policies[test_random(&turn, 3)];
		scene.c.options.fold = (int)test_random(&turn, 2);
		scene.c.options.max_match = trial_cuts[test_random(&turn, COUNT(trial_cuts))];
		scene.c.options.threads = 1 + (int)test_random(&turn, 3);
		scene.c.learning.credit = (rosa_credit)test_random(&turn, 2);
		scene.c.learning.key_credit = (rosa_key_credit)test_random(&turn, 2);
		scene.c.learning.suffix = test_random(&turn, 2) ? 0.5f : 0;
		scene.c.learning.explore = test_random(&turn, 3) ? 0 : 0.25f;
		scene.c.learning.flip_share = test_random(&turn, 3) ? 1 : 0.5f;
		scene.c.learning.seed = i;
		scene.c.batch = 1 + test_random(&turn, 3);
		scene.c.steps = lengths[test_random(&turn, COUNT(lengths))];
		scene.c.channels = (size_t)scene.c.options.bits * (1 + test_random(&turn, 4));
		layer_make(&scene);
		take_lots(&scene);
		layer_compare(&scene, 0, near(&scene));
	}
}

/* More rows than a chunk has, ending within a block. */
TEST(test_many_rows)
{
	for (int i = 0; i < 4; i++) {
		struct layer_scene scene = layer_start(100 + (uint64_t)i);

		scene.c.learning.qk_grad = (rosa_qk_grad)i;
		scene.c.dtype = i % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.fusion = i / 2 ? ROSA_POST : ROSA_PRE;
		scene.sharing = ALIGNED;
		operator_resize(
		    &scene.c, (struct operator_size){.bits = 4, .threads = 2, .batch = 3, .steps = 451, .channels = 8});
		layer_make(&scene);
		layer_compare(&scene, i % 2 ? 0.25f : 0, near(&scene));
	}
}

TEST(test_threads)
{
	static const int threads[] = {2, 3, 7};

	for (int i = 0; i < 8; i++) {
		struct layer_scene scene = layer_start(200 + (uint64_t)i);
		struct layer_result one, more;

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.learning.explore = i % 4 == 1 ? 0.5f : 0;
		scene.c.learning.flip_share = 0.5f;
		scene.c.dtype = i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.fusion = i % 2 ? ROSA_PRE : ROSA_POST;
		scene.sharing = i % 3 ? ALIGNED : SHARED;
		operator_resize(&scene.c, (struct operator_size){.bits = 8, .batch = 3, .steps = 371, .channels = 48});
		layer_make(&scene);
		one = layer_run(&scene, 0);
		for (size_t j = 0; j < COUNT(threads); j++) {
			scene.c.options.threads = threads[j];
			more = layer_run(&scene, 0);
			layer_expect_same(&scene, &one, &more);
		}
	}
}

/* A scene of middle size, with everything on. */
static struct layer_scene scene_usual(uint64_t seed, rosa_qk_grad qk_grad, rosa_fusion fusion, rosa_dtype dtype)
{
	struct layer_scene scene = layer_start(seed);

	scene.c.learning.qk_grad = qk_grad;
	scene.c.dtype = dtype;
	scene.fusion = fusion;
	scene.sharing = ALIGNED;
	operator_resize(&scene.c,
			(struct operator_size){.bits = 4, .threads = 2, .batch = 2, .steps = 40, .channels = 12});
	return scene;
}

/* With e0 = e1 = 0 nothing is added, whatever Wout is, and pre fusion leaves the direction of H. */
TEST(test_start)
{
	for (int i = 0; i < 8; i++) {
		struct layer_scene scene = scene_usual(300 + (uint64_t)i, ROSA_QK_LINEAR, i & 1 ? ROSA_PRE : ROSA_POST,
						       i & 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		const size_t n = scene.c.channels, cells = operator_cells(&scene.c);
		const float zero = 0;
		struct layer_result result;
		double *mix = test_alloc(cells * sizeof(*mix));

		layer_make(&scene);
		for (size_t c = 0; c < n; c++) {
			scene.floats[E0][c] = scene.floats[E1][c] = 0;
			scene.floats[A0][c] = -3;
			for (size_t d = 0; (i & 4) && d < n; d++)
				scene.floats[WOUT][c * n + d] = c == d;
		}
		result = layer_run(&scene, 0);
		for (size_t j = 0; j < cells; j++)
			mix[j] = scene.h[j] / (1 + exp(-3));
		if (scene.fusion == ROSA_PRE)
			expect_near(scene.text, "mix", scene.c.dtype, result.out, mix, cells,
				    scene.c.dtype == ROSA_FLOAT32 ? NEAR_32 : NEAR_16, 0);
		for (size_t j = 0; scene.fusion == ROSA_POST && j < cells; j++) {
			size_t size = scene.c.dtype == ROSA_FLOAT32 ? 4 : 2;

			assert_memory_equal((char *)result.out + j * size, &zero, size);
		}
	}
}

/* sum of gout * out, as the library computes out */
static double loss(const struct layer_scene *scene)
{
	float *out = test_alloc(layer_row_bytes(scene));
	double sum = 0;

	must_for(scene->text, layer_run_forward(scene, out, NULL, &err));
	for (size_t i = 0; i < operator_cells(&scene->c); i++)
		sum += (double)out[i] * scene->gout[i];
	return sum;
}

/* e0, e1, Wout and a0 change no symbol, so the loss is smooth in them. */
TEST(test_finite_differences)
{
	static const struct {
		int weight;
		float step; /* wide where the loss is linear */
	} smooth[] = {{E0, 0.25f}, {E1, 0.25f}, {WOUT, 0.25f}, {A0, 0.015625f}};

	for (int fusion = ROSA_POST; fusion <= ROSA_PRE; fusion++) {
		struct layer_scene scene = scene_usual(400, ROSA_QK_NONE, (rosa_fusion)fusion, ROSA_FLOAT32);
		struct layer_result result;

		layer_make(&scene);
		result = layer_run(&scene, 0);
		for (size_t i = 0; i < COUNT(smooth) - (fusion == ROSA_POST); i++) {
			const int which = smooth[i].weight;
			const size_t count = layer_weight_size(&scene, which);
			double *slopes = test_alloc(count * sizeof(*slopes));

			for (size_t j = 0; j < count; j++) {
				float *weight = &scene.floats[which][j], was = *weight;
				double width;

				*weight = was + smooth[i].step;
				slopes[j] = loss(&scene);
				width = *weight;
				*weight = was - smooth[i].step;
				slopes[j] -= loss(&scene);
				width -= *weight;
				slopes[j] = slopes[j] / width;
				*weight = was;
			}
			expect_near(scene.text, weight_names[which], ROSA_FLOAT32, result.g[which], slopes, count, 1e-4,
				    0);
		}
	}
}

/* Asking for one gradient gives the bits that asking for all gives; leaving out the tape or the learning changes
 * nothing in use. */
TEST(test_parts)
{
	for (int i = 0; i < 8; i++) {
		struct layer_scene scene =
		    scene_usual(500 + (uint64_t)i, (rosa_qk_grad)(i % 4), i / 4 ? ROSA_PRE : ROSA_POST,
				i % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct layer_result all, part;
		rosa_tape *tape;
		void *out;

		scene.sharing = i % 3 ? ALIGNED : SHARED;
		layer_make(&scene);
		all = layer_run(&scene, 0);
		out = test_alloc(layer_row_bytes(&scene));
		must_for(scene.text, rosa_layer_forward(&scene.c.options, NULL, &scene.layer, scene.c.batch,
							scene.c.steps, scene.h_rows, out, NULL, &err));
		assert_memory_equal(out, all.out, layer_row_bytes(&scene));
		must_for(scene.text, layer_run_forward(&scene, out, &tape, &err));
		assert_memory_equal(out, all.out, layer_row_bytes(&scene));
		for (int w = 0; w < WEIGHTS; w++) {
			rosa_layer_grads one = {.size = sizeof(one)};
			float **const fields[WEIGHTS] = {&one.norm, &one.wq,     &one.wk,    &one.wv,
							 &one.e0,   &one.e1,     &one.wout,  &one.a0,
							 &one.gain, &one.gate_w, &one.gate_b};

			part = layer_result_make(&scene, 0);
			*fields[w] = part.g[w];
			must_for(scene.text,
				 rosa_layer_backward(tape, &scene.layer, scene.gout_rows, &one, NULL, &err));
			if (memcmp(part.g[w], all.g[w], layer_weight_size(&scene, w) * sizeof(float)))
				fail_msg("%s: %s alone is another", scene.text, weight_names[w]);
		}
		part = layer_result_make(&scene, 0);
		must_for(scene.text, rosa_layer_backward(tape, &scene.layer, scene.gout_rows, NULL, part.gh, &err));
		assert_memory_equal(part.gh, all.gh, layer_row_bytes(&scene));
		must_for(scene.text, rosa_layer_backward(tape, &scene.layer, scene.gout_rows, NULL, NULL, &err));
		rosa_tape_free(tape);
	}
}

/* The tape's own account of its bytes is the allocator's, and is no more than it says it is. */
TEST(test_tape_bytes)
{
	for (int i = 0; i < 8; i++) {
		struct layer_scene scene = scene_usual(600 + (uint64_t)i, (rosa_qk_grad)(i % 4), ROSA_POST,
						       i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct test_memory memory;
		uint16_t *query;
		rosa_tape *tape;
		size_t runs, arrays, rows, most;
		void *out;

		scene.sharing = i % 3 ? ALIGNED : SHARED;
		test_memory_init(&memory);
		scene.c.options.allocator = test_memory_allocator(&memory);
		layer_make(&scene);
		out = test_alloc(layer_row_bytes(&scene));
		query = test_alloc(operator_route_steps(&scene.c) * sizeof(*query));
		must_for(scene.text, layer_run_forward(&scene, out, &tape, &err));
		assert_int_equal(rosa_tape_bytes(tape), atomic_load(&memory.bytes));
		operator_symbols(&scene.c, scene.q, query);
		rows = operator_route_steps(&scene.c) / scene.c.steps;
		runs = rosa_count_runs(rows, scene.c.steps, query, scene.c.options.bits, scene.c.options.fold);
		arrays = i % 4 == ROSA_QK_NONE ? 2 : scene.sharing == SHARED ? 3 : 4;
		most = arrays * layer_row_bytes(&scene) + 2 * operator_route_steps(&scene.c) + 1024;
		if (i % 4 == ROSA_QK_FLIPS)
			most += 2 * runs * ((size_t)scene.c.options.bits + 1);
		assert_true(rosa_tape_bytes(tape) <= most);
		rosa_tape_free(tape);
		assert_int_equal(atomic_load(&memory.bytes), 0);
	}
	rosa_tape_free(NULL);
	assert_int_equal(rosa_tape_bytes(NULL), 0);
}

/* -------------------------------------------------------------------------------------------------------- memory -- */

struct passes {
	struct layer_scene *scene;
	struct layer_result *result;
	rosa_tape *tape;
};

static rosa_status forward_with_tape(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct layer_scene *scene = passes->scene;
	rosa_tape *tape = (rosa_tape *)passes; /* anything but what it must become */
	rosa_status status = layer_run_forward(scene, passes->result->out, &tape, err);

	if (status != ROSA_OK)
		assert_null(tape);
	rosa_tape_free(tape);
	return status;
}

static rosa_status forward_alone(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct layer_scene *scene = passes->scene;

	return layer_run_forward(scene, passes->result->out, NULL, err);
}

/* A backward pass that fails adds nothing to any gradient. */
static rosa_status backward(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct layer_scene *scene = passes->scene;
	struct layer_result result;
	rosa_status status;

	result = layer_result_make(scene, 0.125f);
	status = rosa_layer_backward(passes->tape, &scene->layer, scene->gout_rows, &result.grads, result.gh, err);
	for (int i = 0; status != ROSA_OK && i < WEIGHTS; i++)
		for (size_t j = 0; j < layer_weight_size(scene, i); j++)
			assert_true(result.g[i][j] == layer_before(0.125f, j));
	return status;
}

TEST(test_memory)
{
	for (int i = 0; i < 8; i++) {
		struct layer_scene scene =
		    scene_usual(700 + (uint64_t)i, (rosa_qk_grad)(i % 4), i % 3 ? ROSA_PRE : ROSA_POST,
				i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct test_memory memory;
		struct layer_result result;
		struct passes passes = {.scene = &scene, .result = &result};

		scene.sharing = i % 3 == 1 ? SHARED : ALIGNED;
		scene.c.learning.explore = 0.5f;
		scene.c.learning.flip_share = 0.5f;
		test_memory_init(&memory);
		scene.c.options.allocator = test_memory_allocator(&memory);
		layer_make(&scene);
		result = layer_result_make(&scene, 0);
		refuse_each_request("forward", &memory, forward_alone, &passes);
		refuse_each_request("forward with tape", &memory, forward_with_tape, &passes);
		must_for(scene.text, layer_run_forward(&scene, result.out, &passes.tape, &err));
		refuse_each_request("backward", &memory, backward, &passes);
		rosa_tape_free(passes.tape);
		assert_int_equal(atomic_load(&memory.blocks), 0);
	}
}

/* ----------------------------------------------------------------------------------------------------- bad input -- */

/* A forward pass that must be refused, its message naming `word`. */
static void refuse_forward(const char *word, const rosa_options *options, const rosa_learning *learning,
			   const rosa_layer *layer, size_t batch, size_t steps, const void *h, void *out)
{
	rosa_tape *tape = (rosa_tape *)out;

	expect_status(word, rosa_layer_forward(options, learning, layer, batch, steps, h, out, &tape, &err),
		      ROSA_EINVAL, &err);
	assert_null(tape);
	must_say(word);
	expect_status(word, rosa_layer_forward(options, learning, layer, batch, steps, h, out, NULL, NULL), ROSA_EINVAL,
		      NULL);
}

TEST(test_bad_forward)
{
	struct layer_scene scene = scene_usual(800, ROSA_QK_LINEAR, ROSA_PRE, ROSA_FLOAT32);
	struct layer_result result;
	const rosa_options *options = &scene.c.options;
	const rosa_learning *learning = &scene.c.learning;
	rosa_options odd_options;
	rosa_learning odd_learning;
	rosa_layer odd;

	layer_make(&scene);
	result = layer_result_make(&scene, 0);
#define REFUSE_LAYER(word, change)                                                                                     \
	do {                                                                                                           \
		odd = scene.layer;                                                                                     \
		change;                                                                                                \
		refuse_forward(word, options, learning, &odd, 2, 40, scene.h_rows, result.out);                        \
	} while (0)
	refuse_forward("options", NULL, learning, &scene.layer, 2, 40, scene.h_rows, result.out);
	refuse_forward("layer", options, learning, NULL, 2, 40, scene.h_rows, result.out);
	refuse_forward("h is NULL", options, learning, &scene.layer, 2, 40, NULL, result.out);
	refuse_forward("out is NULL", options, learning, &scene.layer, 2, 40, scene.h_rows, NULL);
	refuse_forward("overlap", options, learning, &scene.layer, 2, 20, scene.h_rows, (float *)scene.h_rows + 12);
	refuse_forward("overlap", options, learning, &scene.layer, 2, 40, scene.h_rows, scene.h_rows);
	refuse_forward("batch 0", options, learning, &scene.layer, 0, 40, scene.h_rows, result.out);
	refuse_forward("0 steps", options, learning, &scene.layer, 2, 0, scene.h_rows, result.out);
	refuse_forward("memory", options, learning, &scene.layer, SIZE_MAX / 16, 40, scene.h_rows, result.out);
	refuse_forward("steps", options, learning, &scene.layer, 2, ROSA_MAX_STEPS + 1, scene.h_rows, result.out);
	odd_options = *options;
	odd_options.bits = 5;
	refuse_forward("12 channels", &odd_options, learning, &scene.layer, 2, 40, scene.h_rows, result.out);
	odd_options.bits = 17;
	refuse_forward("bits is 17", &odd_options, learning, &scene.layer, 2, 40, scene.h_rows, result.out);
	odd_learning = *learning;
	odd_learning.explore = 2;
	refuse_forward("explore is 2", options, &odd_learning, &scene.layer, 2, 40, scene.h_rows, result.out);
	REFUSE_LAYER("layer.size is 8", odd.size = 8);
	REFUSE_LAYER("dtype is 1", odd.dtype = ROSA_FLOAT16);
	REFUSE_LAYER("dtype is 9", odd.dtype = (rosa_dtype)9);
	REFUSE_LAYER("fusion is 2", odd.fusion = (rosa_fusion)2);
	REFUSE_LAYER("channels", odd.channels = 0);
	REFUSE_LAYER("channels", odd.channels = SIZE_MAX / 4);
	REFUSE_LAYER("norm_eps is -1", odd.norm_eps = -1);
	REFUSE_LAYER("norm_eps is nan", odd.norm_eps = NAN);
	const float **const needed[] = {&odd.norm, &odd.wq, &odd.wk, &odd.wv, &odd.e0, &odd.e1, &odd.wout, &odd.a0};
	for (size_t i = 0; i < COUNT(needed); i++)
		REFUSE_LAYER(weight_names[i], *needed[i] = NULL);
	/* an older caller, who does not know of pre fusion, has no a0 */
	REFUSE_LAYER("a0", odd.size = offsetof(rosa_layer, a0));
}

static void refuse_backward(const char *word, const rosa_tape *tape, const rosa_layer *layer, const void *gout,
			    const rosa_layer_grads *grads, void *gh)
{
	expect_status(word, rosa_layer_backward(tape, layer, gout, grads, gh, &err), ROSA_EINVAL, &err);
	must_say(word);
}

TEST(test_bad_backward)
{
	struct layer_scene scene = scene_usual(900, ROSA_QK_FLIPS, ROSA_PRE, ROSA_FLOAT32);
	struct layer_result result;
	rosa_tape *tape = NULL;
	rosa_layer odd;
	rosa_layer_grads odd_grads;

	layer_make(&scene);
	result = layer_result_make(&scene, 0);
	must(layer_run_forward(&scene, result.out, &tape, &err));
	refuse_backward("tape", NULL, &scene.layer, scene.gout_rows, &result.grads, result.gh);
	refuse_backward("layer", tape, NULL, scene.gout_rows, &result.grads, result.gh);
	refuse_backward("gout", tape, &scene.layer, NULL, &result.grads, result.gh);
	refuse_backward("overlap", tape, &scene.layer, scene.gout_rows, &result.grads, scene.gout_rows);
	odd_grads = result.grads;
	odd_grads.size = 0;
	refuse_backward("grads.size is 0", tape, &scene.layer, scene.gout_rows, &odd_grads, result.gh);
	odd = scene.layer;
	odd.channels = 8;
	refuse_backward("channels is 8", tape, &odd, scene.gout_rows, &result.grads, result.gh);
	odd = scene.layer;
	odd.dtype = ROSA_BFLOAT16;
	refuse_backward("dtype is 2", tape, &odd, scene.gout_rows, &result.grads, result.gh);
	odd = scene.layer;
	odd.fusion = ROSA_POST;
	refuse_backward("fusion is 0", tape, &odd, scene.gout_rows, &result.grads, result.gh);
	odd = scene.layer;
	odd.wk = odd.wq;
	refuse_backward("wq == layer.wk is 1", tape, &odd, scene.gout_rows, &result.grads, result.gh);
	rosa_tape_free(tape);
}
