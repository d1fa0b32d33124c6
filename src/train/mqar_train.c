/*
 * Training on associative recall.
 *
 * The steps are the same as in any training (learner.c); what is special is that samples are made when they are read,
 * and that an epoch goes through a fixed number of them, in an order of its own. Held-out examples have numbers that no
 * epoch reaches.
 *
 * Adapters that are switched off in a layer stay there, but inject nothing and do not learn: the forward pass is then
 * that of a layer without one, to the bit.
 */
#include "train/mqar_train.h"

#include "model/config.h"
#include "base/draw.h"
#include "train/permutation.h"
#include "train/schedule.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const mqar_mode_names[] = {"global", "window", "rosa", NULL};

#define HELD_OUT ((uint64_t)1 << 40) /* the first of the held-out examples */
#define ROWS     ((size_t)8192)      /* tokens computed at a time, about: more take more memory and are no faster */

struct mqar_trainer {
	struct mqar_setup setup;
	struct backend *backend;
	network *network;
	struct ranks ranks; /* one process */
	learner *learner;
	struct mqar_watch watch;
	size_t micro; /* sequences at a time, a divisor of the batch */
	uint64_t steps;
	struct schedule backbone, adapter;

	uint32_t *tokens, *targets; /* [micro][length], held out */
	float *weight;
	int32_t *answer;
};

/* -------------------------------------------------------------------------------------------------------- checks -- */

static rosa_status check_network(const struct mqar_setup *setup, rosa_error *err)
{
	const struct adapter_shape shape = {setup->width, setup->layers, setup->task.vocabulary};

	if (!setup->layers || setup->layers > MQAR_MOST_LAYERS)
		return rosa_fail(err, ROSA_EINVAL, "%zu layers: use 1 to %d", setup->layers, MQAR_MOST_LAYERS);
	if (!setup->heads || setup->width % setup->heads || setup->width / setup->heads % 2)
		return rosa_fail(err, ROSA_EINVAL, "%zu heads do not divide a width of %zu into even parts",
				 setup->heads, setup->width);
	if (setup->mode != MQAR_GLOBAL && !setup->network.adapter.window)
		return rosa_fail(err, ROSA_EINVAL, "mode %s needs a window of 1 or more", mqar_mode_names[setup->mode]);
	if (setup->layers < MQAR_MOST_LAYERS && setup->adapters >> setup->layers)
		return rosa_fail(err, ROSA_EINVAL, "--adapter-layers names a layer beyond the %zu of the decoder",
				 setup->layers);
	return setup->mode == MQAR_ROSA ? adapter_options_check(&setup->network.adapter, &shape, "--", err) : ROSA_OK;
}

rosa_status mqar_setup_check(const struct mqar_setup *setup, rosa_error *err)
{
	rosa_status status = mqar_check(&setup->task, err);

	if (status == ROSA_OK)
		status = check_network(setup, err);
	if (status != ROSA_OK)
		return status;
	if (!setup->batch || !setup->examples || setup->examples % setup->batch)
		return rosa_fail(err, ROSA_EINVAL, "%zu examples an epoch are no multiple of the batch, %zu",
				 setup->examples, setup->batch);
	if (!setup->epochs || !setup->held_out)
		return rosa_fail(err, ROSA_EINVAL, "there must be an epoch and a held-out example at least");
	return ROSA_OK;
}

/* The greatest divisor of the batch that is not too much at a time. */
static size_t micro_batch(const struct mqar_setup *setup)
{
	size_t micro = setup->batch;

	while (micro > 1 && (setup->batch % micro || micro * setup->task.length > ROWS))
		micro--;
	return micro;
}

/* ------------------------------------------------------------------------------------------------------- samples -- */

/* A learner's sample: epochs follow each other. */
static void read_example(const void *context, uint64_t n, uint32_t *tokens, uint32_t *targets, float *weight)
{
	const mqar_trainer *t = context;
	const uint64_t examples = t->setup.examples, order = draw_long(t->setup.seed, 1, n / examples);

	mqar_example(&t->setup.task, permutation_place(order, examples, n % examples), tokens, targets, weight, NULL);
}

/* ------------------------------------------------------------------------------------------------------- network -- */

static struct model_config config_of(const struct mqar_setup *setup)
{
	struct model_config config = config_blank();

	config.architecture = LLAMA;
	config.layers = setup->layers;
	config.width = setup->width;
	config.heads = config.kv_heads = setup->heads;
	config.head_size = setup->width / setup->heads;
	config.mlp_width = setup->mlp_width ? setup->mlp_width : 2 * setup->width;
	config.vocabulary = setup->task.vocabulary;
	config.context = setup->task.length;
	config.tied = setup->tied;
	return config;
}

static struct network_options options_of(const struct mqar_setup *setup)
{
	struct network_options options = setup->network;

	options.rosa = setup->mode == MQAR_ROSA;
	if (setup->mode == MQAR_GLOBAL)
		options.adapter.window = options.adapter.sinks = 0;
	options.recompute = false;
	options.seed = draw_long(setup->seed, 2, 0);
	return options;
}

static bool has_adapter(const struct mqar_setup *setup, size_t layer)
{
	return !setup->adapters || setup->adapters >> layer & 1;
}

/* Layers without ROSA get an adapter whose output is zero and whose parameters are frozen. */
static void silence_adapters(mqar_trainer *t)
{
	char name[64];

	for (size_t i = 0; i < t->setup.layers; i++) {
		for (int end = 0; end < 2 && !has_adapter(&t->setup, i); end++) {
			const struct parameter *parameter;

			snprintf(name, sizeof(name), "rosa.layers.%zu.e%d", i, end);
			parameter = parameters_find(network_parameters(t->network), name);
			if (parameter)
				t->backend->ops->training->clear(t->backend, parameter->count, parameter->value);
		}
	}
}

static bool is_frozen(const struct mqar_setup *setup, const struct parameter *parameter)
{
	char layer[64];

	for (size_t i = 0; i < setup->frozen_count; i++)
		if (strstr(parameter->name, setup->frozen[i]))
			return true;
	for (size_t i = 0; i < setup->layers; i++) {
		snprintf(layer, sizeof(layer), "rosa.layers.%zu.", i);
		if (!has_adapter(setup, i) && strncmp(parameter->name, layer, strlen(layer)) == 0)
			return true;
	}
	return false;
}

/* Everything is trained but what is frozen. */
static rosa_status choose_trained(mqar_trainer *t, rosa_error *err)
{
	struct parameters *parameters = network_parameters(t->network);
	rosa_status status = parameters_train(parameters, true, true, err);

	for (size_t i = 0; i < parameters->count && status == ROSA_OK; i++) {
		if (is_frozen(&t->setup, &parameters->all[i]))
			parameters_freeze(parameters, &parameters->all[i]);
	}
	return status;
}

static rosa_status make_network(mqar_trainer *t, rosa_workers *workers, rosa_error *err)
{
	const struct mqar_setup *setup = &t->setup;
	const struct model_config config = config_of(setup);
	const struct network_options options = options_of(setup);
	const float deviation = setup->deviation > 0 ? setup->deviation : (float)(1 / sqrt((double)setup->width));
	rosa_status status = config_check(&config, "the network", err);

	if (status == ROSA_OK)
		status = cpu_backend_new(workers, &t->backend, err);
	if (status == ROSA_OK)
		status = network_new(&config, deviation, &options, t->backend, workers, &t->network, err);
	if (status == ROSA_OK && options.rosa)
		silence_adapters(t);
	if (status == ROSA_OK && options.rosa)
		status = mqar_watch_new(&t->watch, setup->layers, setup->width, (int)options.adapter.bits, err);
	return status == ROSA_OK ? choose_trained(t, err) : status;
}

/* -------------------------------------------------------------------------------------------------------- making -- */

static rosa_status make_learner(mqar_trainer *t, rosa_error *err)
{
	const struct mqar_setup *setup = &t->setup;
	const size_t numbers = t->micro * setup->task.length;
	const struct samples samples = {read_example, t, setup->task.length};
	const struct learner_options options = {.batch = setup->batch,
						.micro_batch = t->micro,
						.beta1 = 0.9,
						.beta2 = 0.95,
						.eps = 1e-8,
						.decay = setup->decay,
						.vector_factor = setup->vector_factor,
						.qk_factor = 1,
						.clip = setup->clip,
						.seed = draw_long(setup->seed, 3, 0)};

	t->tokens = calloc(numbers, sizeof(*t->tokens));
	t->targets = calloc(numbers, sizeof(*t->targets));
	t->weight = calloc(numbers, sizeof(*t->weight));
	t->answer = calloc(numbers, sizeof(*t->answer));
	if (!t->tokens || !t->targets || !t->weight || !t->answer)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for %zu examples of %zu tokens", t->micro,
				 setup->task.length);
	return learner_new(t->network, &t->ranks, &samples, &options, &t->learner, err);
}

rosa_status mqar_trainer_new(const struct mqar_setup *setup, rosa_workers *workers, mqar_trainer **made,
			     rosa_error *err)
{
	rosa_status status = mqar_setup_check(setup, err);
	mqar_trainer *t;

	*made = NULL;
	if (status != ROSA_OK)
		return status;
	t = calloc(1, sizeof(*t));
	if (!t)
		return rosa_fail(err, ROSA_ENOMEM, "no memory to train");
	t->setup = *setup;
	t->ranks = (struct ranks){.rank = 0, .count = 1};
	t->micro = micro_batch(setup);
	t->steps = (uint64_t)setup->epochs * (setup->examples / setup->batch);
	t->backbone = (struct schedule){setup->rate, 0, setup->warmup, t->steps};
	t->adapter = (struct schedule){setup->adapter_rate, 0, setup->warmup, t->steps};
	status = make_network(t, workers, err);
	if (status == ROSA_OK)
		status = make_learner(t, err);
	if (status != ROSA_OK) {
		mqar_trainer_free(t);
		return status;
	}
	*made = t;
	return ROSA_OK;
}

void mqar_trainer_free(mqar_trainer *t)
{
	if (!t)
		return;
	learner_free(t->learner);
	mqar_watch_free(&t->watch);
	network_free(t->network);
	cpu_backend_free(t->backend);
	free(t->tokens);
	free(t->targets);
	free(t->weight);
	free(t->answer);
	free(t);
}

/* ------------------------------------------------------------------------------------------------------ training -- */

uint64_t mqar_trainer_steps(const mqar_trainer *t)
{
	return t->steps;
}

uint64_t mqar_epoch_steps(const mqar_trainer *t)
{
	return t->setup.examples / t->setup.batch;
}

void mqar_trainer_rates(const mqar_trainer *t, uint64_t step, double *backbone, double *adapter)
{
	*backbone = schedule_rate(&t->backbone, step);
	*adapter = schedule_rate(&t->adapter, step);
}

rosa_status mqar_trainer_step(mqar_trainer *t, uint64_t step, struct learner_result *result, rosa_error *err)
{
	double backbone, adapter;

	mqar_trainer_rates(t, step, &backbone, &adapter);
	return learner_step(t->learner, step, adapter, backbone, result, err);
}

rosa_status mqar_trainer_judge(mqar_trainer *t, uint64_t steps, struct mqar_epoch *epoch, rosa_error *err)
{
	const size_t length = t->setup.task.length;
	const bool watching = t->watch.tallies != NULL;
	const struct batch batch = {t->micro, length, t->tokens, t->targets, t->weight, NULL};
	const struct network_judging judging = {.observer = watching ? mqar_watch_batch : NULL, .context = &t->watch};
	uint64_t correct = 0;
	rosa_status status = ROSA_OK;

	*epoch = (struct mqar_epoch){.epoch = steps / mqar_epoch_steps(t), .steps = steps};
	if (watching)
		mqar_watch_clear(&t->watch);
	t->watch.answer = t->answer;
	for (size_t first = 0; first < t->setup.held_out && status == ROSA_OK; first += t->micro) {
		struct batch_result result = {0};

		for (size_t i = 0; i < t->micro; i++)
			mqar_example(&t->setup.task, HELD_OUT + first + i, t->tokens + i * length,
				     t->targets + i * length, t->weight + i * length, t->answer + i * length);
		status = network_judge(t->network, &batch, &judging, &result, err);
		epoch->loss += result.loss;
		epoch->asked += result.counted;
		correct += result.correct;
	}
	if (status != ROSA_OK)
		return status;
	epoch->accuracy = (double)correct / (double)epoch->asked;
	epoch->loss /= (double)epoch->asked;
	for (size_t i = 0; watching && i < t->setup.layers; i++)
		mqar_watch_layer(&t->watch, i, &epoch->layers[i]);
	return ROSA_OK;
}

uint64_t mqar_trainer_parameters(const mqar_trainer *t)
{
	const struct parameters *parameters = network_parameters(t->network);
	uint64_t count = 0;

	for (size_t i = 0; i < parameters->count; i++)
		count += parameters->all[i].count;
	return count;
}
