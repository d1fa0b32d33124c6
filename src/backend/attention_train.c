/*
 * Attention over whole sequences, forward and backward, for training.
 *
 * Queries are taken in blocks. A block of one head sees a range of keys, and sinks before it. Its scores against these
 * are one matrix product; so are the values it reads and all four gradients. What is masked inside the range costs
 * little while the window is longer than a block. No array of steps x steps is ever stored: the backward pass computes
 * the weights again from the scores and their level, the logarithm of the sum of exponentials.
 *
 * A unit of work is one key head of one sequence with all query heads that read it, since these add to the same
 * gradients of k and v: no two workers write the same number, and sums are taken in one order.
 */
#include "backend/attention_train.h"

#include "backend/gemm.h"
#include "backend/sigmoid.h"
#include "base/sizes.h"

#include <math.h>
#include <string.h>

#define BLOCK ((size_t)64) /* queries at once */

/* Keys that a block of queries sees: the sinks 0 .. sinks-1, and after them a range that begins at `begin`. */
struct span {
	size_t first, count; /* queries */
	size_t sinks, begin, keys;
};

struct call {
	const struct attention_shape *shape;
	const float *q, *k, *v, *y, *level, *gy;
	float *out, *levels, *gq, *gk, *gv;
	float *scratch;
	size_t room; /* scratch numbers per worker */
	float scale;
};

static size_t most_keys(const struct attention_shape *shape)
{
	const size_t reach = shape->window ? shape->window + BLOCK + shape->sinks : shape->steps;

	return smaller(reach, shape->steps);
}

size_t attention_train_scratch(const struct attention_shape *shape)
{
	return 2 * BLOCK * most_keys(shape);
}

static struct span span_of(const struct attention_shape *shape, size_t first)
{
	const size_t last = smaller(shape->steps, first + BLOCK);
	struct span span = {.first = first, .count = last - first};

	if (shape->window) {
		span.sinks = smaller(shape->sinks, last);
		span.begin = first + 1 > shape->window ? first + 1 - shape->window : 0;
		span.begin = span.begin > span.sinks ? span.begin : span.sinks;
	}
	span.keys = span.sinks + last - span.begin;
	return span;
}

/* What row `t` sees of its span: sinks 0 .. sinks-1, and from .. to-1 counted from the span's first key. */
struct seen {
	size_t sinks, from, to;
};

static struct seen seen_of(const struct attention_shape *shape, const struct span *span, size_t t)
{
	const size_t oldest = shape->window && t + 1 > shape->window ? t + 1 - shape->window : 0;
	struct seen seen = {.sinks = smaller(span->sinks, t + 1), .from = span->sinks, .to = span->sinks};

	if (t >= span->begin)
		seen.to += t + 1 - span->begin;
	if (oldest > span->begin)
		seen.from += oldest - span->begin;
	return seen;
}

/* c[count][keys] = alpha a b^T, b being rows of k or v; sinks and range are two products. */
static void by_keys(const struct call *call, const struct span *span, float alpha, const float *a, const float *b,
		    float *c)
{
	const struct attention_shape *shape = call->shape;
	const size_t row_a = shape->heads * shape->head_size, row_b = shape->kv_heads * shape->head_size;

	gemm(false, true, span->count, span->sinks, shape->head_size, alpha, a, row_a, b, row_b, 0, c, span->keys);
	gemm(false, true, span->count, span->keys - span->sinks, shape->head_size, alpha, a, row_a,
	     b + span->begin * row_b, row_b, 0, c + span->sinks, span->keys);
}

/* y[count][head_size] = alpha p b */
static void read_keys(const struct call *call, const struct span *span, float alpha, const float *p, const float *b,
		      float *y)
{
	const struct attention_shape *shape = call->shape;
	const size_t row_y = shape->heads * shape->head_size, row_b = shape->kv_heads * shape->head_size;

	gemm(false, false, span->count, shape->head_size, span->keys - span->sinks, alpha, p + span->sinks, span->keys,
	     b + span->begin * row_b, row_b, 0, y, row_y);
	if (span->sinks)
		gemm(false, false, span->count, shape->head_size, span->sinks, alpha, p, span->keys, b, row_b, 1, y,
		     row_y);
}

/* b += alpha p^T y, for rows of gk or gv */
static void write_keys(const struct call *call, const struct span *span, float alpha, const float *p, const float *y,
		       float *b)
{
	const struct attention_shape *shape = call->shape;
	const size_t row_y = shape->heads * shape->head_size, row_b = shape->kv_heads * shape->head_size;

	gemm(true, false, span->sinks, shape->head_size, span->count, alpha, p, span->keys, y, row_y, 1, b, row_b);
	gemm(true, false, span->keys - span->sinks, shape->head_size, span->count, alpha, p + span->sinks, span->keys,
	     y, row_y, 1, b + span->begin * row_b, row_b);
}

/* Sums and maxima by lanes: a compiler may not reorder additions, so the lanes of its vectors are written out. */
#define LANES ((size_t)16)

static float sum_of(const float *x, size_t count)
{
	float lane[LANES] = {0}, sum = 0;

	for (size_t i = 0; i + LANES <= count; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += x[i + j];
	for (size_t i = count / LANES * LANES; i < count; i++)
		lane[i % LANES] += x[i];
	for (size_t j = 0; j < LANES; j++)
		sum += lane[j];
	return sum;
}

static float greatest_of(const float *x, size_t count)
{
	float lane[LANES], greatest = -INFINITY;

	for (size_t j = 0; j < LANES; j++)
		lane[j] = -INFINITY;
	for (size_t i = 0; i + LANES <= count; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
	for (size_t i = count / LANES * LANES; i < count; i++)
		lane[i % LANES] = x[i] > lane[i % LANES] ? x[i] : lane[i % LANES];
	for (size_t j = 0; j < LANES; j++)
		greatest = lane[j] > greatest ? lane[j] : greatest;
	return greatest;
}

static float dot_of(const float *x, const float *y, size_t count)
{
	float lane[LANES] = {0};

	for (size_t i = 0; i + LANES <= count; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += x[i + j] * y[i + j];
	for (size_t i = count / LANES * LANES; i < count; i++)
		lane[i % LANES] += x[i] * y[i];
	return sum_of(lane, LANES);
}

/* p[i] = exp(s[i] - level) for what is seen, 0 for the rest. Returns the sum. */
static float weights_of(float *s, const struct seen *seen, size_t keys, float level)
{
	for (size_t i = 0; i < seen->sinks; i++)
		s[i] = exp_minus(s[i] - level);
	memset(s + seen->sinks, 0, (seen->from - seen->sinks) * sizeof(*s));
	for (size_t i = seen->from; i < seen->to; i++)
		s[i] = exp_minus(s[i] - level);
	memset(s + seen->to, 0, (keys - seen->to) * sizeof(*s));
	return sum_of(s, seen->sinks) + sum_of(s + seen->from, seen->to - seen->from);
}

static void forward_rows(const struct call *call, const struct span *span, float *s, float *levels)
{
	for (size_t i = 0; i < span->count; i++) {
		float *row = s + i * span->keys, greatest, near, sum;
		const struct seen seen = seen_of(call->shape, span, span->first + i);

		greatest = greatest_of(row, seen.sinks);
		near = greatest_of(row + seen.from, seen.to - seen.from);
		greatest = near > greatest ? near : greatest;
		sum = weights_of(row, &seen, span->keys, greatest);
		for (size_t j = 0; j < seen.to; j++)
			row[j] /= sum;
		levels[span->first + i] = greatest + logf(sum);
	}
}

static void forward_unit(void *context, size_t unit, unsigned worker)
{
	const struct call *call = context;
	const struct attention_shape *shape = call->shape;
	const size_t group = shape->heads / shape->kv_heads, b = unit / shape->kv_heads, kv = unit % shape->kv_heads;
	const size_t row_q = shape->heads * shape->head_size, row_k = shape->kv_heads * shape->head_size;
	const float *k = call->k + b * shape->steps * row_k + kv * shape->head_size,
		    *v = call->v + b * shape->steps * row_k + kv * shape->head_size;
	float *s = call->scratch + worker * call->room;

	for (size_t first = 0; first < shape->steps; first += BLOCK) {
		const struct span span = span_of(shape, first);

		for (size_t h = kv * group; h < (kv + 1) * group; h++) {
			const size_t at = (b * shape->steps + first) * row_q + h * shape->head_size;

			by_keys(call, &span, call->scale, call->q + at, k, s);
			forward_rows(call, &span, s, call->levels + (b * shape->heads + h) * shape->steps);
			read_keys(call, &span, 1, s, v, call->out + at);
		}
	}
}

/* s: scores, becomes p; gp: dL/dp, becomes dL/ds = p (gp - sum of gy y) */
static void backward_rows(const struct call *call, const struct span *span, float *s, float *gp, const float *levels,
			  const float *y, const float *gy)
{
	const size_t row_q = call->shape->heads * call->shape->head_size;

	for (size_t i = 0; i < span->count; i++) {
		float *p = s + i * span->keys, *g = gp + i * span->keys, along;
		const struct seen seen = seen_of(call->shape, span, span->first + i);

		weights_of(p, &seen, span->keys, levels[span->first + i]);
		along = dot_of(y + i * row_q, gy + i * row_q, call->shape->head_size);
		for (size_t j = 0; j < span->keys; j++)
			g[j] = p[j] * (g[j] - along);
	}
}

static void backward_unit(void *context, size_t unit, unsigned worker)
{
	const struct call *call = context;
	const struct attention_shape *shape = call->shape;
	const size_t group = shape->heads / shape->kv_heads, b = unit / shape->kv_heads, kv = unit % shape->kv_heads;
	const size_t row_q = shape->heads * shape->head_size, row_k = shape->kv_heads * shape->head_size;
	const size_t keys_at = b * shape->steps * row_k + kv * shape->head_size;
	const float *k = call->k + keys_at, *v = call->v + keys_at;
	float *gk = call->gk + keys_at, *gv = call->gv + keys_at;
	float *s = call->scratch + worker * call->room, *gp = s + call->room / 2;

	for (size_t t = 0; t < shape->steps; t++) {
		memset(gk + t * row_k, 0, shape->head_size * sizeof(*gk));
		memset(gv + t * row_k, 0, shape->head_size * sizeof(*gv));
	}
	for (size_t first = 0; first < shape->steps; first += BLOCK) {
		const struct span span = span_of(shape, first);

		for (size_t h = kv * group; h < (kv + 1) * group; h++) {
			const size_t at = (b * shape->steps + first) * row_q + h * shape->head_size;

			by_keys(call, &span, call->scale, call->q + at, k, s);
			by_keys(call, &span, 1, call->gy + at, v, gp);
			backward_rows(call, &span, s, gp, call->level + (b * shape->heads + h) * shape->steps,
				      call->y + at, call->gy + at);
			write_keys(call, &span, 1, s, call->gy + at, gv);
			write_keys(call, &span, call->scale, gp, call->q + at, gk);
			read_keys(call, &span, call->scale, gp, k, call->gq + at);
		}
	}
}

static void run(struct pool *pool, struct call *call, pool_work *work)
{
	call->scale = 1 / sqrtf((float)call->shape->head_size);
	call->room = attention_train_scratch(call->shape);
	pool_run(pool, call->shape->batch * call->shape->kv_heads, work, call, NULL);
}

void attention_train(struct pool *pool, float *scratch, const struct attention_shape *shape, const float *q,
		     const float *k, const float *v, float *y, float *level)
{
	struct call call = {.shape = shape, .q = q, .k = k, .v = v, .out = y, .levels = level, .scratch = scratch};

	run(pool, &call, forward_unit);
}

void attention_train_back(struct pool *pool, float *scratch, const struct attention_shape *shape, const float *q,
			  const float *k, const float *v, const float *y, const float *level, const float *gy,
			  float *gq, float *gk, float *gv)
{
	struct call call = {.shape = shape,
			    .q = q,
			    .k = k,
			    .v = v,
			    .y = y,
			    .level = level,
			    .gy = gy,
			    .gq = gq,
			    .gk = gk,
			    .gv = gv,
			    .scratch = scratch};

	run(pool, &call, backward_unit);
}
