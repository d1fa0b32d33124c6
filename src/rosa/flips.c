/*
 * How q and k learn from counterfactuals, as the paper has it.
 *
 * For step t and bit j let tau be the destination that was found when t's query run began, and tau' that with bit j
 * flipped: one is the branch "bit is 1", the other "bit is 0". With a = theta_t . P[tau], x = theta_t . P[tau'] and s
 * the bit as +1 or -1,
 *
 *     dL/dq_tj = s'(q_tj) s (a - x)                             (1), bitwise counterfactual differencing
 *     dL/dk_lj = s'(k_lj) (U1 - U0)                             (2), sums over the branches that land on run l
 *
 * and what branch 1 minus branch 0 adds to (2) is s a at tau and -s x at tau'. So both need the same products, bits + 1
 * per step, and are computed together. Destination -1 is the row of zeros before the first.
 */
#include "retrieval/batch.h"
#include "rosa/destinations.h"
#include "base/memory.h"
#include "rosa/backward.h"
#include "base/pool.h"
#include "rosa/strips.h"
#include "base/status.h"

#include <stdatomic.h>

typedef float four __attribute__((vector_size(16), aligned(4)));

struct flipping {
	const struct backward *call;
	uint16_t *query, *key; /* symbols, [batch * routes][steps] */
	size_t *first;         /* [batch * routes] first row of the route's table */
	float *scratch;        /* [workers][scratch_size] */
	size_t scratch_size;
	atomic_uint broken; /* a destination is out of range */
};

/* Rows are multiples of four long; the order of the sum is fixed. */
static inline float product(const float *x, const float *y, size_t stride)
{
	four sum = *(const four *)x * *(const four *)y;

	for (size_t i = 4; i < stride; i += 4)
		sum += *(const four *)(x + i) * *(const four *)(y + i);
	return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* One step: `row` is the table of its run. theta's row becomes the gradient of the bits. */
static inline void take_step(const int32_t *row, unsigned symbol, float *theta, const float *surrogate, float *credit,
			     size_t stride, unsigned bits)
{
	const ptrdiff_t length = (ptrdiff_t)stride;
	const float a = product(theta, surrogate + row[0] * length, stride);
	float gq[ROSA_MAX_BITS];

	for (unsigned j = 0; j < bits; j++) {
		const float sign = symbol >> j & 1 ? 1.0f : -1.0f;
		const float x = row[1 + j] < 0 ? 0.0f : product(theta, surrogate + row[1 + j] * length, stride);

		gq[j] = sign * (a - x);
		credit[row[0] * length + (int)j] += sign * a;
		credit[row[1 + j] * length + (int)j] -= sign * x;
	}
	for (unsigned j = 0; j < bits; j++)
		theta[j] = gq[j];
}

/* Theta of every step of a route becomes the gradient of its bits, not yet multiplied by s'. */
static void differences(struct flipping *flipping, size_t entry, float *theta, const float *surrogate, float *credit)
{
	const struct backward *call = flipping->call;
	const size_t steps = call->args->steps, stride = strips_stride(call->bits), width = call->bits + 1;
	const uint16_t *query = flipping->query + entry * steps;
	size_t next = flipping->first[entry];
	int32_t row[ROSA_MAX_BITS + 1];
	bool left_out = false;

	for (size_t t = 0; t < steps; t++) {
		if (!t || !call->fold || query[t] != query[t - 1]) {
			destinations_load(row, call->args->flips, next++ * width, width, rosa_width(steps));
			/* flip_share left the run out, or nothing is found either way: no difference */
			left_out = true;
			for (unsigned j = 0; j < width; j++) {
				left_out &= row[j] == row[0];
				if (row[j] < -1 || row[j] >= (int64_t)steps) {
					atomic_store(&flipping->broken, 1);
					return;
				}
			}
		}
		if (left_out)
			memset(theta + t * stride, 0, stride * sizeof(*theta));
		else if (call->bits == 16)
			take_step(row, query[t], theta + t * stride, surrogate, credit, 16, 16);
		else if (call->bits == 4)
			take_step(row, query[t], theta + t * stride, surrogate, credit, 4, 4);
		else
			take_step(row, query[t], theta + t * stride, surrogate, credit, stride, call->bits);
	}
}

/* What landed on each destination goes to the run that begins there, or to the one before it, whose symbol was matched;
 * all other steps get nothing. */
static void credit_keys(const struct flipping *flipping, size_t entry, const float *credit, float *gk)
{
	const struct backward *call = flipping->call;
	const size_t steps = call->args->steps, stride = strips_stride(call->bits);
	const uint16_t *key = flipping->key + entry * steps;
	size_t before = 0;

	memset(gk, 0, steps * stride * sizeof(*gk));
	for (size_t t = 0; t < steps; t++) {
		if (t && call->fold && key[t] == key[t - 1])
			continue;
		if (t || call->learning->key_credit == ROSA_KEY_DESTINATION)
			memcpy(gk + (call->learning->key_credit == ROSA_KEY_MATCH ? before : t) * stride,
			       credit + t * stride, stride * sizeof(*gk));
		before = t;
	}
}

/* Turn dL/dy into the gradient of the bits of q, in place, and P into that of the bits of k. */
static void flip_route(struct flipping *flipping, size_t b, size_t r, float *theta, float *surrogate, float *credit)
{
	const struct backward *call = flipping->call;
	const rosa_read_pass *args = call->args;
	const size_t stride = strips_stride(call->bits), count = args->steps * stride;
	const float scale = 1 / call->learning->flip_share;
	float delta[ROSA_MAX_BITS];

	for (unsigned j = 0; j < call->bits; j++)
		delta[j] = (args->e1[r * call->bits + j] - args->e0[r * call->bits + j]) * scale;
	strip_scale(theta, delta, args->steps, call->bits);
	strip_sigmoid(surrogate, count);
	memset(credit - stride, 0, (count + stride) * sizeof(*credit));
	differences(flipping, b * call->routes + r, theta, surrogate, credit);
	credit_keys(flipping, b * call->routes + r, credit, surrogate);
}

static void flip_group(void *context, size_t i, unsigned worker)
{
	struct flipping *flipping = context;
	const struct backward *call = flipping->call;
	const rosa_read_pass *args = call->args;
	const size_t group = strips_group(args->dtype, call->bits), groups = (call->routes + group - 1) / group;
	const size_t b = i / groups, first = i % groups * group, left = call->routes - first;
	const struct strips strips = {.dtype = args->dtype,
				      .bits = call->bits,
				      .steps = args->steps,
				      .channels = args->channels,
				      .first = b * args->steps * args->channels + first * call->bits,
				      .routes = left < group ? left : group};
	const size_t size = group * strips_spacing(args->steps, call->bits),
		     count = args->steps * strips_stride(call->bits);
	float *gq = flipping->scratch + worker * flipping->scratch_size, *gk = gq + size, *x = gk + size;

	strips_load(gq, args->gy, &strips);
	strips_load(gk, args->v, &strips);
	/* the memory for q and k, which are loaded later, serves as a route's credit */
	for (size_t r = 0; r < strips.routes; r++)
		flip_route(flipping, b, first + r, strips_at(gq, &strips, r), strips_at(gk, &strips, r),
			   strips_at(x, &strips, 0));
	for (int which = 0; which < 2; which++) {
		float *gradient = which ? gk : gq;
		void *to = which ? args->gk : args->gq;

		if (!to)
			continue;
		strips_load(x, which ? args->k : args->q, &strips);
		for (size_t r = 0; r < strips.routes; r++)
			strip_chain(strips_at(gradient, &strips, r), strips_at(x, &strips, r), count);
		strips_store(to, gradient, &strips);
	}
}

/* The symbols of q and k, which are not kept after rosa_find, and where each route's table begins. */
static rosa_status prepare(struct flipping *flipping, rosa_error *err)
{
	const struct backward *call = flipping->call;
	const rosa_read_pass *args = call->args;
	const size_t entry = args->steps * args->channels * activation_size(args->dtype);
	const size_t symbols = call->routes * args->steps;
	rosa_status status = ROSA_OK;
	size_t row = 0;

	for (size_t b = 0; b < args->batch && !status; b++) {
		status = rosa_pack(args->dtype, (const char *)args->q + b * entry, 0, args->steps, args->channels,
				   (int)call->bits, flipping->query + b * symbols, 0, err);
		if (!status)
			status = rosa_pack(args->dtype, (const char *)args->k + b * entry, 0, args->steps,
					   args->channels, (int)call->bits, flipping->key + b * symbols, 0, err);
	}
	for (size_t r = 0; r < args->batch * call->routes; r++) {
		flipping->first[r] = row;
		row += batch_count_runs(flipping->query + r * args->steps, call->bits, args->steps, call->fold);
	}
	return status;
}

rosa_status grad_qk_flips(const struct backward *call, rosa_error *err)
{
	const rosa_read_pass *args = call->args;
	const size_t entries = args->batch * call->routes;
	const size_t group = strips_group(args->dtype, call->bits), groups = (call->routes + group - 1) / group;
	struct flipping flipping = {.call = call, .scratch_size = 3 * group * strips_spacing(args->steps, call->bits)};
	rosa_status status;

	flipping.query = memory_scratch(call->allocator, entries * args->steps * sizeof(*flipping.query));
	flipping.key = memory_scratch(call->allocator, entries * args->steps * sizeof(*flipping.key));
	flipping.first = memory_resize(call->allocator, NULL, entries * sizeof(*flipping.first));
	flipping.scratch =
	    memory_scratch(call->allocator, call->workers * flipping.scratch_size * sizeof(*flipping.scratch));
	if (flipping.query && flipping.key && flipping.first && flipping.scratch)
		status = prepare(&flipping, err);
	else
		status = rosa_fail(err, ROSA_ENOMEM, "no memory for the gradients of %zu steps", args->steps);
	if (!status)
		backward_run(call, args->batch * groups, flip_group, &flipping);
	if (atomic_load(&flipping.broken))
		status =
		    rosa_fail(err, ROSA_EINVAL, "flips has a destination that is not below the %zu steps", args->steps);
	memory_free(call->allocator, flipping.scratch);
	memory_free(call->allocator, flipping.first);
	memory_free(call->allocator, flipping.key);
	memory_free(call->allocator, flipping.query);
	return status;
}
