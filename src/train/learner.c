/*
 * One step of training.
 *
 * A process reads its samples first, so that the weight of the whole batch is known before any gradient is computed:
 * then gradients of the mean are summed, and nothing has to be scaled afterwards. Gradients of micro batches are added
 * in place, those of processes in rank order (ranks.c), so all processes take the same step to the bit and need never
 * compare their weights.
 *
 * Random draws are seeded by the number of a sample, which counts over all steps: a step that is repeated after a
 * resume draws the same, and neither the size of a micro batch nor the number of processes matters.
 */
#include "train/learner.h"

#include "base/status.h"
#include "train/far.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXCHANGE ((size_t)1 << 20) /* numbers of a gradient that are summed over processes at a time */

struct learner {
	network *network;
	const struct ranks *ranks;
	struct samples samples;
	struct learner_options options;
	size_t mine;                /* most samples per step of this process */
	uint32_t *tokens, *targets; /* [mine][length] */
	float *weight;              /* the same */
	uint64_t *numbers;          /* [mine] of the samples */
	float *exchange;            /* [EXCHANGE]; NULL: there is one process */
};

/* How many of `count` samples belong to this process. */
static size_t share_of(const struct ranks *ranks, uint64_t count)
{
	const uint64_t rank = (uint64_t)ranks->rank, all = (uint64_t)ranks->count;

	return count > rank ? (size_t)((count - rank + all - 1) / all) : 0;
}

rosa_status learner_new(network *network, const struct ranks *ranks, const struct samples *samples,
			const struct learner_options *options, learner **made, rosa_error *err)
{
	learner *l = calloc(1, sizeof(*l));
	size_t numbers;

	*made = NULL;
	if (!l)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to train");
	*l = (learner){.network = network, .ranks = ranks, .samples = *samples, .options = *options};
	network_pace_qk(network, options->qk_factor);
	l->mine = share_of(ranks, options->batch);
	numbers = l->mine > options->micro_batch ? l->mine : options->micro_batch;
	numbers *= samples->length;
	l->tokens = calloc(numbers, sizeof(*l->tokens));
	l->targets = calloc(numbers, sizeof(*l->targets));
	l->weight = calloc(numbers, sizeof(*l->weight));
	l->numbers = calloc(l->mine ? l->mine : 1, sizeof(*l->numbers));
	if (ranks->count > 1)
		l->exchange = malloc(EXCHANGE * sizeof(*l->exchange));
	if (!l->tokens || !l->targets || !l->weight || !l->numbers || (ranks->count > 1 && !l->exchange)) {
		rosa_fail(err, ROSA_ENOMEM, "no memory for a batch of %zu sequences of %zu tokens", l->mine,
			  samples->length);
		learner_free(l);
		return ROSA_ENOMEM;
	}
	*made = l;
	return ROSA_OK;
}

void learner_free(learner *l)
{
	if (!l)
		return;
	free(l->tokens);
	free(l->targets);
	free(l->weight);
	free(l->numbers);
	free(l->exchange);
	free(l);
}

/* ------------------------------------------------------------------------------------------------------ batches -- */

/* The number of sample i of this process in a batch that begins with `first`. */
static uint64_t sample_number(const learner *l, uint64_t first, size_t i)
{
	return first + (uint64_t)l->ranks->rank + (uint64_t)i * (uint64_t)l->ranks->count;
}

/* Read sample n into slot i of the buffers; returns the sum of its weights. */
static double read_sample(learner *l, const struct samples *samples, uint64_t n, size_t i)
{
	const size_t at = i * samples->length;
	double sum = 0;

	samples->read(samples->context, n, l->tokens + at, l->targets + at, l->weight + at);
	for (size_t t = 0; t < samples->length; t++)
		sum += (double)l->weight[at + t];
	return sum;
}

static struct batch batch_at(const learner *l, size_t i, size_t count, size_t length)
{
	return (struct batch){
	    count, length, l->tokens + i * length, l->targets + i * length, l->weight + i * length, l->numbers + i};
}

/* ---------------------------------------------------------------------------------------------------- gradients -- */

/* What the micro batches of a step gave, or how they failed. */
struct sums {
	double loss, correct, counted;
	double bad; /* the first sample of a micro batch whose loss is not finite, plus 1; 0: there is none */
};

static rosa_status learn_batch(learner *l, double weight, struct sums *sums, rosa_error *err)
{
	const size_t micro = (size_t)l->options.micro_batch;
	rosa_status status = ROSA_OK;

	network_set_seed(l->network, l->options.seed);
	for (size_t i = 0; i < l->mine && status == ROSA_OK && sums->bad == 0; i += micro) {
		const size_t count = l->mine - i < micro ? l->mine - i : micro;
		const struct batch batch = batch_at(l, i, count, l->samples.length);
		struct batch_result result = {0};

		status = network_learn(l->network, &batch, (float)(1 / weight), &result, err);
		sums->loss += result.loss;
		sums->correct += (double)result.correct;
		sums->counted += (double)result.counted;
		if (status == ROSA_OK && !isfinite(result.loss))
			sums->bad = (double)l->numbers[i] + 1;
	}
	return status;
}

/* Sum the gradients over all processes, by way of host memory. */
static rosa_status exchange_gradients(learner *l, rosa_error *err)
{
	struct parameters *parameters = network_parameters(l->network);
	struct backend *backend = parameters->backend;
	rosa_status status = ROSA_OK;

	if (l->ranks->count == 1)
		return ROSA_OK;
	for (size_t i = 0; i < parameters->count && status == ROSA_OK; i++) {
		const struct parameter *parameter = &parameters->all[i];

		for (size_t at = 0; parameter->grad && at < parameter->count && status == ROSA_OK; at += EXCHANGE) {
			const size_t left = parameter->count - at, count = left < EXCHANGE ? left : EXCHANGE;

			backend->ops->get(backend, l->exchange, parameter->grad + at, count * sizeof(float));
			status = ranks_sum_floats(l->ranks, l->exchange, count, err);
			backend->ops->put(backend, parameter->grad + at, l->exchange, count * sizeof(float));
		}
	}
	return status;
}

/* Sum the results over all processes, and find the first bad sample of any. */
static rosa_status exchange_sums(learner *l, struct sums *sums, rosa_error *err)
{
	double numbers[3] = {sums->loss, sums->correct, sums->counted};
	rosa_status status = ranks_sum_doubles(l->ranks, numbers, 3, err);
	const int asked = ranks_any(l->ranks, sums->bad > 0) ? l->ranks->count : 0;

	for (int r = 0; r < asked && status == ROSA_OK; r++) {
		double bad = r == l->ranks->rank ? sums->bad : 0;

		status = ranks_sum_doubles(l->ranks, &bad, 1, err);
		if (bad > 0 && (sums->bad == 0 || bad < sums->bad))
			sums->bad = bad;
	}
	sums->loss = numbers[0];
	sums->correct = numbers[1];
	sums->counted = numbers[2];
	return status;
}

static rosa_status check_loss(const learner *l, uint64_t first, const struct sums *sums, rosa_error *err)
{
	if (sums->bad == 0)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EINVAL,
			 "the loss is not finite, first with sample %.0f of the batch of samples %" PRIu64
			 " to %" PRIu64 "; nothing was learnt from it",
			 sums->bad - 1, first, first + l->options.batch - 1);
}

static rosa_status take_step(learner *l, uint64_t step, double adapter_rate, double backbone_rate,
			     struct learner_result *result, rosa_error *err)
{
	struct parameters *parameters = network_parameters(l->network);
	struct step_rates rates = {.backbone = backbone_rate,
				   .adapter = adapter_rate,
				   .vectors = adapter_rate * l->options.vector_factor,
				   .beta1 = l->options.beta1,
				   .beta2 = l->options.beta2,
				   .eps = l->options.eps,
				   .decay = l->options.decay,
				   .step = step + 1,
				   .scale = 1};

	result->norm = parameters_gradient_norm(parameters);
	if (!isfinite(result->norm))
		return rosa_fail(err, ROSA_EINVAL,
				 "the loss is %g but its gradient is not finite, in the batch of samples %" PRIu64
				 " to %" PRIu64 "; nothing was learnt from it",
				 result->loss, step * l->options.batch, (step + 1) * l->options.batch - 1);
	if (l->options.clip > 0 && result->norm > l->options.clip)
		rates.scale = (float)(l->options.clip / result->norm);
	parameters_step(parameters, &rates);
	return ROSA_OK;
}

/* The scales of new adapters, from the first sample of the step. Every process measures the same one, so all have the
 * same scales, whatever the number of processes and the size of a micro batch. */
static rosa_status measure_units(learner *l, uint64_t first, rosa_error *err)
{
	const struct batch batch = batch_at(l, 0, 1, l->samples.length);

	if (!network_lacks_units(l->network))
		return ROSA_OK;
	read_sample(l, &l->samples, first, 0);
	return network_measure_units(l->network, &batch, err);
}

rosa_status learner_step(learner *l, uint64_t step, double adapter_rate, double backbone_rate,
			 struct learner_result *result, rosa_error *err)
{
	const uint64_t first = step * l->options.batch;
	struct sums sums = {0};
	double weight = 0;
	rosa_status status;

	*result = (struct learner_result){.loss = NAN};
	status = measure_units(l, first, err);
	if (status != ROSA_OK)
		return status;
	for (size_t i = 0; i < l->mine; i++) {
		l->numbers[i] = sample_number(l, first, i);
		weight += read_sample(l, &l->samples, l->numbers[i], i);
	}
	status = ranks_sum_doubles(l->ranks, &weight, 1, err);
	if (status != ROSA_OK || weight == 0)
		return status;
	parameters_clear_gradients(network_parameters(l->network));
	status = learn_batch(l, weight, &sums, err);
	status = ranks_agree(l->ranks, status, err);
	if (status == ROSA_OK)
		status = exchange_sums(l, &sums, err);
	if (status == ROSA_OK)
		status = check_loss(l, first, &sums, err);
	if (status == ROSA_OK)
		status = exchange_gradients(l, err);
	if (status != ROSA_OK)
		return status;
	result->loss = sums.loss / weight;
	result->correct = (uint64_t)sums.correct;
	result->counted = (uint64_t)sums.counted;
	return take_step(l, step, adapter_rate, backbone_rate, result, err);
}

/* Sums over what was judged, which are added up over all processes. */
struct judged {
	double loss, weight, correct, counted, far, far_weight;
};

/* Adds the losses of far tokens of one sample, whose arrays begin at `at`. `text` and `distance` are scratch memory for
 * its tokens and the last target, which is part of the text. */
static rosa_status add_far(const learner *l, size_t at, size_t length, const double *losses, uint32_t *text,
			   uint32_t *distance, struct judged *sums, rosa_error *err)
{
	const uint64_t window = network_settings(l->network)->adapter.window;
	rosa_status status;

	memcpy(text, l->tokens + at, length * sizeof(*text));
	text[length] = l->targets[at + length - 1];
	status = far_distances(text, length + 1, distance, err);
	for (size_t t = 0; t < length && status == ROSA_OK; t++) {
		if (distance[t + 1] && distance[t + 1] >= window) {
			sums->far += losses[t];
			sums->far_weight += (double)l->weight[at + t];
		}
	}
	return status;
}

/* A micro batch that has been read into the buffers. */
static rosa_status judge_batch(learner *l, const struct batch *batch, enum past_reads reads, struct judged *sums,
			       rosa_error *err)
{
	const size_t length = batch->steps;
	double *losses = malloc(batch->count * length * sizeof(*losses));
	uint32_t *text = malloc(2 * (length + 1) * sizeof(*text));
	const struct network_judging judging = {.reads = reads, .losses = losses};
	struct batch_result judged = {0};
	rosa_status status = losses && text ? network_judge(l->network, batch, &judging, &judged, err)
					    : rosa_fail(err, ROSA_ENOMEM, "no memory for the losses of %zu tokens",
							batch->count * length);

	sums->loss += judged.loss;
	sums->weight += judged.weight;
	sums->correct += (double)judged.correct;
	sums->counted += (double)judged.counted;
	for (size_t i = 0; i < batch->count && status == ROSA_OK && network_settings(l->network)->adapter.window; i++)
		status = add_far(l, i * length, length, losses + i * length, text, text + length + 1, sums, err);
	free(losses);
	free(text);
	return status;
}

rosa_status learner_judge(learner *l, const struct learner_judging *judging, struct learner_result *result,
			  rosa_error *err)
{
	const struct samples *samples = judging->samples;
	const size_t micro = (size_t)l->options.micro_batch, mine = share_of(l->ranks, judging->count);
	struct judged sums = {0};
	rosa_status status = ROSA_OK;

	*result = (struct learner_result){.loss = NAN, .far = NAN};
	for (size_t i = 0; i < mine && status == ROSA_OK; i += micro) {
		const size_t taken = mine - i < micro ? mine - i : micro;
		const struct batch batch = batch_at(l, 0, taken, samples->length);

		for (size_t j = 0; j < taken; j++)
			read_sample(l, samples, sample_number(l, 0, i + j), j);
		status = judge_batch(l, &batch, judging->reads, &sums, err);
		if (status == ROSA_OK && judging->progress && judging->progress(judging->context, i + taken, mine))
			status = rosa_fail(err, ROSA_ECANCELLED, "stopped");
	}
	status = ranks_agree(l->ranks, status, err);
	if (status == ROSA_OK)
		status = ranks_sum_doubles(l->ranks, &sums.loss, sizeof(sums) / sizeof(double), err);
	if (status == ROSA_OK && sums.weight > 0)
		*result = (struct learner_result){.loss = sums.loss / sums.weight,
						  .correct = (uint64_t)sums.correct,
						  .counted = (uint64_t)sums.counted,
						  .far = sums.far_weight > 0 ? sums.far / sums.far_weight : NAN};
	return status;
}
