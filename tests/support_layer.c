/*
 * A layer, straight from its equations:
 *
 *     y_t = z_t * sum over reads i that found something of  s * gain[row][min(l, 9)] * (bit of v at d ? e1_i : e0_i)
 *
 * and inj = Wout y. The paper's layer is the one read of its own q and k, without strength. Rows of the input are drawn
 * from a small vocabulary, as embeddings are, so that equal tokens have equal symbols and there is something to find.
 * Symbols depend on signs: a number so near to 0 that its sign is a matter of rounding would make two right answers, so
 * inputs are drawn again until there is none.
 */
#include "support_layer.h"

#include "oracle.h"
#include "support_qk_oracle.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

#define MARGIN   2e-5 /* of a sign, where numbers are about 1 */
#define TOKENS   7
#define NORM_EPS 1e-5

const char *const weight_names[WEIGHTS] = {"norm", "wq", "wk",   "wv",     "e0",    "e1",
					   "wout", "a0", "gain", "gate_w", "gate_b"};

size_t layer_weight_size(const struct layer_scene *s, int which)
{
	const size_t n = s->c.channels;
	const size_t sizes[WEIGHTS] = {[NORM] = n,
				       [WQ] = n * n,
				       [WK] = n * n,
				       [WV] = n * n,
				       [E0] = s->links * n,
				       [E1] = s->links * n,
				       [WOUT] = n * n,
				       [A0] = n,
				       [GAIN] = s->rows * ROSA_GAINS,
				       [GATE_W] = n,
				       [GATE_B] = 1};

	return sizes[which];
}

size_t layer_row_bytes(const struct layer_scene *s)
{
	return operator_cells(&s->c) * (s->c.dtype == ROSA_FLOAT32 ? 4 : 2);
}

static double *zeros(size_t count)
{
	return test_zeros(count, sizeof(double));
}

static double logistic(double x)
{
	return 1 / (1 + exp(-x));
}

/* ------------------------------------------------------------------------------------------------------- forward -- */

/* x W^T */
static double *multiply(const struct layer_scene *s, const double *w, const double *x)
{
	const size_t n = s->c.channels;
	double *y = zeros(operator_cells(&s->c));

	for (size_t i = 0; i < operator_cells(&s->c); i++)
		for (size_t j = 0; j < n; j++)
			y[i] += w[i % n * n + j] * x[i / n * n + j];
	return y;
}

static double rms(const struct layer_scene *s, size_t row)
{
	const size_t n = s->c.channels;
	double sum = 0;

	for (size_t c = 0; c < n; c++)
		sum += s->h[row * n + c] * s->h[row * n + c];
	return sqrt(sum / (double)n + (float)NORM_EPS);
}

static void project(struct layer_scene *s)
{
	const size_t n = s->c.channels, cells = operator_cells(&s->c);

	s->u = zeros(cells);
	for (size_t i = 0; i < cells; i++)
		s->u[i] = s->h[i] / rms(s, i / n) * s->w[NORM][i % n];
	s->q = multiply(s, s->w[WQ], s->u);
	s->k = multiply(s, s->w[s->sharing == SHARED ? WQ : WK], s->u);
	s->v = multiply(s, s->w[WV], s->u);
	s->margin = INFINITY;
	for (size_t i = 0; i < cells; i++) {
		s->margin = fmin(s->margin, fabs(s->v[i]));
		if (s->c.learning.v_grad == ROSA_V_STRAIGHT)
			s->margin = fmin(s->margin, fabs(fabs(s->v[i]) - 1));
		if (s->own < s->sources)
			s->margin = fmin(s->margin, fmin(fabs(s->q[i]), fabs(s->k[i])));
	}
	operator_hand_on(&s->c, s->q);
	operator_hand_on(&s->c, s->k);
	operator_hand_on(&s->c, s->v);
}

/* One read at one channel: its place, its row and column of gain. */
struct seen {
	int32_t tau;
	size_t gain; /* element of the table */
	double weight, end;
	size_t value; /* element of v */
	bool bit;
};

static struct seen see(const struct layer_scene *s, size_t link, size_t cell)
{
	const size_t n = s->c.channels, steps = s->c.steps, c = cell % n, t = cell / n % steps, b = cell / n / steps;
	const size_t route = c / (n / s->routes[link]), at = (b * s->routes[link] + route) * steps + t;
	const int32_t length = s->length[link][at];
	size_t first = 0;
	struct seen seen = {.tau = s->tau[link][at]};

	for (size_t i = 0; i < link; i++)
		first += s->routes[i];
	seen.gain = (first + route) * ROSA_GAINS + (size_t)(length < 9 ? length : 9);
	seen.weight = s->scale * (s->gain ? s->w[GAIN][seen.gain] : 1);
	if (seen.tau < 0)
		return seen;
	seen.value = (b * steps + (size_t)seen.tau) * n + c;
	seen.bit = s->v[seen.value] > 0;
	seen.end = s->w[seen.bit ? E1 : E0][link * n + c];
	return seen;
}

/* The share of inj in what a layer gives. */
static double share(const struct layer_scene *s, size_t cell)
{
	return s->fusion == ROSA_PRE ? logistic(s->w[A0][cell % s->c.channels]) : 1;
}

void oracle_layer_forward(struct layer_scene *s)
{
	const size_t n = s->c.channels, cells = operator_cells(&s->c);

	project(s);
	s->y = zeros(cells);
	s->z = zeros(cells / n);
	s->out = zeros(cells);
	for (size_t row = 0; row < cells / n; row++) {
		double sum = s->w[GATE_B][0];

		for (size_t c = 0; c < n; c++)
			sum += s->u[row * n + c] * s->w[GATE_W][c];
		s->z[row] = s->gate ? 2 * logistic(sum) : 1;
	}
	for (size_t link = 0; link < s->links; link++)
		for (size_t i = 0; i < cells; i++) {
			const struct seen seen = see(s, link, i);

			if (seen.tau >= 0)
				s->y[i] += s->z[i / n] * seen.weight * seen.end;
		}
	s->inj = multiply(s, s->w[WOUT], s->y);
	for (size_t i = 0; i < cells; i++)
		s->out[i] = share(s, i) * s->inj[i] + (1 - share(s, i)) * s->h[i];
}

/* ------------------------------------------------------------------------------------------------------ backward -- */

/* gw += gy^T x, gx += gy W */
static void multiply_back(const struct layer_scene *s, const double *w, const double *x, const double *gy, double *gw,
			  double *gx)
{
	const size_t n = s->c.channels;

	for (size_t i = 0; i < operator_cells(&s->c); i++)
		for (size_t j = 0; j < n; j++) {
			gw[i % n * n + j] += gy[i] * x[i / n * n + j];
			gx[i / n * n + j] += gy[i] * w[i % n * n + j];
		}
}

static double slope(const struct layer_scene *s, double v)
{
	return s->c.learning.v_grad == ROSA_V_STRAIGHT ? fabs(v) < 1 : logistic(v) * (1 - logistic(v));
}

/* The gradients of q and k of the own source, whose first read is `link`; gy is that of the sum of reads. */
static void own_backward(struct layer_scene *s, size_t link, const double *gy, double *gu)
{
	const size_t n = s->c.channels, cells = operator_cells(&s->c), entry = s->c.steps * n;
	const int wk = s->sharing == SHARED ? WQ : WK;
	double *theta = zeros(cells), *p = zeros(cells), *gq = zeros(cells), *gk = zeros(cells);
	const int32_t *flips = s->flips;

	for (size_t i = 0; i < cells; i++) {
		const size_t end = link * n + i % n;

		theta[i] = gy[i] * see(s, link, i).weight * (s->w[E1][end] - s->w[E0][end]);
		p[i] = logistic(s->v[i]);
	}
	for (size_t b = 0; b < s->c.batch; b++) {
		struct operator_case alone = s->c;
		const struct qk_case one = {.learning = s->c.learning,
					    .steps = s->c.steps,
					    .channels = n,
					    .bits = s->c.options.bits,
					    .fold = s->c.options.fold,
					    .q = s->q + b * entry,
					    .k = s->k + b * entry,
					    .theta = theta + b * entry,
					    .p = p + b * entry,
					    .flips = flips};

		qk_oracle(&one, gq + b * entry, gk + b * entry);
		alone.batch = 1;
		if (flips)
			flips += operator_find(&alone, one.q, one.k, NULL, NULL) * ((size_t)one.bits + 1);
	}
	multiply_back(s, s->w[WQ], s->u, gq, s->g[WQ], gu);
	multiply_back(s, s->w[wk], s->u, gk, s->g[wk], gu);
}

/* Through the gate: gy becomes the gradient of the sum of reads. */
static void gate_backward(struct layer_scene *s, double *gy, double *gu)
{
	const size_t n = s->c.channels;

	for (size_t row = 0; row < s->c.batch * s->c.steps; row++) {
		double ga = 0;

		for (size_t i = row * n; i < (row + 1) * n; i++) {
			ga += gy[i] * s->y[i] * (1 - s->z[row] / 2);
			gy[i] *= s->z[row];
		}
		for (size_t c = 0; s->gate && c < n; c++) {
			s->g[GATE_W][c] += ga * s->u[row * n + c];
			gu[row * n + c] += ga * s->w[GATE_W][c];
		}
		s->g[GATE_B][0] += s->gate ? ga : 0;
	}
}

/* gh += through the norm */
static void norm_backward(struct layer_scene *s, const double *gu)
{
	const size_t n = s->c.channels;

	for (size_t row = 0; row < s->c.batch * s->c.steps; row++) {
		const double *h = s->h + row * n, *g = gu + row * n, length = rms(s, row);
		double along = 0;

		for (size_t c = 0; c < n; c++) {
			s->g[NORM][c] += g[c] * h[c] / length;
			along += g[c] * s->w[NORM][c] * h[c];
		}
		for (size_t c = 0; c < n; c++)
			s->gh[row * n + c] +=
			    g[c] * s->w[NORM][c] / length - h[c] * along / ((double)n * length * length * length);
	}
}

void oracle_layer_backward(struct layer_scene *s)
{
	const size_t n = s->c.channels, cells = operator_cells(&s->c);
	double *ginj = zeros(cells), *gy = zeros(cells), *gv = zeros(cells), *gu = zeros(cells);
	size_t own_link = 0;

	s->gh = zeros(cells);
	for (int i = 0; i < WEIGHTS; i++)
		s->g[i] = zeros(layer_weight_size(s, i));
	for (size_t i = 0; i < cells; i++) {
		const double a = share(s, i);

		ginj[i] = a * s->gout[i];
		s->gh[i] = (1 - a) * s->gout[i];
		s->g[A0][i % n] += a * (1 - a) * s->gout[i] * (s->inj[i] - s->h[i]);
	}
	multiply_back(s, s->w[WOUT], s->y, ginj, s->g[WOUT], gy);
	gate_backward(s, gy, gu);
	for (size_t link = 0; link < s->links; link++)
		for (size_t i = 0; i < cells; i++) {
			const struct seen seen = see(s, link, i);
			const size_t end = link * n + i % n;

			if (seen.tau < 0)
				continue;
			s->g[seen.bit ? E1 : E0][end] += seen.weight * gy[i];
			gv[seen.value] += seen.weight * gy[i] * (s->w[E1][end] - s->w[E0][end]);
			if (s->gain)
				s->g[GAIN][seen.gain] += s->scale * gy[i] * seen.end;
		}
	for (size_t i = 0; i < s->own; i++)
		own_link += s->places[i].links;
	if (s->own < s->sources)
		own_backward(s, own_link, gy, gu);
	for (size_t i = 0; i < cells; i++)
		gv[i] *= slope(s, s->v[i]);
	multiply_back(s, s->w[WV], s->u, gv, s->g[WV], gu);
	norm_backward(s, gu);
}

/* -------------------------------------------------------------------------------------------------------- making -- */

struct layer_scene layer_start(uint64_t seed)
{
	return (struct layer_scene){
	    .c = {.options = ROSA_OPTIONS_INIT, .learning = ROSA_LEARNING_INIT}, .seed = seed, .scale = 1};
}

/* A sequence of tokens that stays on some of them for a while. */
static double *token_rows(const struct layer_scene *s, uint64_t *state)
{
	const size_t n = s->c.channels;
	double *vocabulary = random_rows(state, s->c.dtype, TOKENS * n, 1);
	double *rows = test_alloc(operator_cells(&s->c) * sizeof(*rows));
	size_t token = 0;

	for (size_t r = 0; r < s->c.batch * s->c.steps; r++) {
		if (test_random(state, 4))
			token = test_random(state, TOKENS);
		memcpy(rows + r * n, vocabulary + token * n, n * sizeof(*rows));
	}
	return rows;
}

static void draw(struct layer_scene *s, uint64_t *state)
{
	const size_t n = s->c.channels;

	for (int i = 0; i < WEIGHTS; i++) {
		const bool matrix = i == WQ || i == WK || i == WV || i == WOUT;

		s->w[i] = random_rows(state, ROSA_FLOAT32, layer_weight_size(s, i), matrix ? 1 / sqrt((double)n) : 0.5);
	}
	for (size_t c = 0; c < n; c++)
		s->w[NORM][c] = operator_round(ROSA_FLOAT32, 1 + s->w[NORM][c] / 2);
	if (n > 1)
		s->w[NORM][n / 2] = 0; /* a channel that the norm switches off */
	for (size_t i = 0; i < layer_weight_size(s, GAIN); i++)
		s->w[GAIN][i] = operator_round(ROSA_FLOAT32, 1 + s->w[GAIN][i]);
	if (s->sharing != SEPARATE)
		memcpy(s->w[WK], s->w[WQ], n * n * sizeof(**s->w));
	s->h = token_rows(s, state);
	s->gout = random_rows(state, s->c.dtype, operator_cells(&s->c), 1);
	project(s);
}

/* The places of the own source, [links][batch * routes][steps], and its flips. */
static void find_own(struct layer_scene *s, size_t links, int32_t *tau, int32_t *length)
{
	const size_t all = operator_route_steps(&s->c), steps = s->c.steps;
	uint16_t *query = test_alloc(all * sizeof(*query)), *key = test_alloc(all * sizeof(*key));
	int32_t *chain = test_alloc(2 * links * steps * sizeof(*chain));

	operator_symbols(&s->c, s->q, query);
	operator_symbols(&s->c, s->k, key);
	s->flips = test_alloc(all * ((size_t)s->c.options.bits + 1) * sizeof(*s->flips));
	operator_find(&s->c, s->q, s->k, NULL, s->flips);
	for (size_t at = 0; at < all; at += steps) {
		oracle_route(&s->c.options, steps, query + at, key + at, tau + at, length + at, NULL);
		if (links == 1)
			continue;
		oracle_chain(&s->c.options, (int)links, steps, query + at, chain, chain + links * steps);
		for (size_t i = 1; i < links; i++) {
			memcpy(tau + i * all + at, chain + i * steps, steps * sizeof(*tau));
			memcpy(length + i * all + at, chain + (links + i) * steps, steps * sizeof(*length));
		}
	}
}

static void find_places(struct layer_scene *s, size_t source, uint64_t *state, size_t link)
{
	const rosa_places *is = &s->places[source];
	const size_t count = s->c.batch * is->routes * s->c.steps;
	int32_t *tau = test_alloc(is->links * count * sizeof(*tau));
	int32_t *length = test_alloc(is->links * count * sizeof(*length));

	if (source == s->own)
		find_own(s, is->links, tau, length);
	for (size_t i = 0; source != s->own && i < is->links * count; i++) {
		tau[i] = (int32_t)test_random(state, s->c.steps + 1) - 1;
		length[i] = tau[i] < 0 ? 0 : test_random(state, 2) ? (int32_t)test_random(state, 12) : 300;
	}
	for (size_t i = 0; i < is->links; i++) {
		s->tau[link + i] = tau + i * count;
		s->length[link + i] = length + i * count;
	}
	s->given[source] = (rosa_places){is->routes, is->links, source == s->own ? NULL : tau, length};
}

static void describe(struct layer_scene *s)
{
	const rosa_options *options = &s->c.options;
	const rosa_learning *learning = &s->c.learning;

	snprintf(s->text, sizeof(s->text),
		 "seed %llu, %s, %s, sharing %d, %zu reads, gain %d, gate %d, batch %zu, steps %zu, channels %zu, "
		 "bits %d, %s, fold %d, max_match %u, threads %d, qk_grad %d, credit %d, key_credit %d, suffix %g, "
		 "explore %g, share %g",
		 (unsigned long long)s->seed, s->c.dtype == ROSA_FLOAT32 ? "float32" : "bfloat16",
		 s->fusion == ROSA_PRE ? "pre" : "post", (int)s->sharing, s->links, s->gain, s->gate, s->c.batch,
		 s->c.steps, s->c.channels, options->bits, policy_name(options->policy), options->fold,
		 (unsigned)options->max_match, options->threads, (int)learning->qk_grad, (int)learning->credit,
		 (int)learning->key_credit, (double)learning->suffix, (double)learning->explore,
		 (double)learning->flip_share);
}

static void hand_over(struct layer_scene *s)
{
	const bool own = s->own < s->sources;

	for (int i = 0; i < WEIGHTS; i++)
		s->floats[i] = to_floats(s->w[i], layer_weight_size(s, i));
	s->h_rows = to_dtype(s->c.dtype, s->h, operator_cells(&s->c));
	s->gout_rows = to_dtype(s->c.dtype, s->gout, operator_cells(&s->c));
	s->layer = (rosa_layer){.size = sizeof(s->layer),
				.channels = s->c.channels,
				.fusion = s->fusion,
				.dtype = s->c.dtype,
				.norm_eps = (float)NORM_EPS,
				.norm = s->floats[NORM],
				.wq = own ? s->floats[WQ] : NULL,
				.wk = own ? s->floats[s->sharing == SHARED ? WQ : WK] : NULL,
				.wv = s->floats[WV],
				.e0 = s->floats[E0],
				.e1 = s->floats[E1],
				.wout = s->floats[WOUT],
				.a0 = s->fusion == ROSA_PRE ? s->floats[A0] : NULL,
				.sources = s->listed ? s->sources : 0,
				.places = s->listed ? s->given : NULL,
				.gain = s->gain ? s->floats[GAIN] : NULL,
				.gate_w = s->gate ? s->floats[GATE_W] : NULL,
				.gate_b = s->gate ? s->floats[GATE_B] : NULL,
				.scale = (float)s->scale};
}

void layer_make(struct layer_scene *s)
{
	size_t link = 0;
	uint64_t state;

	s->listed = s->sources > 0;
	if (!s->listed)
		s->places[s->sources++] = (rosa_places){s->c.channels / (size_t)s->c.options.bits, 1, NULL, NULL};
	s->own = s->sources;
	for (size_t i = 0; i < s->sources; i++) {
		if (!s->places[i].tau)
			s->own = i;
		for (size_t j = 0; j < s->places[i].links; j++)
			s->routes[s->links++] = s->places[i].routes;
		s->rows += s->places[i].links * s->places[i].routes;
	}
	s->margin = 0;
	for (uint64_t again = 0; s->margin <= MARGIN; again++) {
		state = s->seed + (again << 32);
		draw(s, &state);
	}
	for (size_t i = 0; i < s->sources; i++) {
		find_places(s, i, &state, link);
		link += s->places[i].links;
	}
	hand_over(s);
	describe(s);
}

/* --------------------------------------------------------------------------------------------------- the library -- */

float layer_before(float start, size_t i)
{
	return start * (float)(i % 5);
}

struct layer_result layer_result_make(const struct layer_scene *s, float start)
{
	struct layer_result r = {test_alloc(layer_row_bytes(s)), test_alloc(layer_row_bytes(s)), {NULL}, {0}};

	for (int i = 0; i < WEIGHTS; i++) {
		r.g[i] = test_alloc(layer_weight_size(s, i) * sizeof(float));
		for (size_t j = 0; j < layer_weight_size(s, i); j++)
			r.g[i][j] = layer_before(start, j);
	}
	r.grads = (rosa_layer_grads){.size = sizeof(r.grads),
				     .norm = r.g[NORM],
				     .wq = r.g[WQ],
				     .wk = r.g[WK],
				     .wv = r.g[WV],
				     .e0 = r.g[E0],
				     .e1 = r.g[E1],
				     .wout = r.g[WOUT],
				     .a0 = r.g[A0],
				     .gain = r.g[GAIN],
				     .gate_w = r.g[GATE_W],
				     .gate_b = r.g[GATE_B]};
	return r;
}

rosa_status layer_run_forward(const struct layer_scene *s, void *out, rosa_tape **tape, rosa_error *err)
{
	return rosa_layer_forward(&s->c.options, &s->c.learning, &s->layer, s->c.batch, s->c.steps, s->h_rows, out,
				  tape, err);
}

struct layer_result layer_run(const struct layer_scene *s, float start)
{
	struct layer_result r = layer_result_make(s, start);
	rosa_tape *tape = NULL;

	must_for(s->text, layer_run_forward(s, r.out, &tape, &err));
	assert_non_null(tape);
	must_for(s->text, rosa_layer_backward(tape, &s->layer, s->gout_rows, &r.grads, r.gh, &err));
	rosa_tape_free(tape);
	return r;
}

void layer_compare(struct layer_scene *s, float start, double limit)
{
	const size_t cells = operator_cells(&s->c);
	/* a gradient may be next to nothing where its terms are not: the norm of one channel has none at all */
	const double least = 1e-2 * norm_of(s->gout, cells);
	const struct layer_result r = layer_run(s, start);

	oracle_layer_forward(s);
	oracle_layer_backward(s);
	expect_near(s->text, "out", s->c.dtype, r.out, s->out, cells, limit, 0);
	expect_near(s->text, "gh", s->c.dtype, r.gh, s->gh, cells, limit, least);
	for (int i = 0; i < WEIGHTS; i++) {
		const size_t count = layer_weight_size(s, i);

		for (size_t j = 0; j < count; j++)
			s->g[i][j] += (double)layer_before(start, j);
		expect_near(s->text, weight_names[i], ROSA_FLOAT32, r.g[i], s->g[i], count, limit, least);
	}
}

void layer_expect_same(const struct layer_scene *s, const struct layer_result *a, const struct layer_result *b)
{
	if (memcmp(a->out, b->out, layer_row_bytes(s)))
		fail_msg("%s: out differs", s->text);
	if (memcmp(a->gh, b->gh, layer_row_bytes(s)))
		fail_msg("%s: gh differs", s->text);
	for (int i = 0; i < WEIGHTS; i++)
		if (memcmp(a->g[i], b->g[i], layer_weight_size(s, i) * sizeof(float)))
			fail_msg("%s: gradient of %s differs", s->text, weight_names[i]);
}
