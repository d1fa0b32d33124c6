/*
 * The operator as a layer, against its transcription in double precision.
 *
 * Rows of the input are drawn from a small vocabulary, as embeddings are, so that equal tokens have equal symbols and
 * there is something to find. Symbols depend on signs: a number so near to 0 that its sign is a matter of rounding
 * would make two right answers, so inputs are drawn again until there is none.
 */
#include "rosatune.h"

#include "support_memory.h"
#include "support_operator.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define NEAR_32  1e-5
#define NEAR_16  4e-3 /* half a unit of bfloat16 is 2^-9 */
#define MARGIN   2e-5 /* of a sign, where numbers are about 1 */
#define TOKENS   7
#define WEIGHTS  8
#define NORM_EPS 1e-5

enum sharing { SEPARATE, ALIGNED, SHARED };

/* One layer with its inputs: in double precision, and as the library takes them. */
struct scene {
	struct operator_case c;
	enum sharing sharing;
	rosa_fusion fusion;
	uint64_t seed;

	struct operator_layer want;
	double *numbers[WEIGHTS]; /* norm, wq, wk, wv, e0, e1, wout, a0 */
	float *weights[WEIGHTS];
	double *h_numbers, *gout_numbers;
	void *h, *gout;
	int32_t *read, *flips;
	rosa_layer layer;
	char text[256];
};

static const char *const weight_names[WEIGHTS] = {"norm", "wq", "wk", "wv", "e0", "e1", "wout", "a0"};

static size_t weight_size(const struct scene *scene, int which)
{
	int matrix = (which >= 1 && which <= 3) || which == 6;

	return matrix ? scene->c.channels * scene->c.channels : scene->c.channels;
}

static size_t row_bytes(const struct scene *scene)
{
	return operator_cells(&scene->c) * (scene->c.dtype == ROSA_FLOAT32 ? 4 : 2);
}

/* A sequence of tokens that stays on some of them for a while. */
static double *token_rows(const struct scene *scene, uint64_t *state)
{
	const size_t n = scene->c.channels;
	double *vocabulary = random_rows(state, scene->c.dtype, TOKENS * n, 1);
	double *rows = must_alloc(operator_cells(&scene->c) * sizeof(*rows));
	size_t token = 0;

	for (size_t r = 0; r < scene->c.batch * scene->c.steps; r++) {
		if (test_random(state, 4))
			token = test_random(state, TOKENS);
		memcpy(rows + r * n, vocabulary + token * n, n * sizeof(*rows));
	}
	free(vocabulary);
	return rows;
}

static void scene_draw(struct scene *scene, uint64_t seed)
{
	uint64_t state = seed;
	const size_t n = scene->c.channels;

	for (int i = 0; i < WEIGHTS; i++) {
		size_t count = weight_size(scene, i);

		scene->numbers[i] = random_rows(&state, ROSA_FLOAT32, count, count > n ? 1 / sqrt((double)n) : 0.5);
	}
	for (size_t c = 0; c < n; c++)
		scene->numbers[0][c] = operator_round(ROSA_FLOAT32, 1 + scene->numbers[0][c] / 2);
	if (n > 1)
		scene->numbers[0][n / 2] = 0; /* a channel that the norm switches off */
	if (scene->sharing != SEPARATE)
		memcpy(scene->numbers[2], scene->numbers[1], n * n * sizeof(**scene->numbers));
	scene->h_numbers = token_rows(scene, &state);
	scene->gout_numbers = random_rows(&state, scene->c.dtype, operator_cells(&scene->c), 1);
	scene->want = (struct operator_layer){.fusion = scene->fusion,
					      .shared = scene->sharing == SHARED,
					      .norm_eps = (float)NORM_EPS,
					      .norm = scene->numbers[0],
					      .wq = scene->numbers[1],
					      .wk = scene->numbers[2],
					      .wv = scene->numbers[3],
					      .e0 = scene->numbers[4],
					      .e1 = scene->numbers[5],
					      .wout = scene->numbers[6],
					      .a0 = scene->numbers[7],
					      .h = scene->h_numbers,
					      .gout = scene->gout_numbers};
	operator_layer_project(&scene->c, &scene->want);
}

static void scene_drop(struct scene *scene)
{
	for (int i = 0; i < WEIGHTS; i++)
		free(scene->numbers[i]);
	free(scene->h_numbers);
	free(scene->gout_numbers);
	operator_layer_free(&scene->want);
}

static void scene_make(struct scene *scene)
{
	const rosa_options *options = &scene->c.options;
	const rosa_learning *learning = &scene->c.learning;

	for (uint64_t again = 0;; again++) {
		scene_draw(scene, scene->seed + (again << 32));
		if (scene->want.margin > MARGIN)
			break;
		scene_drop(scene);
	}
	for (int i = 0; i < WEIGHTS; i++)
		scene->weights[i] = to_floats(scene->numbers[i], weight_size(scene, i));
	scene->h = to_dtype(scene->c.dtype, scene->h_numbers, operator_cells(&scene->c));
	scene->gout = to_dtype(scene->c.dtype, scene->gout_numbers, operator_cells(&scene->c));
	scene->layer = (rosa_layer){.size = sizeof(scene->layer),
				    .channels = scene->c.channels,
				    .fusion = scene->fusion,
				    .dtype = scene->c.dtype,
				    .norm_eps = (float)NORM_EPS,
				    .norm = scene->weights[0],
				    .wq = scene->weights[1],
				    .wk = scene->weights[scene->sharing == SHARED ? 1 : 2],
				    .wv = scene->weights[3],
				    .e0 = scene->weights[4],
				    .e1 = scene->weights[5],
				    .wout = scene->weights[6],
				    .a0 = scene->fusion == ROSA_PRE ? scene->weights[7] : NULL};
	scene->read = scene->flips = NULL;
	snprintf(scene->text, sizeof(scene->text),
		 "seed %llu, %s, %s, sharing %d, batch %zu, steps %zu, channels %zu, bits %d, %s, fold %d, "
		 "max_match %u, threads %d, qk_grad %d, credit %d, key_credit %d, suffix %g, explore %g, share %g",
		 (unsigned long long)scene->seed, scene->c.dtype == ROSA_FLOAT32 ? "float32" : "bfloat16",
		 scene->fusion == ROSA_PRE ? "pre" : "post", (int)scene->sharing, scene->c.batch, scene->c.steps,
		 scene->c.channels, options->bits, policy_name(options->policy), options->fold,
		 (unsigned)options->max_match, options->threads, (int)learning->qk_grad, (int)learning->credit,
		 (int)learning->key_credit, (double)learning->suffix, (double)learning->explore,
		 (double)learning->flip_share);
}

static void scene_free(struct scene *scene)
{
	scene_drop(scene);
	for (int i = 0; i < WEIGHTS; i++)
		free(scene->weights[i]);
	free(scene->h);
	free(scene->gout);
	free(scene->read);
	free(scene->flips);
}

/* Where lots are drawn, the transcription is told what rosa_find drew. */
static void scene_take_lots(struct scene *scene)
{
	const struct operator_case *c = &scene->c;
	const size_t all = operator_route_steps(c), width = (size_t)c->options.bits + 1;
	uint16_t *query = must_alloc(all * sizeof(*query)), *key = must_alloc(all * sizeof(*key));
	void *read = must_alloc(all * 4), *flips = must_alloc(all * width * 4);
	size_t runs;
	rosa_error err;

	operator_symbols(c, scene->want.q, query);
	operator_symbols(c, scene->want.k, key);
	expect_status(
	    scene->text,
	    rosa_find(&c->options, &c->learning, all / c->steps, c->steps, query, key, read, NULL, flips, &err),
	    ROSA_OK, &err);
	runs = rosa_count_runs(all / c->steps, c->steps, query, c->options.bits, c->options.fold);
	scene->want.given_read = scene->read = from_destinations(read, c->steps, all);
	if (c->learning.qk_grad == ROSA_QK_FLIPS)
		scene->want.given_flips = scene->flips = from_destinations(flips, c->steps, runs * width);
	free(query);
	free(key);
	free(read);
	free(flips);
}

/* What the library makes of a scene. Gradients are added to what is there: at first `start` in some of every five. */
struct result {
	void *out, *gh;
	float *grads[WEIGHTS];
	rosa_layer_grads all;
};

static float before(float start, size_t i)
{
	return start * (float)(i % 5);
}

static void result_make(const struct scene *scene, float start, struct result *result)
{
	float *g[WEIGHTS];

	result->out = must_alloc(row_bytes(scene));
	result->gh = must_alloc(row_bytes(scene));
	for (int i = 0; i < WEIGHTS; i++) {
		size_t count = weight_size(scene, i);

		g[i] = result->grads[i] = must_alloc(count * sizeof(float));
		for (size_t j = 0; j < count; j++)
			g[i][j] = before(start, j);
	}
	result->all = (rosa_layer_grads){.size = sizeof(result->all),
					 .norm = g[0],
					 .wq = g[1],
					 .wk = g[2],
					 .wv = g[3],
					 .e0 = g[4],
					 .e1 = g[5],
					 .wout = g[6],
					 .a0 = g[7]};
}

static void result_free(struct result *result)
{
	free(result->out);
	free(result->gh);
	for (int i = 0; i < WEIGHTS; i++)
		free(result->grads[i]);
}

static void run_scene(const struct scene *scene, float start, struct result *result)
{
	rosa_tape *tape = NULL;
	rosa_error err;

	result_make(scene, start, result);
	expect_status(scene->text,
		      rosa_layer_forward(&scene->c.options, &scene->c.learning, &scene->layer, scene->c.batch,
					 scene->c.steps, scene->h, result->out, &tape, &err),
		      ROSA_OK, &err);
	assert_non_null(tape);
	expect_status(scene->text,
		      rosa_layer_backward(tape, &scene->layer, scene->gout, &result->all, result->gh, &err), ROSA_OK,
		      &err);
	rosa_tape_free(tape);
}

static void compare_scene(struct scene *scene, float start)
{
	struct operator_layer *want = &scene->want;
	const double limit = scene->c.dtype == ROSA_FLOAT32 ? NEAR_32 : NEAR_16;
	const size_t cells = operator_cells(&scene->c);
	/* a gradient may be next to nothing where its terms are not: the norm of one channel has none at all */
	const double least = 1e-3 * norm_of(scene->gout_numbers, cells);
	struct result result;
	double *grads[WEIGHTS];

	operator_layer_forward(&scene->c, want);
	operator_layer_backward(&scene->c, want);
	run_scene(scene, start, &result);
	expect_near(scene->text, "out", scene->c.dtype, result.out, want->out, cells, limit, 0);
	expect_near(scene->text, "gh", scene->c.dtype, result.gh, want->gh, cells, limit, least);
	grads[0] = want->gnorm;
	grads[1] = want->gwq;
	grads[2] = want->gwk;
	grads[3] = want->gwv;
	grads[4] = want->ge0;
	grads[5] = want->ge1;
	grads[6] = want->gwout;
	grads[7] = want->ga0;
	for (int i = 0; i < WEIGHTS; i++) {
		size_t count = weight_size(scene, i);

		for (size_t j = 0; j < count; j++)
			grads[i][j] += (double)before(start, j);
		expect_near(scene->text, weight_names[i], ROSA_FLOAT32, result.grads[i], grads[i], count, limit, least);
	}
	result_free(&result);
}

static struct scene scene_start(uint64_t seed)
{
	return (struct scene){.c = {.options = ROSA_OPTIONS_INIT, .learning = ROSA_LEARNING_INIT}, .seed = seed};
}

static void test_grid(void **state)
{
	static const size_t lengths[] = {1, 2, 9, 33, 70};
	const size_t cells = 4 * 2 * 2 * 3;

	for (size_t i = 0; i < test_rounds(6) * cells; i++) {
		struct scene scene = scene_start(i);
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
		scene_make(&scene);
		scene_take_lots(&scene);
		compare_scene(&scene, 0);
		scene_free(&scene);
	}
}

/* More rows than a chunk has, ending within a block. */
static void test_many_rows(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct scene scene = scene_start(100 + (uint64_t)i);

		scene.c.learning.qk_grad = (rosa_qk_grad)i;
		scene.c.dtype = i % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.fusion = i / 2 ? ROSA_POST : ROSA_PRE;
		scene.sharing = ALIGNED;
		scene.c.options.bits = 4;
		scene.c.options.threads = 2;
		scene.c.batch = 3;
		scene.c.steps = 451;
		scene.c.channels = 8;
		scene_make(&scene);
		compare_scene(&scene, i % 2 ? 0.25f : 0);
		scene_free(&scene);
	}
}

static void expect_equal(const struct scene *scene, const struct result *a, const struct result *b)
{
	if (memcmp(a->out, b->out, row_bytes(scene)))
		fail_msg("%s: out differs", scene->text);
	if (memcmp(a->gh, b->gh, row_bytes(scene)))
		fail_msg("%s: gh differs", scene->text);
	for (int i = 0; i < WEIGHTS; i++)
		if (memcmp(a->grads[i], b->grads[i], weight_size(scene, i) * sizeof(float)))
			fail_msg("%s: gradient of %s differs", scene->text, weight_names[i]);
}

static void test_threads(void **state)
{
	static const int threads[] = {2, 3, 7};

	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_start(200 + (uint64_t)i);
		struct result one, more;

		scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
		scene.c.learning.explore = i % 4 == 1 ? 0.5f : 0;
		scene.c.learning.flip_share = 0.5f;
		scene.c.dtype = i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
		scene.fusion = i % 2 ? ROSA_PRE : ROSA_POST;
		scene.sharing = i % 3 ? ALIGNED : SHARED;
		scene.c.options.bits = 8;
		scene.c.batch = 3;
		scene.c.steps = 371;
		scene.c.channels = 48;
		scene_make(&scene);
		run_scene(&scene, 0, &one);
		for (size_t j = 0; j < COUNT(threads); j++) {
			scene.c.options.threads = threads[j];
			run_scene(&scene, 0, &more);
			expect_equal(&scene, &one, &more);
			result_free(&more);
		}
		result_free(&one);
		scene_free(&scene);
	}
}

/* A scene of middle size, with everything on. */
static struct scene scene_usual(uint64_t seed, rosa_qk_grad qk_grad, rosa_fusion fusion, rosa_dtype dtype)
{
	struct scene scene = scene_start(seed);

	scene.c.learning.qk_grad = qk_grad;
	scene.c.dtype = dtype;
	scene.fusion = fusion;
	scene.sharing = ALIGNED;
	scene.c.options.bits = 4;
	scene.c.options.threads = 2;
	scene.c.batch = 2;
	scene.c.steps = 40;
	scene.c.channels = 12;
	return scene;
}

/* With e0 = e1 = 0 nothing is added, whatever Wout is, and pre fusion leaves the direction of H. */
static void test_start(void **state)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(300 + (uint64_t)i, ROSA_QK_LINEAR, i & 1 ? ROSA_PRE : ROSA_POST,
						 i & 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		const size_t n = scene.c.channels, cells = operator_cells(&scene.c);
		const float zero = 0;
		struct result result;
		double *mix = must_alloc(cells * sizeof(*mix));

		scene_make(&scene);
		for (size_t c = 0; c < n; c++) {
			scene.weights[4][c] = scene.weights[5][c] = 0;
			scene.weights[7][c] = -3;
			for (size_t d = 0; (i & 4) && d < n; d++)
				scene.weights[6][c * n + d] = c == d;
		}
		run_scene(&scene, 0, &result);
		for (size_t j = 0; j < cells; j++)
			mix[j] = scene.h_numbers[j] / (1 + exp(-3));
		if (scene.fusion == ROSA_PRE)
			expect_near(scene.text, "mix", scene.c.dtype, result.out, mix, cells,
				    scene.c.dtype == ROSA_FLOAT32 ? NEAR_32 : NEAR_16, 0);
		for (size_t j = 0; scene.fusion == ROSA_POST && j < cells; j++) {
			size_t size = scene.c.dtype == ROSA_FLOAT32 ? 4 : 2;

			assert_memory_equal((char *)result.out + j * size, &zero, size);
		}
		free(mix);
		result_free(&result);
		scene_free(&scene);
	}
}

/* sum of gout * out, as the library computes out */
static double loss(const struct scene *scene)
{
	float *out = must_alloc(row_bytes(scene));
	double sum = 0;
	rosa_error err;

	expect_status(scene->text,
		      rosa_layer_forward(&scene->c.options, &scene->c.learning, &scene->layer, scene->c.batch,
					 scene->c.steps, scene->h, out, NULL, &err),
		      ROSA_OK, &err);
	for (size_t i = 0; i < operator_cells(&scene->c); i++)
		sum += (double)out[i] * scene->gout_numbers[i];
	free(out);
	return sum;
}

/* e0, e1, Wout and a0 change no symbol, so the loss is smooth in them. */
static void test_finite_differences(void **state)
{
	static const struct {
		int weight;
		float step; /* wide where the loss is linear */
	} smooth[] = {{4, 0.25f}, {5, 0.25f}, {6, 0.25f}, {7, 0.015625f}};

	for (int fusion = ROSA_POST; fusion <= ROSA_PRE; fusion++) {
		struct scene scene = scene_usual(400, ROSA_QK_NONE, (rosa_fusion)fusion, ROSA_FLOAT32);
		struct result result;

		scene_make(&scene);
		run_scene(&scene, 0, &result);
		for (size_t i = 0; i < COUNT(smooth) - (fusion == ROSA_POST); i++) {
			const int which = smooth[i].weight;
			const size_t count = weight_size(&scene, which);
			double *slopes = must_alloc(count * sizeof(*slopes));

			for (size_t j = 0; j < count; j++) {
				float *weight = &scene.weights[which][j], was = *weight;
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
			expect_near(scene.text, weight_names[which], ROSA_FLOAT32, result.grads[which], slopes, count,
				    1e-4, 0);
			free(slopes);
		}
		result_free(&result);
		scene_free(&scene);
	}
}

/* Asking for one gradient gives the bits that asking for all gives; leaving out the tape or the learning changes
 * nothing in use. */
static void test_parts(void **state)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(500 + (uint64_t)i, (rosa_qk_grad)(i % 4), i / 4 ? ROSA_PRE : ROSA_POST,
						 i % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct result all, part;
		rosa_tape *tape;
		rosa_error err;
		void *out;

		scene.sharing = i % 3 ? ALIGNED : SHARED;
		scene_make(&scene);
		run_scene(&scene, 0, &all);
		out = must_alloc(row_bytes(&scene));
		expect_status(scene.text,
			      rosa_layer_forward(&scene.c.options, NULL, &scene.layer, scene.c.batch, scene.c.steps,
						 scene.h, out, NULL, &err),
			      ROSA_OK, &err);
		assert_memory_equal(out, all.out, row_bytes(&scene));
		expect_status(scene.text,
			      rosa_layer_forward(&scene.c.options, &scene.c.learning, &scene.layer, scene.c.batch,
						 scene.c.steps, scene.h, out, &tape, &err),
			      ROSA_OK, &err);
		assert_memory_equal(out, all.out, row_bytes(&scene));
		for (int w = 0; w < WEIGHTS; w++) {
			rosa_layer_grads one = {.size = sizeof(one)};
			float **const fields[WEIGHTS] = {&one.norm, &one.wq, &one.wk,   &one.wv,
							 &one.e0,   &one.e1, &one.wout, &one.a0};

			result_make(&scene, 0, &part);
			*fields[w] = part.grads[w];
			expect_status(scene.text, rosa_layer_backward(tape, &scene.layer, scene.gout, &one, NULL, &err),
				      ROSA_OK, &err);
			if (memcmp(part.grads[w], all.grads[w], weight_size(&scene, w) * sizeof(float)))
				fail_msg("%s: %s alone is another", scene.text, weight_names[w]);
			result_free(&part);
		}
		result_make(&scene, 0, &part);
		expect_status(scene.text, rosa_layer_backward(tape, &scene.layer, scene.gout, NULL, part.gh, &err),
			      ROSA_OK, &err);
		assert_memory_equal(part.gh, all.gh, row_bytes(&scene));
		expect_status(scene.text, rosa_layer_backward(tape, &scene.layer, scene.gout, NULL, NULL, &err),
			      ROSA_OK, &err);
		result_free(&part);
		rosa_tape_free(tape);
		result_free(&all);
		free(out);
		scene_free(&scene);
	}
}

/* The tape's own account of its bytes is the allocator's, and is no more than it says it is. */
static void test_tape_bytes(void **state)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(600 + (uint64_t)i, (rosa_qk_grad)(i % 4), ROSA_POST,
						 i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct test_memory memory;
		uint16_t *query;
		rosa_tape *tape;
		rosa_error err;
		size_t runs, arrays, rows, most;
		void *out;

		scene.sharing = i % 3 ? ALIGNED : SHARED;
		test_memory_init(&memory);
		scene.c.options.allocator = test_memory_allocator(&memory);
		scene_make(&scene);
		out = must_alloc(row_bytes(&scene));
		query = must_alloc(operator_route_steps(&scene.c) * sizeof(*query));
		expect_status(scene.text,
			      rosa_layer_forward(&scene.c.options, &scene.c.learning, &scene.layer, scene.c.batch,
						 scene.c.steps, scene.h, out, &tape, &err),
			      ROSA_OK, &err);
		assert_int_equal(rosa_tape_bytes(tape), atomic_load(&memory.bytes));
		operator_symbols(&scene.c, scene.want.q, query);
		rows = operator_route_steps(&scene.c) / scene.c.steps;
		runs = rosa_count_runs(rows, scene.c.steps, query, scene.c.options.bits, scene.c.options.fold);
		arrays = i % 4 == ROSA_QK_NONE ? 2 : scene.sharing == SHARED ? 3 : 4;
		most = arrays * row_bytes(&scene) + 2 * operator_route_steps(&scene.c) + 1024;
		if (i % 4 == ROSA_QK_FLIPS)
			most += 2 * runs * ((size_t)scene.c.options.bits + 1);
		assert_true(rosa_tape_bytes(tape) <= most);
		rosa_tape_free(tape);
		assert_int_equal(atomic_load(&memory.bytes), 0);
		free(query);
		free(out);
		scene_free(&scene);
	}
	rosa_tape_free(NULL);
	assert_int_equal(rosa_tape_bytes(NULL), 0);
}

/* -------------------------------------------------------------------------------------------------------- memory -- */

struct passes {
	struct scene *scene;
	struct result *result;
	rosa_tape *tape;
};

static rosa_status forward_with_tape(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct scene *scene = passes->scene;
	rosa_tape *tape = (rosa_tape *)passes; /* anything but what it must become */
	rosa_status status = rosa_layer_forward(&scene->c.options, &scene->c.learning, &scene->layer, scene->c.batch,
						scene->c.steps, scene->h, passes->result->out, &tape, err);

	if (status != ROSA_OK)
		assert_null(tape);
	rosa_tape_free(tape);
	return status;
}

static rosa_status forward_alone(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct scene *scene = passes->scene;

	return rosa_layer_forward(&scene->c.options, &scene->c.learning, &scene->layer, scene->c.batch, scene->c.steps,
				  scene->h, passes->result->out, NULL, err);
}

/* A backward pass that fails adds nothing to any gradient. */
static rosa_status backward(void *context, rosa_error *err)
{
	struct passes *passes = context;
	const struct scene *scene = passes->scene;
	struct result result;
	rosa_status status;

	result_make(scene, 0.125f, &result);
	status = rosa_layer_backward(passes->tape, &scene->layer, scene->gout, &result.all, result.gh, err);
	for (int i = 0; status != ROSA_OK && i < WEIGHTS; i++)
		for (size_t j = 0; j < weight_size(scene, i); j++)
			assert_true(result.grads[i][j] == before(0.125f, j));
	result_free(&result);
	return status;
}

static void test_memory(void **state)
{
	for (int i = 0; i < 8; i++) {
		struct scene scene = scene_usual(700 + (uint64_t)i, (rosa_qk_grad)(i % 4), i % 3 ? ROSA_PRE : ROSA_POST,
						 i / 4 ? ROSA_BFLOAT16 : ROSA_FLOAT32);
		struct test_memory memory;
		struct result result;
		struct passes passes = {.scene = &scene, .result = &result};
		rosa_error err;

		scene.sharing = i % 3 == 1 ? SHARED : ALIGNED;
		scene.c.learning.explore = 0.5f;
		scene.c.learning.flip_share = 0.5f;
		test_memory_init(&memory);
		scene.c.options.allocator = test_memory_allocator(&memory);
		scene_make(&scene);
		result_make(&scene, 0, &result);
		refuse_each_request("forward", &memory, forward_alone, &passes);
		refuse_each_request("forward with tape", &memory, forward_with_tape, &passes);
		expect_status(scene.text,
			      rosa_layer_forward(&scene.c.options, &scene.c.learning, &scene.layer, scene.c.batch,
						 scene.c.steps, scene.h, result.out, &passes.tape, &err),
			      ROSA_OK, &err);
		refuse_each_request("backward", &memory, backward, &passes);
		rosa_tape_free(passes.tape);
		assert_int_equal(atomic_load(&memory.blocks), 0);
		result_free(&result);
		scene_free(&scene);
	}
}

/* ----------------------------------------------------------------------------------------------------- bad input -- */

/* A forward pass that must be refused, its message naming `word`. */
static void refuse_forward(const char *word, const rosa_options *options, const rosa_learning *learning,
			   const rosa_layer *layer, size_t batch, size_t steps, const void *h, void *out)
{
	rosa_tape *tape = (rosa_tape *)out;
	rosa_error err;

	expect_status(word, rosa_layer_forward(options, learning, layer, batch, steps, h, out, &tape, &err),
		      ROSA_EINVAL, &err);
	assert_null(tape);
	must_say(&err, word);
	expect_status(word, rosa_layer_forward(options, learning, layer, batch, steps, h, out, NULL, NULL), ROSA_EINVAL,
		      NULL);
}

static void test_bad_forward(void **state)
{
	struct scene scene = scene_usual(800, ROSA_QK_LINEAR, ROSA_PRE, ROSA_FLOAT32);
	struct result result;
	const rosa_options *options = &scene.c.options;
	const rosa_learning *learning = &scene.c.learning;
	const float **pointers[WEIGHTS];
	rosa_options odd_options;
	rosa_learning odd_learning;
	rosa_layer odd;

	scene_make(&scene);
	result_make(&scene, 0, &result);
#define REFUSE(word, options, learning, layer, batch, steps, h, out)                                                   \
	refuse_forward(word, options, learning, layer, batch, steps, h, out)
#define REFUSE_LAYER(word, change)                                                                                     \
	do {                                                                                                           \
		odd = scene.layer;                                                                                     \
		change;                                                                                                \
		refuse_forward(word, options, learning, &odd, 2, 40, scene.h, result.out);                             \
	} while (0)
	REFUSE("options", NULL, learning, &scene.layer, 2, 40, scene.h, result.out);
	REFUSE("layer", options, learning, NULL, 2, 40, scene.h, result.out);
	REFUSE("h is NULL", options, learning, &scene.layer, 2, 40, NULL, result.out);
	REFUSE("out is NULL", options, learning, &scene.layer, 2, 40, scene.h, NULL);
	REFUSE("overlap", options, learning, &scene.layer, 2, 20, scene.h, (float *)scene.h + 12);
	REFUSE("overlap", options, learning, &scene.layer, 2, 40, scene.h, scene.h);
	REFUSE("batch 0", options, learning, &scene.layer, 0, 40, scene.h, result.out);
	REFUSE("0 steps", options, learning, &scene.layer, 2, 0, scene.h, result.out);
	REFUSE("memory", options, learning, &scene.layer, SIZE_MAX / 16, 40, scene.h, result.out);
	REFUSE("steps", options, learning, &scene.layer, 2, ROSA_MAX_STEPS + 1, scene.h, result.out);
	odd_options = *options;
	odd_options.bits = 5;
	REFUSE("12 channels", &odd_options, learning, &scene.layer, 2, 40, scene.h, result.out);
	odd_options.bits = 17;
	REFUSE("bits is 17", &odd_options, learning, &scene.layer, 2, 40, scene.h, result.out);
	odd_learning = *learning;
	odd_learning.explore = 2;
	REFUSE("explore is 2", options, &odd_learning, &scene.layer, 2, 40, scene.h, result.out);
	REFUSE_LAYER("layer.size is 8", odd.size = 8);
	REFUSE_LAYER("dtype is 1", odd.dtype = ROSA_FLOAT16);
	REFUSE_LAYER("dtype is 9", odd.dtype = (rosa_dtype)9);
	REFUSE_LAYER("fusion is 2", odd.fusion = (rosa_fusion)2);
	REFUSE_LAYER("channels", odd.channels = 0);
	REFUSE_LAYER("channels", odd.channels = SIZE_MAX / 4);
	REFUSE_LAYER("norm_eps is -1", odd.norm_eps = -1);
	REFUSE_LAYER("norm_eps is nan", odd.norm_eps = NAN);
	odd = scene.layer;
	pointers[0] = &odd.norm;
	pointers[1] = &odd.wq;
	pointers[2] = &odd.wk;
	pointers[3] = &odd.wv;
	pointers[4] = &odd.e0;
	pointers[5] = &odd.e1;
	pointers[6] = &odd.wout;
	pointers[7] = &odd.a0;
	for (int i = 0; i < WEIGHTS; i++)
		REFUSE_LAYER(weight_names[i], *pointers[i] = NULL);
	/* an older caller, who does not know of pre fusion, has no a0 */
	REFUSE_LAYER("a0", odd.size = offsetof(rosa_layer, a0));
	result_free(&result);
	scene_free(&scene);
}

static void refuse_backward(const char *word, const rosa_tape *tape, const rosa_layer *layer, const void *gout,
			    const rosa_layer_grads *grads, void *gh)
{
	rosa_error err;

	expect_status(word, rosa_layer_backward(tape, layer, gout, grads, gh, &err), ROSA_EINVAL, &err);
	must_say(&err, word);
}

static void test_bad_backward(void **state)
{
	struct scene scene = scene_usual(900, ROSA_QK_FLIPS, ROSA_PRE, ROSA_FLOAT32);
	struct result result;
	rosa_tape *tape = NULL;
	rosa_layer odd;
	rosa_layer_grads odd_grads;
	rosa_error err;

	scene_make(&scene);
	result_make(&scene, 0, &result);
	must(rosa_layer_forward(&scene.c.options, &scene.c.learning, &scene.layer, scene.c.batch, scene.c.steps,
				scene.h, result.out, &tape, &err),
	     &err);
	refuse_backward("tape", NULL, &scene.layer, scene.gout, &result.all, result.gh);
	refuse_backward("layer", tape, NULL, scene.gout, &result.all, result.gh);
	refuse_backward("gout", tape, &scene.layer, NULL, &result.all, result.gh);
	refuse_backward("overlap", tape, &scene.layer, scene.gout, &result.all, scene.gout);
	odd_grads = result.all;
	odd_grads.size = 0;
	refuse_backward("grads.size is 0", tape, &scene.layer, scene.gout, &odd_grads, result.gh);
	odd = scene.layer;
	odd.channels = 8;
	refuse_backward("channels is 8", tape, &odd, scene.gout, &result.all, result.gh);
	odd = scene.layer;
	odd.dtype = ROSA_BFLOAT16;
	refuse_backward("dtype is 2", tape, &odd, scene.gout, &result.all, result.gh);
	odd = scene.layer;
	odd.fusion = ROSA_POST;
	refuse_backward("fusion is 0", tape, &odd, scene.gout, &result.all, result.gh);
	odd = scene.layer;
	odd.wk = odd.wq;
	refuse_backward("wq == layer.wk is 1", tape, &odd, scene.gout, &result.all, result.gh);
	rosa_tape_free(tape);
	result_free(&result);
	scene_free(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_grid),
	    cmocka_unit_test(test_many_rows),
	    cmocka_unit_test(test_threads),
	    cmocka_unit_test(test_start),
	    cmocka_unit_test(test_finite_differences),
	    cmocka_unit_test(test_parts),
	    cmocka_unit_test(test_tape_bytes),
	    cmocka_unit_test(test_memory),
	    cmocka_unit_test(test_bad_forward),
	    cmocka_unit_test(test_bad_backward),
	};

	return cmocka_run_group_tests_name("layer", tests, NULL, NULL);
}
