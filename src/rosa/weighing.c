/* What the rules `linear` and `soft` share. */
#include "rosa/weighing.h"
#include "backend/convert.h"
#include "backend/sigmoid.h"
#include "base/status.h"

#define GROUP_BYTES ((size_t)64 << 20)

void weighing_init(struct weighing *job, const struct backward *call, size_t step_bytes, struct scratch *scratch)
{
	const rosa_read_pass *args = call->args;
	size_t fit, busy, rows;

	*job = (struct weighing){.call = call,
				 .steps = args->steps,
				 .channels = args->channels,
				 .bits = call->bits,
				 .routes = call->routes,
				 .all = call->learning->credit == ROSA_CREDIT_ALL,
				 .suffix = call->learning->suffix,
				 .block = smaller((BLOCK_CHANNELS + call->bits - 1) / call->bits, call->routes)};
	job->blocks = (job->routes + job->block - 1) / job->block;
	/* Many entries at once keep many workers busy, but cost memory. */
	fit = GROUP_BYTES / (job->steps * (step_bytes + 2 * job->channels * sizeof(float)));
	busy = (call->workers + job->blocks - 1) / job->blocks;
	job->group = smaller(args->batch, fit > busy ? fit : busy);
	rows = job->group * job->steps;
	job->theta = scratch_floats(scratch, rows * job->channels);
	job->p = scratch_floats(scratch, rows * job->channels);
	job->query = scratch_take(scratch, rows * job->routes, sizeof(*job->query));
	job->key = scratch_take(scratch, rows * job->routes, sizeof(*job->key));
}

void weighing_load(const struct weighing *job, size_t entry, size_t t, size_t steps)
{
	const rosa_read_pass *args = job->call->args;
	const size_t channels = job->channels, bytes = activation_size(args->dtype);
	const size_t from = ((job->first + entry) * job->steps + t) * channels,
		     symbols = entry * job->routes * job->steps + t;

	for (size_t i = 0; i < steps; i++) {
		float *theta = job->theta + (entry * job->steps + t + i) * channels;
		float *p = job->p + (entry * job->steps + t + i) * channels;

		activations_load(theta, args->dtype, args->gy, from + i * channels, channels);
		activations_load(p, args->dtype, args->v, from + i * channels, channels);
		for (size_t c = 0; c < channels; c++) {
			theta[c] *= args->e1[c] - args->e0[c];
			p[c] = sigmoid(p[c]) - 0.5f;
		}
	}
	rosa_pack(args->dtype, (const char *)args->q + from * bytes, channels, steps, channels, (int)job->bits,
		  job->query + symbols, job->steps, NULL);
	rosa_pack(args->dtype, (const char *)args->k + from * bytes, channels, steps, channels, (int)job->bits,
		  job->key + symbols, job->steps, NULL);
}

void weighing_store(const struct weighing *job, void *to, const void *x, size_t entry, size_t t, size_t route,
		    size_t routes, const float *gradient)
{
	const rosa_dtype dtype = job->call->args->dtype;
	const size_t at = ((job->first + entry) * job->steps + t) * job->channels + route * job->bits;
	const size_t count = routes * job->bits;
	float row[BLOCK_CHANNELS + ROSA_MAX_BITS];

	activations_load(row, dtype, x, at, count);
	for (size_t i = 0; i < count; i++)
		row[i] = sigmoid_slope(row[i]) * gradient[i];
	activations_store(to, dtype, row, at, count);
}

rosa_status weighing_failed(const struct weighing *job, rosa_error *err)
{
	return rosa_fail(err, ROSA_ENOMEM,
			 "no memory for the gradients of q and k over %zu steps of %zu channels: give shorter pieces "
			 "or a smaller batch",
			 job->steps, job->channels);
}
