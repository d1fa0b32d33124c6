/*
 * A layer with sources and strength, against its equation (support_layer.h).
 *
 * The gradients of the equation are compared with differences of its loss, as far as there are any: a bit of v has
 * none.
 */
#include "support_layer.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define NEAR 6e-5

static double loss(struct layer_scene *s)
{
	double sum = 0;

	oracle_layer_forward(s);
	for (size_t i = 0; i < operator_cells(&s->c); i++)
		sum += s->out[i] * s->gout[i];
	return sum;
}

static struct layer_scene scene_of(size_t i)
{
	static const size_t counts[] = {1, 1, 2, 1, 2};
	static const int32_t some;
	const size_t channels = i % 2 ? 12 : 80;
	const rosa_places one = {1, 1, &some, NULL}, chain = {1, 3, &some, NULL},
			  routes = {channels / 4, 2, &some, NULL}, own = {channels / 4, 2, NULL, NULL};
	const rosa_places choices[][2] = {{one, one}, {chain, one}, {routes, chain}, {own, one}, {chain, own}};
	struct layer_scene s = layer_start(i);

	s.c.batch = 1 + i % 3;
	s.c.steps = 3 + i % 4 * 17;
	s.c.channels = channels;
	s.c.options.bits = 4;
	s.c.options.threads = 1 + (int)(i % 2);
	s.c.options.delay = i % 2 ? 3 : 0;
	s.c.learning.v_grad = i % 2 ? ROSA_V_STRAIGHT : ROSA_V_SIGMOID;
	s.c.learning.qk_grad = i % 7 == 0 ? ROSA_QK_NONE : ROSA_QK_LINEAR;
	s.gain = i % 3 != 0;
	s.gate = i % 4 != 0;
	s.scale = i % 5 ? 0.7f : 1;
	s.sharing = i % 10 == 3 ? SEPARATE : SHARED;
	s.sources = counts[i % 5];
	memcpy(s.places, choices[i % 5], s.sources * sizeof(*s.places));
	if (s.sharing == SEPARATE)
		s.places[0].links = 1;
	return s;
}

TEST(test_equation)
{
	for (size_t i = 0, mark = test_mark(); i < test_rounds(40); i++, test_release(mark)) {
		struct layer_scene s = scene_of(i);

		layer_make(&s);
		layer_compare(&s, 0, NEAR);
	}
}

/* The transcription's gradients are those of its loss, where it has any. With e0 = e1 the bits do not matter, and the
 * input's gradient is one too: that of the gate. */
TEST(test_differences)
{
	static const int smooth[] = {E0, E1, WOUT, GAIN, GATE_W, GATE_B};

	for (size_t i = 0; i < 10; i++) {
		struct layer_scene s = scene_of(i);
		uint64_t turn = i;

		s.c.learning.qk_grad = ROSA_QK_NONE;
		layer_make(&s);
		for (int again = 0; again < 2; again++) {
			if (again)
				memcpy(s.w[E0], s.w[E1], layer_weight_size(&s, E0) * sizeof(double));
			oracle_layer_forward(&s);
			oracle_layer_backward(&s);
			for (size_t j = 0; j < 60; j++) {
				const bool input = again && j % 2;
				const int w = smooth[test_random(&turn, COUNT(smooth))];
				const size_t at =
				    test_random(&turn, input ? operator_cells(&s.c) : layer_weight_size(&s, w));
				double *x = input ? &s.h[at] : &s.w[w][at], was = *x, up, down, want;
				const double step = 1e-5, got = input ? s.gh[at] : s.g[w][at];

				if ((w == GAIN && !s.gain) || (!s.gate && (w == GATE_W || w == GATE_B)))
					continue;
				*x = was + step;
				up = loss(&s);
				*x = was - step;
				down = loss(&s);
				*x = was;
				want = (up - down) / (2 * step);
				if (fabs(got - want) > 1e-5 * (1 + fabs(want)))
					fail_msg("scene %zu: %s %zu: gradient %g, difference %g", i,
						 input ? "h" : weight_names[w], at, got, want);
			}
			oracle_layer_forward(&s);
		}
	}
}

/* Threads change nothing, and an own source reads what the same places read when they are given. */
TEST(test_same_bits)
{
	for (size_t i = 0; i < 10; i++) {
		struct layer_scene s = scene_of(i);
		struct layer_result one, many, given;

		layer_make(&s);
		s.c.options.threads = 1;
		one = layer_run(&s, 0);
		s.c.options.threads = 3;
		many = layer_run(&s, 0);
		layer_expect_same(&s, &one, &many);
		if (s.own == s.sources)
			continue;
		s.given[s.own].tau = s.tau[s.links - s.places[s.own].links]; /* the last source */
		s.layer.wq = s.layer.wk = NULL;
		given = layer_run(&s, 0);
		assert_memory_equal(one.out, given.out, layer_row_bytes(&s));
		for (int w = E0; w < WEIGHTS; w++)
			assert_memory_equal(one.g[w], given.g[w], layer_weight_size(&s, w) * sizeof(float));
	}
}

/* At the start nothing is injected, in any bit. */
TEST(test_zero_start)
{
	struct layer_scene s = scene_of(6);
	struct layer_result r;

	layer_make(&s);
	for (int w = E0; w <= E1; w++)
		memset(s.floats[w], 0, layer_weight_size(&s, w) * sizeof(float));
	r = layer_run(&s, 0);
	for (size_t i = 0; i < operator_cells(&s.c); i++)
		assert_true(((float *)r.out)[i] == 0);
}

TEST(test_refusals)
{
	struct layer_scene s = scene_of(4);
	rosa_places places[ROSA_MAX_SOURCES];
	rosa_layer bad;
	float *out;

	layer_make(&s);
	out = test_alloc(operator_cells(&s.c) * sizeof(*out));
#define REFUSED(word, change)                                                                                          \
	do {                                                                                                           \
		memcpy(places, s.given, sizeof(places));                                                               \
		bad = s.layer;                                                                                         \
		bad.places = places;                                                                                   \
		change;                                                                                                \
		must_fail(rosa_layer_forward(&s.c.options, &s.c.learning, &bad, s.c.batch, s.c.steps, s.h_rows, out,   \
					     NULL, &err),                                                              \
			  ROSA_EINVAL, word);                                                                          \
	} while (0)
	REFUSED("sources", bad.sources = ROSA_MAX_SOURCES + 1);
	REFUSED("places is NULL", bad.places = NULL);
	REFUSED("routes", places[0].routes = s.c.channels + 1);
	REFUSED("links", places[0].links = 0);
	REFUSED("links", places[0].links = ROSA_MAX_LINKS + 1);
	REFUSED("length", places[0].length = NULL);
	REFUSED("one own", places[0].tau = NULL; places[0].routes = places[1].routes);
	REFUSED("channels / bits", places[1].routes = 1);
	REFUSED("chain", bad.wk = s.floats[WK]);
	REFUSED("gate_b", bad.gate_b = NULL; bad.gate_w = s.floats[GATE_W]);
	REFUSED("scale", bad.scale = -1);
	s.tau[0][1] = (int32_t)s.c.steps;
	REFUSED("below", (void)0);
}
