/*
 * The gradients of the read-out: e0, e1 and v, which are ordinary sums, and the choice of a rule for q and k.
 *
 * A worker takes a few neighbouring routes through all batch entries and all steps, so every sum is made by one thread
 * in one order, and the number of threads does not change it.
 */
#include "rosa/destinations.h"
#include "rosa/arguments.h"
#include "base/memory.h"
#include "rosa/backward.h"
#include "base/pool.h"
#include "rosa/strips.h"
#include "retrieval/rules.h"
#include "base/status.h"

#include <stdatomic.h>

#define BLOCK 256 /* steps summed in float32 before they are added in double precision */

struct read_grads {
	const struct backward *call;
	float *scratch; /* [workers][scratch_size] */
	size_t scratch_size;
	atomic_uint broken; /* a destination is out of range */
};

/* dL/de1 = sum of m b Gy, dL/de0 = sum of m (1 - b) Gy: `sums` holds both, e0's first. */
static void grad_e(double *sums, const float *gy, const float *v, const int32_t *tau, size_t steps, unsigned bits)
{
	const size_t stride = strips_stride(bits);

	for (size_t first = 0; first < steps; first += BLOCK) {
		float zero[ROSA_MAX_BITS] = {0}, one[ROSA_MAX_BITS] = {0};

		for (size_t t = first; t < steps && t < first + BLOCK; t++) {
			const float *g = gy + t * stride, *x;

			if (tau[t] < 0)
				continue;
			x = v + (size_t)tau[t] * stride;
			for (unsigned j = 0; j < bits; j++) {
				zero[j] += x[j] > 0 ? 0 : g[j];
				one[j] += x[j] > 0 ? g[j] : 0;
			}
		}
		for (unsigned j = 0; j < bits; j++) {
			sums[j] += (double)zero[j];
			sums[bits + j] += (double)one[j];
		}
	}
}

/* dL/dv at d = s'(v) times the sum of theta_t over the steps that read d. */
static void grad_v(float *gv, const float *theta, const float *v, const int32_t *tau, size_t steps, unsigned bits)
{
	const size_t stride = strips_stride(bits);

	memset(gv, 0, steps * stride * sizeof(*gv));
	for (size_t t = 0; t < steps; t++) {
		if (tau[t] < 0)
			continue;
		for (size_t j = 0; j < stride; j++)
			gv[(size_t)tau[t] * stride + j] += theta[t * stride + j];
	}
	strip_chain(gv, v, steps * stride);
}

/* One route of one batch entry: adds to the sums, and turns dL/dy into dL/dv in place. */
static void read_grads_route(struct read_grads *work, size_t b, size_t r, double *sums, float *gy, const float *v,
			     float *gv, int32_t *tau)
{
	const struct backward *call = work->call;
	const rosa_read_pass *args = call->args;
	const unsigned bits = call->bits;
	float delta[ROSA_MAX_BITS];

	destinations_load(tau, args->read, (b * call->routes + r) * args->steps, args->steps, rosa_width(args->steps));
	for (size_t t = 0; t < args->steps; t++) {
		if (tau[t] < -1 || tau[t] >= (int64_t)args->steps) {
			atomic_store(&work->broken, 1);
			return;
		}
	}
	grad_e(sums, gy, v, tau, args->steps, bits);
	if (!args->gv)
		return;
	for (unsigned j = 0; j < bits; j++)
		delta[j] = args->e1[r * bits + j] - args->e0[r * bits + j];
	strip_scale(gy, delta, args->steps, bits); /* theta */
	grad_v(gv, gy, v, tau, args->steps, bits);
	memcpy(gy, gv, args->steps * strips_stride(bits) * sizeof(*gy));
}

static void read_grads_group(void *context, size_t i, unsigned worker)
{
	struct read_grads *work = context;
	const struct backward *call = work->call;
	const rosa_read_pass *args = call->args;
	const unsigned bits = call->bits;
	const size_t group = strips_group(args->dtype, bits), first = i * group, left = call->routes - first;
	struct strips strips = {.dtype = args->dtype,
				.bits = bits,
				.steps = args->steps,
				.channels = args->channels,
				.routes = left < group ? left : group};
	const size_t spacing = strips_spacing(args->steps, bits);
	float *gy = work->scratch + worker * work->scratch_size, *v = gy + group * spacing, *gv = v + group * spacing;
	int32_t *tau = (int32_t *)(gv + spacing);
	double sums[STRIPS_BYTES / 2][2 * ROSA_MAX_BITS] = {{0}};

	for (size_t b = 0; b < args->batch; b++) {
		strips.first = b * args->steps * args->channels + first * bits;
		strips_load(gy, args->gy, &strips);
		strips_load(v, args->v, &strips);
		for (size_t r = 0; r < strips.routes; r++)
			read_grads_route(work, b, first + r, sums[r], strips_at(gy, &strips, r),
					 strips_at(v, &strips, r), gv, tau);
		if (args->gv)
			strips_store(args->gv, gy, &strips);
	}
	for (size_t r = 0; r < strips.routes; r++) {
		for (unsigned j = 0; j < bits; j++) {
			if (args->ge0)
				args->ge0[(first + r) * bits + j] = (float)sums[r][j];
			if (args->ge1)
				args->ge1[(first + r) * bits + j] = (float)sums[r][bits + j];
		}
	}
}

/* What pool_run passes to the pieces and to the question between them. */
struct run {
	const struct backward *call;
	pool_work *work;
	void *context;
};

static void do_piece(void *context, size_t i, unsigned worker)
{
	const struct run *run = context;

	run->work(run->context, i, worker);
}

/* How far the call is cannot be told before it ends: the rules make several runs of different cost. */
static int ask_to_stop(void *context)
{
	struct backward_stop *stop = ((const struct run *)context)->call->stop;

	stop->told = stop->ask(stop->context, 0, stop->total) != 0;
	return stop->told;
}

void backward_run(const struct backward *call, size_t count, pool_work *work, void *context)
{
	struct run run = {.call = call, .work = work, .context = context};

	if (!call->stop)
		pool_run(call->pool, count, work, context, NULL);
	else if (!call->stop->told)
		pool_run(call->pool, count, do_piece, &run, ask_to_stop);
}

/* e0, e1 and v. */
static rosa_status grad_read(const struct backward *call, rosa_error *err)
{
	const size_t group = strips_group(call->args->dtype, call->bits);
	struct read_grads work = {.call = call,
				  .scratch_size = (2 * group + 1) * strips_spacing(call->args->steps, call->bits) +
						  call->args->steps};

	work.scratch = memory_scratch(call->allocator, call->workers * work.scratch_size * sizeof(*work.scratch));
	if (!work.scratch)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for the gradients of %zu steps", call->args->steps);
	backward_run(call, (call->routes + group - 1) / group, read_grads_group, &work);
	memory_free(call->allocator, work.scratch);
	if (atomic_load(&work.broken))
		return rosa_fail(err, ROSA_EINVAL, "read has a destination that is not below the %zu steps",
				 call->args->steps);
	return ROSA_OK;
}

static rosa_status grad_qk(const struct backward *call, rosa_error *err)
{
	const rosa_read_pass *args = call->args;
	const size_t bytes = args->batch * args->steps * args->channels * activation_size(args->dtype);

	if (!args->gq && !args->gk)
		return ROSA_OK;
	switch (call->learning->qk_grad) {
	case ROSA_QK_LINEAR:
		return grad_qk_linear(call, err);
	case ROSA_QK_SOFT:
		return grad_qk_soft(call, err);
	case ROSA_QK_FLIPS:
		return grad_qk_flips(call, err);
	case ROSA_QK_NONE:
		break;
	}
	if (args->gq)
		memset(args->gq, 0, bytes);
	if (args->gk)
		memset(args->gk, 0, bytes);
	return ROSA_OK;
}

static rosa_status check_pass(const rosa_read_pass *args, const rosa_learning *learning, unsigned bits, rosa_error *err)
{
	const struct {
		const char *name;
		const void *pointer;
	} needed[] = {{"q", args->q},   {"k", args->k},       {"v", args->v},  {"e0", args->e0},
		      {"e1", args->e1}, {"read", args->read}, {"gy", args->gy}};
	rosa_status status = activations_check(args->dtype, args->batch, args->steps, args->channels, bits, err);

	if (status)
		return status;
	/* without a rule q and k, the first two, are not used */
	for (size_t i = learning->qk_grad == ROSA_QK_NONE ? 2 : 0; i < sizeof(needed) / sizeof(*needed); i++)
		if (!needed[i].pointer)
			return rosa_fail(err, ROSA_EINVAL, "pass.%s is NULL", needed[i].name);
	if (learning->qk_grad == ROSA_QK_FLIPS && (args->gq || args->gk) && !args->flips)
		return rosa_fail(err, ROSA_EINVAL, "pass.flips is NULL; ROSA_QK_FLIPS needs the table of rosa_find");
	return ROSA_OK;
}

rosa_status rosa_read_backward(const rosa_options *options, const rosa_learning *learning, const rosa_read_pass *given,
			       rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	rosa_learning rule;
	rosa_read_pass args = {.size = sizeof(args)};
	struct backward_stop stop;
	struct backward call;
	rosa_status status;

	if (!options || !given)
		return rosa_fail(err, ROSA_EINVAL, "%s is NULL", options ? "pass" : "options");
	status = rules_from_options(options, &full, &rules, err);
	if (!status)
		status = learning_from_options(learning, &rule, err);
	if (status)
		return status;
	if (given->size < offsetof(rosa_read_pass, gy))
		return rosa_fail(err, ROSA_EINVAL, "pass.size is %zu; set it to sizeof(rosa_read_pass), %zu",
				 given->size, sizeof(args));
	memcpy(&args, given, given->size < sizeof(args) ? given->size : sizeof(args));
	status = check_pass(&args, &rule, rules.bits, err);
	if (status)
		return status;
	stop = (struct backward_stop){.ask = full.progress,
				      .context = full.progress_context,
				      .total = (uint64_t)args.batch * (args.channels / rules.bits) * args.steps};
	call = (struct backward){.args = &args,
				 .learning = &rule,
				 .allocator = &full.allocator,
				 .workers = pool_threads(full.threads),
				 .bits = rules.bits,
				 .routes = args.channels / rules.bits,
				 .fold = rules.fold,
				 .stop = full.progress ? &stop : NULL};
	call.pool = pool_for(&full, call.workers);
	if (!call.pool)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", call.workers);
	status = grad_read(&call, err);
	if (!status)
		status = grad_qk(&call, err);
	pool_done(&full, call.pool);
	if (!status && call.stop && !stop.told)
		stop.told = stop.ask(stop.context, stop.total, stop.total) != 0;
	return stop.told ? rosa_fail(err, ROSA_ECANCELLED, "stopped by the progress callback") : status;
}
