/*
 * The rules `linear` and `soft` by which q and k learn, against the oracle of support_qk_oracle.h.
 *
 * Shapes, widths and options turn with a counter. Streams are sticky, so that runs are of several steps and folding
 * matters; steps stand around the sizes of chunks and tiles. Neither the number of threads nor the variant of `soft`
 * may change a bit.
 */
#include "rosa/soft.h"
#include "base/pool.h"
#include "backend/convert.h"

#include "support_memory.h"
#include "support_qk_oracle.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

struct setting {
	rosa_learning learning;
	rosa_dtype dtype;
	size_t batch, steps, routes;
	int bits, fold;
	uint64_t seed;
	char text[200];
};

struct arrays {
	size_t cells, channels;
	void *q, *k, *v, *gy; /* [batch][steps][channels] of dtype */
	float *e0, *e1;
	double *gq, *gk; /* the oracle's */
};

static double random_number(uint64_t *state)
{
	return (double)test_random(state, 2000001) / 500000 - 2;
}

/* A stream that keeps its signs for a few steps; now and then a 0, which is a bit of 0. */
static void fill_sticky(float *x, size_t steps, size_t channels, size_t bits, uint64_t *state)
{
	for (size_t t = 0; t < steps; t++) {
		for (size_t r = 0; r < channels / bits; r++) {
			const int stay = t > 0 && test_random(state, 3) == 0;

			for (size_t c = r * bits; c < (r + 1) * bits; c++) {
				float number = (float)random_number(state);

				if (test_random(state, 50) == 0)
					number = 0;
				if (stay && (number > 0) != (x[(t - 1) * channels + c] > 0))
					number = x[(t - 1) * channels + c];
				x[t * channels + c] = number;
			}
		}
	}
}

static void *narrowed(rosa_dtype dtype, const float *x, size_t count)
{
	void *narrow = test_alloc(count * sizeof(float));

	activations_store(narrow, dtype, x, 0, count);
	return narrow;
}

static double *widened(rosa_dtype dtype, const void *x, size_t count)
{
	float *wide = test_alloc(count * sizeof(*wide));
	double *numbers = test_alloc(count * sizeof(*numbers));

	activations_load(wide, dtype, x, 0, count);
	for (size_t i = 0; i < count; i++)
		numbers[i] = wide[i];
	return numbers;
}

static void make_arrays(struct setting *s, struct arrays *a)
{
	const size_t bits = (size_t)s->bits;
	uint64_t state = s->seed;
	void **const into[] = {&a->q, &a->k, &a->v, &a->gy};
	float *x;

	a->channels = s->routes * bits;
	a->cells = s->batch * s->steps * a->channels;
	x = test_alloc(a->cells * sizeof(*x));
	for (size_t i = 0; i < COUNT(into); i++) {
		for (size_t b = 0; b < s->batch; b++)
			fill_sticky(x + b * s->steps * a->channels, s->steps, a->channels, bits, &state);
		*into[i] = narrowed(s->dtype, x, a->cells);
	}
	a->e0 = test_alloc(a->channels * sizeof(*a->e0));
	a->e1 = test_alloc(a->channels * sizeof(*a->e1));
	for (size_t c = 0; c < a->channels; c++) {
		a->e0[c] = (float)random_number(&state);
		a->e1[c] = (float)random_number(&state);
	}
	a->gq = test_alloc(a->cells * sizeof(*a->gq));
	a->gk = test_alloc(a->cells * sizeof(*a->gk));
	snprintf(
	    s->text, sizeof(s->text),
	    "%s, credit %s, slope %g, suffix %g, %s, batch %zu, %zu steps, %zu routes of %d bits, fold %d, seed %llu",
	    s->learning.qk_grad == ROSA_QK_SOFT ? "soft" : "linear",
	    s->learning.credit == ROSA_CREDIT_ALL ? "all" : "route", (double)s->learning.slope,
	    (double)s->learning.suffix, s->dtype == ROSA_FLOAT32 ? "float32" : "bfloat16", s->batch, s->steps,
	    s->routes, s->bits, s->fold, (unsigned long long)s->seed);
}

/* Returns the size of theta, to judge small errors by. */
static double solve(const struct setting *s, struct arrays *a)
{
	const size_t entry = s->steps * a->channels;
	double *q = widened(s->dtype, a->q, a->cells), *k = widened(s->dtype, a->k, a->cells);
	double *theta = widened(s->dtype, a->gy, a->cells), *p = widened(s->dtype, a->v, a->cells);
	double size = 0;

	for (size_t i = 0; i < a->cells; i++) {
		theta[i] *= (double)a->e1[i % a->channels] - (double)a->e0[i % a->channels];
		p[i] = 1 / (1 + exp(-p[i]));
		size = fmax(size, fabs(theta[i]));
	}
	for (size_t b = 0; b < s->batch; b++) {
		struct qk_case c = {.learning = s->learning,
				    .steps = s->steps,
				    .channels = a->channels,
				    .bits = s->bits,
				    .fold = s->fold,
				    .q = q + b * entry,
				    .k = k + b * entry,
				    .theta = theta + b * entry,
				    .p = p + b * entry};

		qk_oracle(&c, a->gq + b * entry, a->gk + b * entry);
	}
	return size;
}

static rosa_status run_rule(const struct setting *s, const struct arrays *a, unsigned threads, void *gq, void *gk,
			    const rosa_allocator *allocator, rosa_isa isa, rosa_error *err)
{
	const rosa_allocator plain = {NULL, NULL};
	const rosa_read_pass args = {.size = sizeof(args),
				     .dtype = s->dtype,
				     .batch = s->batch,
				     .steps = s->steps,
				     .channels = a->channels,
				     .q = a->q,
				     .k = a->k,
				     .v = a->v,
				     .e0 = a->e0,
				     .e1 = a->e1,
				     .gy = a->gy,
				     .gq = gq,
				     .gk = gk};
	struct backward call = {.args = &args,
				.learning = &s->learning,
				.allocator = allocator ? allocator : &plain,
				.pool = pool_new(&plain, threads),
				.workers = threads,
				.bits = (unsigned)s->bits,
				.routes = s->routes,
				.fold = s->fold != 0};
	rosa_status status;

	assert_non_null(call.pool);
	status = s->learning.qk_grad == ROSA_QK_SOFT ? grad_qk_soft_with(isa, &call, err) : grad_qk_linear(&call, err);
	pool_free(call.pool, &plain);
	return status;
}

static void expect_close(const struct setting *s, const char *what, const void *got, const double *want, size_t count,
			 double size)
{
	double *found = widened(s->dtype, got, count);
	double most = 0;

	for (size_t i = 0; i < count; i++)
		most = fmax(most, fabs(want[i]));
	for (size_t i = 0; i < count; i++) {
		const double own = s->dtype == ROSA_FLOAT32 ? 0 : fabs(want[i]) / 256;

		if (!(fabs(found[i] - want[i]) <= 1e-5 * most + 1e-7 * size + own))
			fail_msg("%s: %s[%zu] is %.9g, want %.9g, the greatest being %.9g", s->text, what, i, found[i],
				 want[i], most);
	}
}

static void check(struct setting *s)
{
	static const unsigned threads[] = {1, 2, 3, 5};
	const rosa_isa best = rosa_isa_best();
	struct arrays a;
	size_t bytes;
	double size;
	void *gq[2], *gk[2];

	make_arrays(s, &a);
	size = solve(s, &a);
	bytes = a.cells * activation_size(s->dtype);
	for (int i = 0; i < 2; i++) {
		gq[i] = test_alloc(bytes);
		gk[i] = test_alloc(bytes);
	}
	assert_int_equal(run_rule(s, &a, 1, gq[0], gk[0], NULL, best, NULL), ROSA_OK);
	expect_close(s, "gq", gq[0], a.gq, a.cells, size);
	expect_close(s, "gk", gk[0], a.gk, a.cells, size);
	for (size_t i = 0; i < COUNT(threads); i++) {
		const rosa_isa isa =
		    rosa_isa_available((rosa_isa)(i % ROSA_ISA_COUNT)) ? (rosa_isa)(i % ROSA_ISA_COUNT) : best;

		memset(gq[1], 0xa5, bytes);
		memset(gk[1], 0xa5, bytes);
		must_for(s->text, run_rule(s, &a, threads[i], gq[1], gk[1], NULL, isa, &err));
		if (memcmp(gq[0], gq[1], bytes) || memcmp(gk[0], gk[1], bytes))
			fail_msg("%s: %u threads and %s give other bits than 1 and %s", s->text, threads[i],
				 rosa_isa_name(isa), rosa_isa_name(best));
	}
	/* one side alone */
	memset(gq[1], 0xa5, bytes);
	memset(gk[1], 0xa5, bytes);
	assert_int_equal(run_rule(s, &a, 2, gq[1], NULL, NULL, best, NULL), ROSA_OK);
	assert_int_equal(run_rule(s, &a, 2, NULL, gk[1], NULL, best, NULL), ROSA_OK);
	assert_int_equal(run_rule(s, &a, 2, NULL, NULL, NULL, best, NULL), ROSA_OK);
	assert_memory_equal(gq[0], gq[1], bytes);
	assert_memory_equal(gk[0], gk[1], bytes);
}

static const size_t grid_steps[] = {1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 200, 300};
static const size_t grid_routes[] = {1, 2, 3, 5, 9};
static const float grid_slopes[] = {0.5f, 1, 2.5f};

static void check_rule(rosa_qk_grad rule)
{
	const size_t rounds = test_rounds(96);

	for (uint64_t i = 0, mark = test_mark(); i < rounds; i++, test_release(mark)) {
		uint64_t turn = i * 77 + 5;
		struct setting s = {.learning = ROSA_LEARNING_INIT, .seed = i};

		s.learning.qk_grad = rule;
		s.learning.credit = i % 2 ? ROSA_CREDIT_ROUTE : ROSA_CREDIT_ALL;
		s.learning.suffix = test_random(&turn, 2) ? 0.5f : 0;
		s.learning.slope = grid_slopes[test_random(&turn, COUNT(grid_slopes))];
		s.dtype = test_random(&turn, 3) ? ROSA_FLOAT32 : ROSA_BFLOAT16;
		s.bits = 1 + (int)(i / 2 % 16);
		s.fold = test_random(&turn, 3) > 0;
		s.batch = 1 + test_random(&turn, 3);
		s.steps = grid_steps[test_random(&turn, COUNT(grid_steps))];
		s.routes = grid_routes[test_random(&turn, COUNT(grid_routes))];
		if (i % 16 == 15) /* more than one block of routes */
			s.routes = 64 / (size_t)s.bits * 2 + 3;
		check(&s);
	}
}

TEST(test_linear)
{
	check_rule(ROSA_QK_LINEAR);
}

TEST(test_soft)
{
	check_rule(ROSA_QK_SOFT);
}

/* More chunks than the grid has: short sequences of many channels and long ones of few are summed in different ways. */
TEST(test_longer)
{
	static const size_t routes[] = {2, 10};

	for (uint64_t i = 0; i < 8; i++) {
		struct setting s = {
		    .learning = ROSA_LEARNING_INIT, .seed = 100 + i, .batch = 1, .steps = 420, .fold = 1};

		s.learning.qk_grad = i & 1 ? ROSA_QK_SOFT : ROSA_QK_LINEAR;
		s.learning.suffix = i & 2 ? 0.25f : 0;
		s.routes = routes[i / 4];
		s.bits = 16;
		check(&s);
	}
}

/* Whatever piece of memory is missing, the call says so, and nothing is lost. */
TEST(test_short_of_memory)
{
	for (int i = 0; i < 4; i++) {
		struct setting s = {.learning = ROSA_LEARNING_INIT, .seed = 1, .batch = 2, .steps = 70, .routes = 5};
		struct test_memory memory;
		rosa_allocator allocator;
		struct arrays a;
		rosa_status status = ROSA_ENOMEM;
		void *g;

		s.learning.qk_grad = i / 2 ? ROSA_QK_SOFT : ROSA_QK_LINEAR;
		s.learning.credit = i % 2 ? ROSA_CREDIT_ROUTE : ROSA_CREDIT_ALL;
		s.bits = 3;
		make_arrays(&s, &a);
		g = test_alloc(2 * a.cells * sizeof(float));
		test_memory_init(&memory);
		allocator = test_memory_allocator(&memory);
		for (long from = 0; status; from++) {
			test_memory_arm(&memory, from, 1);
			status = run_rule(&s, &a, 2, g, (float *)g + a.cells, &allocator, rosa_isa_best(), &err);
			assert_int_equal(memory.blocks, 0);
			if (status)
				expect_status(s.text, status, ROSA_ENOMEM, &err);
			else
				assert_true(from > 3 && memory.refused == 0);
		}
	}
}
