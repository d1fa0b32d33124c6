/*
 * A layer with sources and strength, against its equation in double precision.
 *
 *     y_t = z_t * sum over reads i that found something of  s * gain[row][min(l, 9)] * (bit of v at d ? e1_i : e0_i)
 *
 * The transcription's own gradients are compared with differences of its loss, as far as there are any: a bit of v has
 * none. Inputs are drawn again until no sign is a matter of rounding.
 */
#include "rosatune.h"

#include "rosa/strength.h"
#include "support_operator.h"
#include "support_qk_oracle.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>
#include <stdbool.h>

#define MARGIN   2e-5
#define NEAR     6e-5
#define NORM_EPS 1e-5
#define MOST     8 /* reads of a layer */

enum { NORM, WQ, WK, WV, E0, E1, WOUT, GAIN, GATE_W, GATE_B, WEIGHTS };
static const char *const names[WEIGHTS] = {"norm", "wq", "wk", "wv", "e0", "e1", "wout", "gain", "gate_w", "gate_b"};

/* A layer, its sources, and what it computes. All rows are [batch * steps][channels]. */
struct scene {
	rosa_options options;
	rosa_learning learning;
	size_t batch, steps, channels, sources;
	rosa_places places[ROSA_MAX_SOURCES]; /* tau NULL: own */
	bool gain, gate, shared;
	double scale;

	size_t links, rows, own; /* reads, rows of gain, the source that is the layer's own or `sources` */
	size_t routes[MOST];
	int32_t *tau[MOST], *length[MOST]; /* of each read, [batch * routes][steps] */
	double *w[WEIGHTS], *h, *gout;
	double *u, *q, *k, *v, *y, *z, *out;
	double *g[WEIGHTS], *gh;
	float *floats[WEIGHTS], *h32, *gout32;
	rosa_places given[ROSA_MAX_SOURCES];
	int32_t *block[2 * ROSA_MAX_SOURCES];
};

static size_t cells(const struct scene *s)
{
	return s->batch * s->steps * s->channels;
}

static size_t size_of(const struct scene *s, int which)
{
	const size_t c = s->channels;
	const size_t sizes[WEIGHTS] = {c, c * c, c * c, c * c, s->links * c, s->links * c, c * c, s->rows * ROSA_GAINS,
				       c, 1};

	return sizes[which];
}

/* ------------------------------------------------------------------------------------------------------- forward -- */

/* y = x W^T */
static void multiply(const struct scene *s, const double *w, const double *x, double *y)
{
	const size_t n = s->channels;

	for (size_t r = 0; r < s->batch * s->steps; r++)
		for (size_t i = 0; i < n; i++) {
			double sum = 0;

			for (size_t j = 0; j < n; j++)
				sum += w[i * n + j] * x[r * n + j];
			y[r * n + i] = sum;
		}
}

static double rms(const struct scene *s, size_t row)
{
	double sum = 0;

	for (size_t c = 0; c < s->channels; c++)
		sum += s->h[row * s->channels + c] * s->h[row * s->channels + c];
	return sqrt(sum / (double)s->channels + NORM_EPS);
}

static void project(struct scene *s)
{
	const size_t n = s->channels;

	for (size_t i = 0; i < cells(s); i++)
		s->u[i] = s->h[i] / rms(s, i / n) * s->w[NORM][i % n];
	multiply(s, s->w[WV], s->u, s->v);
	multiply(s, s->w[WQ], s->u, s->q);
	multiply(s, s->w[s->shared ? WQ : WK], s->u, s->k);
}

/* One read at one channel: its place, its row and column of gain. */
struct seen {
	int32_t tau;
	size_t gain; /* element of the table */
	double weight, end;
	size_t value; /* element of v */
	bool bit;
};

static struct seen see(const struct scene *s, size_t link, size_t row, size_t c)
{
	const size_t b = row / s->steps, t = row % s->steps, route = c / (s->channels / s->routes[link]);
	const size_t at = (b * s->routes[link] + route) * s->steps + t;
	const int32_t length = s->length[link][at];
	size_t first = 0;
	struct seen seen = {.tau = s->tau[link][at]};

	for (size_t i = 0; i < link; i++)
		first += s->routes[i];
	seen.gain = (first + route) * ROSA_GAINS + (size_t)(length < 9 ? length : 9);
	seen.weight = s->scale * (s->gain ? s->w[GAIN][seen.gain] : 1);
	if (seen.tau < 0)
		return seen;
	seen.value = (b * s->steps + (size_t)seen.tau) * s->channels + c;
	seen.bit = s->v[seen.value] > 0;
	seen.end = s->w[seen.bit ? E1 : E0][link * s->channels + c];
	return seen;
}

static void forward(struct scene *s)
{
	const size_t n = s->channels;

	project(s);
	for (size_t row = 0; row < s->batch * s->steps; row++) {
		double sum = s->w[GATE_B][0];

		for (size_t c = 0; c < n; c++)
			sum += s->u[row * n + c] * s->w[GATE_W][c];
		s->z[row] = s->gate ? 2 / (1 + exp(-sum)) : 1;
		for (size_t c = 0; c < n; c++) {
			s->y[row * n + c] = 0;
			for (size_t link = 0; link < s->links; link++) {
				const struct seen seen = see(s, link, row, c);

				if (seen.tau >= 0)
					s->y[row * n + c] += s->z[row] * seen.weight * seen.end;
			}
		}
	}
	multiply(s, s->w[WOUT], s->y, s->out);
}

static double loss(struct scene *s)
{
	double sum = 0;

	forward(s);
	for (size_t i = 0; i < cells(s); i++)
		sum += s->out[i] * s->gout[i];
	return sum;
}

/* ------------------------------------------------------------------------------------------------------ backward -- */

/* gw += gy^T x, gx += gy W */
static void multiply_back(const struct scene *s, const double *w, const double *x, const double *gy, double *gw,
			  double *gx)
{
	const size_t n = s->channels;

	for (size_t r = 0; r < s->batch * s->steps; r++)
		for (size_t i = 0; i < n; i++)
			for (size_t j = 0; j < n; j++) {
				gw[i * n + j] += gy[r * n + i] * x[r * n + j];
				gx[r * n + j] += gy[r * n + i] * w[i * n + j];
			}
}

static double slope(const struct scene *s, double v)
{
	const double p = 1 / (1 + exp(-v));

	return s->learning.v_grad == ROSA_V_STRAIGHT ? fabs(v) < 1 : p * (1 - p);
}

/* The gradients of q and k of the own source, whose first read is `link`; gy is that of the sum of reads. */
static void own_backward(struct scene *s, size_t link, const double *gy, double *gu)
{
	const size_t n = s->channels, all = cells(s), entry = s->steps * n;
	double *theta = must_alloc(all * sizeof(*theta)), *p = must_alloc(all * sizeof(*p));
	double *gq = must_alloc(all * sizeof(*gq)), *gk = must_alloc(all * sizeof(*gk));

	for (size_t i = 0; i < all; i++) {
		const size_t c = i % n;

		theta[i] = gy[i] * see(s, link, i / n, c).weight * (s->w[E1][link * n + c] - s->w[E0][link * n + c]);
		p[i] = 1 / (1 + exp(-s->v[i]));
	}
	for (size_t b = 0; b < s->batch; b++) {
		const struct qk_case one = {.learning = s->learning,
					    .steps = s->steps,
					    .channels = n,
					    .bits = s->options.bits,
					    .fold = s->options.fold,
					    .q = s->q + b * entry,
					    .k = s->k + b * entry,
					    .theta = theta + b * entry,
					    .p = p + b * entry};

		qk_oracle(&one, gq + b * entry, gk + b * entry);
	}
	multiply_back(s, s->w[WQ], s->u, gq, s->g[WQ], gu);
	multiply_back(s, s->w[s->shared ? WQ : WK], s->u, gk, s->g[s->shared ? WQ : WK], gu);
	free(theta);
	free(p);
	free(gq);
	free(gk);
}

static void backward(struct scene *s)
{
	const size_t n = s->channels, all = cells(s);
	double *gy = must_alloc(all * sizeof(*gy)), *gv = must_alloc(all * sizeof(*gv));
	double *gu = must_alloc(all * sizeof(*gu));

	memset(gy, 0, all * sizeof(*gy));
	memset(gv, 0, all * sizeof(*gv));
	memset(gu, 0, all * sizeof(*gu));
	for (int i = 0; i < WEIGHTS; i++)
		memset(s->g[i], 0, size_of(s, i) * sizeof(**s->g));
	multiply_back(s, s->w[WOUT], s->y, s->gout, s->g[WOUT], gy);
	for (size_t row = 0; row < s->batch * s->steps; row++) {
		double ga = 0;

		for (size_t c = 0; c < n; c++)
			ga += gy[row * n + c] * s->y[row * n + c] * (1 - s->z[row] / 2);
		for (size_t c = 0; c < n; c++) {
			gy[row * n + c] *= s->z[row];
			if (!s->gate)
				continue;
			s->g[GATE_W][c] += ga * s->u[row * n + c];
			gu[row * n + c] += ga * s->w[GATE_W][c];
		}
		s->g[GATE_B][0] += s->gate ? ga : 0;
	}
	for (size_t link = 0; link < s->links; link++)
		for (size_t i = 0; i < all; i++) {
			const struct seen seen = see(s, link, i / n, i % n);
			const size_t end = link * n + i % n;

			if (seen.tau < 0)
				continue;
			s->g[seen.bit ? E1 : E0][end] += seen.weight * gy[i];
			s->g[GAIN][seen.gain] += s->scale * gy[i] * seen.end;
			gv[seen.value] += seen.weight * gy[i] * (s->w[E1][end] - s->w[E0][end]);
		}
	if (s->own < s->sources && s->learning.qk_grad != ROSA_QK_NONE) {
		size_t link = 0;

		for (size_t i = 0; i < s->own; i++)
			link += s->places[i].links;
		own_backward(s, link, gy, gu);
	}
	for (size_t i = 0; i < all; i++)
		gv[i] *= slope(s, s->v[i]);
	multiply_back(s, s->w[WV], s->u, gv, s->g[WV], gu);
	for (size_t row = 0; row < s->batch * s->steps; row++) {
		const double scale = 1 / rms(s, row);
		double dot = 0;

		for (size_t c = 0; c < n; c++) {
			const size_t i = row * n + c;

			s->g[NORM][c] += gu[i] * s->h[i] * scale;
			dot += gu[i] * s->w[NORM][c] * s->h[i];
		}
		for (size_t c = 0; c < n; c++) {
			const size_t i = row * n + c;

			s->gh[i] = scale * (gu[i] * s->w[NORM][c] - s->h[i] * dot * scale * scale / (double)n);
		}
	}
	free(gy);
	free(gv);
	free(gu);
}

/* -------------------------------------------------------------------------------------------------------- making -- */

/* Places of a source: those of its own symbols, or random ones. */
static void find_places(struct scene *s, size_t source, uint64_t *state, size_t link)
{
	const rosa_places *is = &s->places[source];
	const size_t routes = is->routes, count = s->batch * routes * s->steps, all = is->links * count;
	int32_t *tau = must_alloc(all * sizeof(*tau)), *length = must_alloc(all * sizeof(*length));

	if (source == s->own) {
		const struct operator_case c = {s->options, s->learning, ROSA_FLOAT32, s->batch, s->steps, s->channels};
		uint16_t *query = must_alloc(count * sizeof(*query)), *key = must_alloc(count * sizeof(*key));
		int32_t *first = must_alloc(4 * count * sizeof(*first));
		rosa_options plain = s->options;
		rosa_error err;

		operator_symbols(&c, s->q, query);
		operator_symbols(&c, s->k, key);
		plain.delay = 0;
		must(rosa_retrieve(&s->options, s->batch * routes, s->steps, query, key, first, first + count, NULL,
				   &err),
		     &err);
		must(rosa_retrieve(&plain, s->batch * routes, s->steps, query, key, first + 2 * count,
				   first + 3 * count, NULL, &err),
		     &err);
		must(rosa_chain(s->batch * routes, s->steps, (int)is->links, first, first + count, first + 2 * count,
				first + 3 * count, tau, length, &err),
		     &err);
		free(query);
		free(key);
		free(first);
	} else {
		for (size_t i = 0; i < all; i++) {
			tau[i] = (int32_t)test_random(state, s->steps + 1) - 1;
			length[i] = tau[i] < 0                       ? 0
				    : (int32_t)test_random(state, 2) ? (int32_t)test_random(state, 12)
								     : 300;
		}
	}
	for (size_t i = 0; i < is->links; i++) {
		s->tau[link + i] = tau + i * count;
		s->length[link + i] = length + i * count;
	}
	s->given[source] = (rosa_places){routes, is->links, source == s->own ? NULL : tau, length};
	s->block[2 * source] = tau;
	s->block[2 * source + 1] = length;
}

static void draw(struct scene *s, uint64_t seed)
{
	uint64_t state = seed;
	double **rows[] = {&s->h, &s->gout, &s->u, &s->q, &s->k, &s->v, &s->y, &s->z, &s->out, &s->gh};
	size_t link = 0;

	for (int i = 0; i < WEIGHTS; i++) {
		const size_t count = size_of(s, i);

		s->w[i] = random_rows(&state, ROSA_FLOAT32, count,
				      i == WQ || i == WK || i == WV || i == WOUT ? 1 / sqrt((double)s->channels) : 0.5);
		s->g[i] = must_alloc(count * sizeof(**s->g));
	}
	for (size_t i = 0; i < size_of(s, NORM); i++)
		s->w[NORM][i] = operator_round(ROSA_FLOAT32, 1 + s->w[NORM][i] / 2);
	for (size_t i = 0; i < size_of(s, GAIN); i++)
		s->w[GAIN][i] = operator_round(ROSA_FLOAT32, 1 + s->w[GAIN][i]);
	for (size_t i = 0; i < COUNT(rows); i++)
		*rows[i] = random_rows(&state, ROSA_FLOAT32, cells(s), 1);
	/* few different inputs, so that symbols occur again */
	for (size_t row = 0; row < s->batch * s->steps; row++)
		memcpy(s->h + row * s->channels, s->h + test_random(&state, row < 5 ? row + 1 : 5) * s->channels,
		       s->channels * sizeof(*s->h));
	project(s);
	for (size_t i = 0; i < s->sources; i++) {
		find_places(s, i, &state, link);
		link += s->places[i].links;
	}
}

static void drop(struct scene *s)
{
	double *rows[] = {s->h, s->gout, s->u, s->q, s->k, s->v, s->y, s->z, s->out, s->gh};

	for (int i = 0; i < WEIGHTS; i++) {
		free(s->w[i]);
		free(s->g[i]);
	}
	for (size_t i = 0; i < COUNT(rows); i++)
		free(rows[i]);
	for (size_t i = 0; i < 2 * s->sources; i++)
		free(s->block[i]);
}

static bool is_clear(const struct scene *s)
{
	for (size_t i = 0; i < cells(s); i++)
		if (fabs(s->v[i]) < MARGIN || fabs(fabs(s->v[i]) - 1) < MARGIN ||
		    (s->own < s->sources && (fabs(s->q[i]) < MARGIN || fabs(s->k[i]) < MARGIN)))
			return false;
	return true;
}

static void make(struct scene *s, uint64_t seed)
{
	s->own = s->sources;
	s->links = s->rows = 0;
	for (size_t i = 0; i < s->sources; i++) {
		if (!s->places[i].tau)
			s->own = i;
		for (size_t link = 0; link < s->places[i].links; link++)
			s->routes[s->links++] = s->places[i].routes;
		s->rows += s->places[i].links * s->places[i].routes;
	}
	for (uint64_t again = 0;; again++) {
		draw(s, seed + (again << 32));
		if (is_clear(s))
			break;
		drop(s);
	}
	for (int i = 0; i < WEIGHTS; i++)
		s->floats[i] = to_floats(s->w[i], size_of(s, i));
	s->h32 = to_floats(s->h, cells(s));
	s->gout32 = to_floats(s->gout, cells(s));
}

static void scene_free(struct scene *s)
{
	drop(s);
	for (int i = 0; i < WEIGHTS; i++)
		free(s->floats[i]);
	free(s->h32);
	free(s->gout32);
}

static rosa_layer layer_of(const struct scene *s)
{
	const bool own = s->own < s->sources;

	return (rosa_layer){.size = sizeof(rosa_layer),
			    .channels = s->channels,
			    .norm_eps = (float)NORM_EPS,
			    .norm = s->floats[NORM],
			    .wq = own ? s->floats[WQ] : NULL,
			    .wk = own ? s->floats[s->shared ? WQ : WK] : NULL,
			    .wv = s->floats[WV],
			    .e0 = s->floats[E0],
			    .e1 = s->floats[E1],
			    .wout = s->floats[WOUT],
			    .sources = s->sources,
			    .places = s->given,
			    .gain = s->gain ? s->floats[GAIN] : NULL,
			    .gate_w = s->gate ? s->floats[GATE_W] : NULL,
			    .gate_b = s->gate ? s->floats[GATE_B] : NULL,
			    .scale = (float)s->scale};
}

/* What the library makes of it. */
struct result {
	float *out, *gh, *g[WEIGHTS];
};

static struct result run(const struct scene *s)
{
	const rosa_layer layer = layer_of(s);
	struct result r = {must_alloc(cells(s) * sizeof(float)), must_alloc(cells(s) * sizeof(float)), {NULL}};
	rosa_tape *tape;
	rosa_error err;

	for (int i = 0; i < WEIGHTS; i++) {
		r.g[i] = must_alloc(size_of(s, i) * sizeof(float));
		memset(r.g[i], 0, size_of(s, i) * sizeof(float));
	}
	const rosa_layer_grads grads = {.size = sizeof(grads),
					.norm = r.g[NORM],
					.wq = r.g[WQ],
					.wk = r.g[WK],
					.wv = r.g[WV],
					.e0 = r.g[E0],
					.e1 = r.g[E1],
					.wout = r.g[WOUT],
					.gain = r.g[GAIN],
					.gate_w = r.g[GATE_W],
					.gate_b = r.g[GATE_B]};

	must(rosa_layer_forward(&s->options, &s->learning, &layer, s->batch, s->steps, s->h32, r.out, &tape, &err),
	     &err);
	must(rosa_layer_backward(tape, &layer, s->gout32, &grads, r.gh, &err), &err);
	rosa_tape_free(tape);
	return r;
}

static void result_free(struct result *r)
{
	free(r->out);
	free(r->gh);
	for (int i = 0; i < WEIGHTS; i++)
		free(r->g[i]);
}

/* --------------------------------------------------------------------------------------------------------- tests -- */

static struct scene scene_of(size_t i)
{
	struct scene s = {.options = ROSA_OPTIONS_INIT,
			  .learning = ROSA_LEARNING_INIT,
			  .batch = 1 + i % 3,
			  .steps = 3 + i % 4 * 17,
			  .channels = i % 2 ? 12 : 80,
			  .gain = i % 3 != 0,
			  .gate = i % 4 != 0,
			  .shared = true,
			  .scale = i % 5 ? 0.7 : 1};
	static const int32_t none;
	const rosa_places one = {1, 1, &none, NULL}, chain = {1, 3, &none, NULL},
			  routes = {s.channels / 4, 2, &none, NULL}, own = {s.channels / 4, 2, NULL, NULL};
	const rosa_places choices[][3] = {
	    {one, one, one}, {chain, one, one}, {routes, chain, one}, {own, one, one}, {chain, own, one}};
	static const size_t counts[] = {1, 1, 2, 1, 2};

	s.options.bits = 4;
	s.options.threads = 1 + (int)(i % 2);
	s.options.delay = i % 2 ? 3 : 0;
	s.learning.v_grad = i % 2 ? ROSA_V_STRAIGHT : ROSA_V_SIGMOID;
	s.learning.qk_grad = i % 7 == 0 ? ROSA_QK_NONE : ROSA_QK_LINEAR;
	s.scale = (double)(float)s.scale;
	s.sources = counts[i % 5];
	memcpy(s.places, choices[i % 5], s.sources * sizeof(*s.places));
	if (i % 10 == 3) {
		s.shared = false;
		s.places[0].links = 1;
	}
	return s;
}

static void test_equation(void **state)
{
	for (size_t i = 0; i < test_rounds(40); i++) {
		struct scene s = scene_of(i);
		struct result r;
		char how[32];
		double least;

		make(&s, i);
		forward(&s);
		backward(&s);
		r = run(&s);
		snprintf(how, sizeof(how), "scene %zu", i);
		least = 1e-3 * norm_of(s.gout, cells(&s));
		expect_near(how, "out", ROSA_FLOAT32, r.out, s.out, cells(&s), NEAR, 0);
		expect_near(how, "gh", ROSA_FLOAT32, r.gh, s.gh, cells(&s), NEAR, least);
		for (int w = 0; w < WEIGHTS; w++)
			if (w != GAIN || s.gain)
				expect_near(how, names[w], ROSA_FLOAT32, r.g[w], s.g[w], size_of(&s, w), NEAR, least);
		result_free(&r);
		scene_free(&s);
	}
}

/* The transcription's gradients are those of its loss, where it has any. With e0 = e1 the bits do not matter, and the
 * input's gradient is one too: that of the gate. */
static void test_differences(void **state)
{
	static const int smooth[] = {E0, E1, WOUT, GAIN, GATE_W, GATE_B};

	for (size_t i = 0; i < 10; i++) {
		struct scene s = scene_of(i);
		uint64_t turn = i;

		s.learning.qk_grad = ROSA_QK_NONE;
		make(&s, i);
		for (int again = 0; again < 2; again++) {
			if (again)
				memcpy(s.w[E0], s.w[E1], size_of(&s, E0) * sizeof(double));
			forward(&s);
			backward(&s);
			for (size_t j = 0; j < 60; j++) {
				const bool input = again && j % 2;
				const int w = smooth[test_random(&turn, COUNT(smooth))];
				const size_t at = test_random(&turn, input ? cells(&s) : size_of(&s, w));
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
						 input ? "h" : names[w], at, got, want);
			}
			forward(&s);
		}
		scene_free(&s);
	}
}

/* Threads change nothing, and an own source reads what the same places read when they are given. */
static void test_same_bits(void **state)
{
	for (size_t i = 0; i < 10; i++) {
		struct scene s = scene_of(i);
		struct result one, many, given;

		make(&s, i);
		s.options.threads = 1;
		one = run(&s);
		s.options.threads = 3;
		many = run(&s);
		assert_memory_equal(one.out, many.out, cells(&s) * sizeof(float));
		assert_memory_equal(one.gh, many.gh, cells(&s) * sizeof(float));
		for (int w = 0; w < WEIGHTS; w++)
			assert_memory_equal(one.g[w], many.g[w], size_of(&s, w) * sizeof(float));
		result_free(&many);
		if (s.own < s.sources) {
			s.given[s.own].tau = s.block[2 * s.own];
			s.own = s.sources;
			given = run(&s);
			assert_memory_equal(one.out, given.out, cells(&s) * sizeof(float));
			for (int w = E0; w < WEIGHTS; w++)
				assert_memory_equal(one.g[w], given.g[w], size_of(&s, w) * sizeof(float));
			result_free(&given);
		}
		result_free(&one);
		scene_free(&s);
	}
}

/* At the start nothing is injected, in any bit. */
static void test_zero_start(void **state)
{
	struct scene s = scene_of(6);
	struct result r;

	make(&s, 1);
	for (int w = E0; w <= E1; w++)
		memset(s.floats[w], 0, size_of(&s, w) * sizeof(float));
	r = run(&s);
	for (size_t i = 0; i < cells(&s); i++)
		assert_true(r.out[i] == 0);
	result_free(&r);
	scene_free(&s);
}

static void test_refusals(void **state)
{
	struct scene s = scene_of(4);
	rosa_places places[ROSA_MAX_SOURCES];
	rosa_layer good, bad;
	rosa_error err;
	float *out;

	make(&s, 2);
	good = layer_of(&s);
	out = must_alloc(cells(&s) * sizeof(*out));
#define REFUSED(word, change)                                                                                          \
	do {                                                                                                           \
		memcpy(places, s.given, sizeof(places));                                                               \
		bad = good;                                                                                            \
		bad.places = places;                                                                                   \
		change;                                                                                                \
		expect_status(                                                                                         \
		    word, rosa_layer_forward(&s.options, &s.learning, &bad, s.batch, s.steps, s.h32, out, NULL, &err), \
		    ROSA_EINVAL, &err);                                                                                \
		if (!strstr(err.message, word))                                                                        \
			fail_msg("'%s' is not in: %s", word, err.message);                                             \
	} while (0)
	REFUSED("sources", bad.sources = ROSA_MAX_SOURCES + 1);
	REFUSED("places is NULL", bad.places = NULL);
	REFUSED("routes", places[0].routes = s.channels + 1);
	REFUSED("links", places[0].links = 0);
	REFUSED("links", places[0].links = ROSA_MAX_LINKS + 1);
	REFUSED("length", places[0].length = NULL);
	REFUSED("one own", places[0].tau = NULL; places[0].routes = places[1].routes);
	REFUSED("channels / bits", places[1].routes = 1);
	REFUSED("chain", bad.wk = s.floats[WK]);
	REFUSED("gate_b", bad.gate_b = NULL; bad.gate_w = s.floats[GATE_W]);
	REFUSED("scale", bad.scale = -1);
	s.block[0][1] = (int32_t)s.steps;
	REFUSED("below", (void)0);
	free(out);
	scene_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_equation),   cmocka_unit_test(test_differences), cmocka_unit_test(test_same_bits),
	    cmocka_unit_test(test_zero_start), cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests_name("strength", tests, NULL, NULL);
}
