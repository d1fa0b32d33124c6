/* The gradients of the read-out: e0, e1 and v (reads_back.c), and the choice of a rule for q and k. */
#include "backend/convert.h"
#include "base/pool.h"
#include "base/status.h"
#include "retrieval/rules.h"
#include "rosa/arguments.h"
#include "rosa/reads_back.h"

#include <string.h>

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

rosa_status backward_pass(const rosa_options *full, const rosa_learning *learning, const struct reads_pass *reads,
			  const rosa_read_pass *qk, rosa_error *err)
{
	const size_t batch = reads ? reads->batch : qk->batch, steps = reads ? reads->steps : qk->steps,
		     channels = reads ? reads->channels : qk->channels;
	const unsigned bits = (unsigned)full->bits;
	struct backward_stop stop = {.ask = full->progress,
				     .context = full->progress_context,
				     .total = (uint64_t)batch * (channels / bits) * steps};
	struct backward call = {.args = qk,
				.learning = learning,
				.allocator = &full->allocator,
				.workers =
				    full->workers ? pool_kept_threads(full->workers) : pool_threads(full->threads),
				.bits = bits,
				.routes = channels / bits,
				.fold = full->fold != 0,
				.stop = full->progress ? &stop : NULL};
	rosa_status status = ROSA_OK;

	call.pool = pool_for(full, call.workers);
	if (!call.pool)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %u threads", call.workers);
	if (reads)
		status = grad_reads(&call, reads, err);
	if (!status && qk)
		status = grad_qk(&call, err);
	pool_done(full, call.pool);
	if (!status && call.stop && !stop.told)
		stop.told = stop.ask(stop.context, stop.total, stop.total) != 0;
	return stop.told ? rosa_fail(err, ROSA_ECANCELLED, "stopped by the progress callback") : status;
}

rosa_status rosa_read_backward(const rosa_options *options, const rosa_learning *learning, const rosa_read_pass *given,
			       rosa_error *err)
{
	struct route_rules rules;
	rosa_options full;
	rosa_learning rule;
	rosa_read_pass args = {.size = sizeof(args)};
	struct lookup lookup = {0};
	const struct lookup *const lookups[] = {&lookup};
	struct reads_pass reads;
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
	lookup.shape = (struct lookup_shape){args.batch, args.channels / rules.bits, args.steps, 1, false};
	lookup.width = rosa_width(args.steps);
	lookup.read = (void *)args.read;
	reads = (struct reads_pass){.dtype = args.dtype,
				    .batch = args.batch,
				    .steps = args.steps,
				    .channels = args.channels,
				    .sources = 1,
				    .lookups = lookups,
				    .v = args.v,
				    .gy = args.gy,
				    .e0 = args.e0,
				    .e1 = args.e1,
				    .scale = 1,
				    .v_grad = rule.v_grad,
				    .gv = args.gv,
				    .ge0 = args.ge0,
				    .ge1 = args.ge1};
	return backward_pass(&full, &rule, &reads, &args, err);
}
