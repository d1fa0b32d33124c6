/*
 * The trainable decoder: its loss against the decoder that runs models, its gradients against differences of the loss,
 * and itself in other ways of computing the same. The comparison with PyTorch, tensor by tensor, is in python/tests.
 *
 * Retrieval is not differentiable, so differences are taken without it, and with adapters only in what lies behind the
 * choice of destinations: e0, e1 and Wout of the last layer.
 */
#include "support_decoder.h"
#include "support_test.h"

#include "base/draw.h"
#include "train/network.h"

#include <math.h>
#include <unistd.h>

#define SEQUENCES ((size_t)2)
#define STEPS     ((size_t)40)

struct training {
	struct checkpoint checkpoint;
	struct network_options options;
	rosa_workers *workers;
	struct backend *backend;
	network *network;
	struct parameters *parameters; /* of the network */
	uint32_t tokens[SEQUENCES * STEPS], targets[SEQUENCES * STEPS];
	float weight[SEQUENCES * STEPS];
	struct batch batch;
};

TEST_CLOSER(close_workers, rosa_workers_free)
TEST_CLOSER(close_backend, cpu_backend_free)
TEST_CLOSER(close_network, network_free)

/* Another network each time; those before stay until the test's memory is released. */
static void start(struct training *b, int threads)
{
	must(rosa_workers_new(threads, NULL, &b->workers, &err));
	test_later(close_workers, b->workers);
	must(cpu_backend_new(b->workers, &b->backend, &err));
	test_later(close_backend, b->backend);
	must(network_load(&b->checkpoint, NULL, &b->options, b->backend, b->workers, &b->network, &err));
	test_later(close_network, b->network);
	b->parameters = network_parameters(b->network);
	must(parameters_train(b->parameters, true, true, &err));
}

static void close_bench(void *bench)
{
	checkpoint_close(&((struct training *)bench)->checkpoint);
}

static struct training *open_bench(const struct tiny_model *model)
{
	struct training *b = test_zeros(1, sizeof(*b));
	char path[] = "network-test-XXXXXX";
	int descriptor = mkstemp(path);

	test_later(close_bench, b);
	assert_true(descriptor >= 0);
	close(descriptor);
	tiny_model_save(model, path);
	must(checkpoint_open(path, &b->checkpoint, &err));
	unlink(path);
	b->options = network_options_default();
	b->options.adapter = adapter_options_paper();
	b->options.rosa = false;
	b->options.adapter.bits = 8;
	b->options.adapter.window = 0;
	b->options.adapter.e_start = 0.2f;
	for (size_t i = 0; i < SEQUENCES * STEPS; i++) {
		b->tokens[i] = (uint32_t)(draw_long(3, 0, i) % model->vocabulary);
		b->targets[i] = (uint32_t)(draw_long(3, 1, i) % model->vocabulary);
		b->weight[i] = (float)(draw_long(3, 2, i) % 3) / 2;
	}
	b->batch = (struct batch){SEQUENCES, STEPS, b->tokens, b->targets, b->weight, NULL};
	return b;
}

/* TINY_MODEL; with an adapter beside a window of so many, or without either (0). */
static struct training *open_tiny(size_t window)
{
	const struct tiny_model model = TINY_MODEL;
	struct training *b = open_bench(&model);

	b->options.rosa = window > 0;
	b->options.adapter.window = window;
	return b;
}

static double loss_of(struct training *b)
{
	struct batch_result result;

	must(network_judge(b->network, &b->batch, NULL, &result, &err));
	return result.loss;
}

/* Logits as they come, against the losses beside them. */
struct shown {
	const struct batch *batch;
	size_t vocabulary, rows;
	double losses[SEQUENCES * STEPS];
};

static void see_logits(void *context, size_t first, size_t rows, const float *logits)
{
	struct shown *shown = context;

	assert_int_equal(first, shown->rows);
	shown->rows += rows;
	for (size_t i = 0; i < rows; i++) {
		const float *row = logits + i * shown->vocabulary;
		double sum = 0;

		for (size_t x = 0; x < shown->vocabulary; x++)
			sum += exp((double)row[x]);
		shown->losses[first + i] = (double)shown->batch->weight[first + i] *
					   (log(sum) - (double)row[shown->batch->targets[first + i]]);
	}
}

static struct batch_result learn(struct training *b)
{
	struct batch_result result;

	parameters_clear_gradients(b->parameters);
	must(network_learn(b->network, &b->batch, 1, &result, &err));
	return result;
}

/* Along a random direction the loss changes as the gradient says. */
static void check_direction(struct training *b, struct parameter *parameter, double tolerance)
{
	float *kept = test_alloc(parameter->count * sizeof(*kept));
	const double reach = 2e-3;
	double along = 0, size = 0, loss[2];

	memcpy(kept, parameter->value, parameter->count * sizeof(*kept));
	for (size_t i = 0; i < parameter->count; i++) {
		const double step = draw_long(9, 0, i) % 2 ? 1 : -1;

		along += step * (double)parameter->grad[i];
		size += (double)parameter->grad[i] * (double)parameter->grad[i];
	}
	for (int side = 0; side < 2; side++) {
		for (size_t i = 0; i < parameter->count; i++) {
			const double step = (draw_long(9, 0, i) % 2 ? 1 : -1) * reach / sqrt((double)parameter->count);

			parameter->value[i] = kept[i] + (float)(side ? step : -step);
		}
		loss[side] = loss_of(b);
	}
	memcpy(parameter->value, kept, parameter->count * sizeof(*kept));
	const double expected = along / sqrt((double)parameter->count), found = (loss[1] - loss[0]) / (2 * reach);

	if (fabs(found - expected) > tolerance * (1 + sqrt(size)))
		fail_msg("%s: the loss changes by %g, the gradient says %g", parameter->name, found, expected);
}

TEST(gradients_are_what_the_loss_does)
{
	const size_t windows[][2] = {{0, 0}, {6, 0}, {6, 3}, {3, 9}};

	for (size_t i = 0; i < 4 * ARCHITECTURES; i++) {
		struct tiny_model model = TINY_MODEL;

		model.architecture = (enum architecture)(i / 4);
		model.tied = i % 2;
		struct training *b = open_bench(&model);

		b->options.adapter.window = windows[i % 4][0];
		b->options.adapter.sinks = windows[i % 4][1];
		start(b, 2);
		learn(b);
		for (size_t j = 0; j < b->parameters->count; j++)
			check_direction(b, &b->parameters->all[j], 4e-3);
	}
}

static struct parameter *find(const struct training *b, const char *name)
{
	struct parameter *parameter = parameters_find(b->parameters, name);

	if (!parameter)
		fail_msg("there is no %s", name);
	return parameter;
}

TEST(what_is_read_has_gradients)
{
	const char *names[] = {"rosa.layers.2.e0", "rosa.layers.2.e1", "rosa.layers.2.out_proj.weight",
			       "model.layers.2.mlp.down_proj.weight", "lm_head.weight"};

	for (int fusion = ROSA_POST; fusion <= ROSA_PRE; fusion++) {
		struct training *b = open_tiny(5);

		b->options.adapter.fusion = (rosa_fusion)fusion;
		start(b, 2);
		learn(b);
		for (size_t i = 0; i < COUNT(names); i++)
			check_direction(b, find(b, names[i]), 4e-3);
	}
}

/* All gradients of a network, end to end. */
static float *all_gradients(const struct training *b, size_t *count)
{
	float *all, *at;

	*count = 0;
	for (size_t i = 0; i < b->parameters->count; i++)
		*count += b->parameters->all[i].count;
	all = at = test_alloc(*count * sizeof(*all));
	for (size_t i = 0; i < b->parameters->count; at += b->parameters->all[i++].count)
		memcpy(at, b->parameters->all[i].grad, b->parameters->all[i].count * sizeof(*at));
	return all;
}

static void nothing_more(struct training *b)
{
}

/* The loss and all gradients have the same bits with any number of threads, with recomputation and without. `prepare`
 * is called for each network before it learns. */
static void check_ways(struct training *b, void (*prepare)(struct training *b))
{
	static const int threads[] = {1, 2, 3, 3};
	struct batch_result expected, found;
	float *grads[4];

	for (int way = 0; way < 4; way++) {
		size_t count;

		b->options.recompute = way % 2;
		start(b, threads[way]);
		prepare(b);
		found = learn(b);
		grads[way] = all_gradients(b, &count);
		if (way == 0)
			expected = found;
		assert_true(found.loss == expected.loss);
		assert_memory_equal(grads[way], grads[0], count * sizeof(**grads));
	}
}

TEST(threads_and_recomputation_do_not_show)
{
	const rosa_qk_grad rules[] = {ROSA_QK_LINEAR, ROSA_QK_SOFT, ROSA_QK_FLIPS};

	for (size_t r = 0; r < 3; r++) {
		struct training *b = open_tiny(6);

		b->options.adapter.learning.qk_grad = rules[r];
		b->options.adapter.learning.explore = 0.2f;
		check_ways(b, nothing_more);
	}
}

/* How far two lists of gradients are apart, as a share of their size. */
static double distance(const float *left, const float *right, size_t count)
{
	double apart = 0, size = 0;

	for (size_t i = 0; i < count; i++) {
		const double between = (double)left[i] - (double)right[i];

		apart += between * between;
		size += (double)left[i] * (double)left[i];
	}
	return sqrt(apart / size);
}

/* ----------------------------------------------------------------------------------------------------- sources -- */

/* Adapters with all that there is beside the paper's: other sources, chains, strength. */
static const struct {
	struct adapter_sources source;
	enum qk_start qk;
	rosa_fusion fusion;
	enum v_from v_from;
} sourced[] = {
    {{1, {{SOURCE_TOKENS, 0}}}, QK_ALIGNED, ROSA_POST, V_LAYER},
    {{1, {{SOURCE_EMBEDDINGS, 0}}}, QK_ALIGNED, ROSA_POST, V_LAYER},
    {{1, {{SOURCE_OWN, 0}}}, QK_SHARED, ROSA_POST, V_LAYER},
    {{1, {{SOURCE_LAYER, 1}}}, QK_SEPARATE, ROSA_POST, V_LAYER},
    {{2, {{SOURCE_LAYER, 1}, {SOURCE_OWN, 0}}}, QK_SHARED, ROSA_POST, V_LAYER},
    {{3, {{SOURCE_TOKENS, 0}, {SOURCE_OWN, 0}, {SOURCE_EMBEDDINGS, 0}}}, QK_ALIGNED, ROSA_POST, V_LAYER},
    {{1, {{SOURCE_TOKENS, 0}}}, QK_ALIGNED, ROSA_PRE, V_LAYER},
    {{1, {{SOURCE_TOKENS, 0}}}, QK_ALIGNED, ROSA_POST, V_EMBEDDINGS},
    {{1, {{SOURCE_TOKENS, 0}}}, QK_ALIGNED, ROSA_PRE, V_EMBEDDINGS},
    {{2, {{SOURCE_LAYER, 1}, {SOURCE_OWN, 0}}}, QK_SHARED, ROSA_POST, V_EMBEDDINGS},
};

#define SOURCED (COUNT(sourced))

static struct training *open_sourced(size_t i)
{
	struct training *b = open_tiny(6);
	struct adapter_options *adapter = &b->options.adapter;

	adapter->source = sourced[i].source;
	adapter->qk = sourced[i].qk;
	adapter->fusion = sourced[i].fusion;
	adapter->v_from = sourced[i].v_from;
	adapter->delay = 6;
	adapter->chain = 3;
	adapter->gain = adapter->gate = true;
	adapter->units = 0.5f;
	adapter->v_start = V_IDENTITY;
	adapter->learning.v_grad = ROSA_V_STRAIGHT;
	/* texts that say things again */
	for (size_t t = 0; t < SEQUENCES * STEPS; t++)
		b->tokens[t] %= 5;
	return b;
}

/* Vectors that are not where they began. */
static void move_vectors(struct training *b)
{
	for (size_t i = 0; i < b->parameters->count; i++) {
		const struct parameter *parameter = &b->parameters->all[i];

		for (size_t j = 0; parameter->group == ADAPTER && parameter->vector && j < parameter->count; j++)
			parameter->value[j] += (float)(draw_long(11, i, j) % 100) / 500;
	}
}

static void measure(struct training *b)
{
	assert_true(network_lacks_units(b->network));
	must(network_measure_units(b->network, &b->batch, &err));
	assert_false(network_lacks_units(b->network));
}

static double loss_with(struct training *b, enum past_reads reads)
{
	const struct network_judging judging = {.reads = reads};
	struct batch_result result;

	must(network_judge(b->network, &b->batch, &judging, &result, &err));
	return result.loss;
}

/* At the start, and where nothing is read, the model is what it was, to the bit; where something else is read, it is
 * not. */
TEST(sources_begin_with_nothing)
{
	for (size_t i = 0; i < SOURCED; i++) {
		struct training *b = open_sourced(i);
		double plain, found;

		b->options.rosa = false;
		start(b, 2);
		plain = loss_of(b);
		b->options.rosa = true;
		b->options.adapter.e_start = 0;
		start(b, 2);
		measure(b);
		for (size_t layer = 0; layer < b->checkpoint.config.layers; layer++) {
			const bool adapted = layer >= sourced[i].source.all[0].layer || sourced[i].source.count > 1;
			const float scale = network_scales(b->network)[layer];

			assert_true(adapted ? scale > 0 && scale != 1 : scale == 1);
		}
		if (sourced[i].fusion == ROSA_POST)
			assert_true(loss_of(b) == plain);
		else
			assert_true(fabs(loss_of(b) - plain) < 1e-5 * plain);
		move_vectors(b);
		found = loss_with(b, READS_FOUND);
		assert_true(found == loss_of(b) && fabs(found - plain) > 1e-6 * plain);
		if (sourced[i].fusion == ROSA_POST)
			assert_true(loss_with(b, READS_NOTHING) == plain);
		assert_true(fabs(loss_with(b, READS_RANDOM) - found) > 1e-6 * plain);
	}
}

static void measure_and_move(struct training *b)
{
	measure(b);
	move_vectors(b);
}

TEST(sources_have_gradients)
{
	const char *names[] = {"e0", "e1", "out_proj.weight", "gain", "gate.weight", "gate.bias"};

	for (size_t i = 0; i < SOURCED; i++) {
		struct training *b = open_sourced(i);

		start(b, 2);
		measure_and_move(b);
		learn(b);
		for (size_t j = 0; j < COUNT(names); j++) {
			char name[64];

			snprintf(name, sizeof(name), "rosa.layers.2.%s", names[j]);
			check_direction(b, find(b, name), 4e-3);
		}
		/* nothing of q and k where no source learns them */
		assert_true(!parameters_find(b->parameters, "rosa.layers.2.k_proj.weight") ==
			    (sourced[i].source.all[0].kind != SOURCE_OWN && sourced[i].source.count == 1));
	}
}

TEST(sources_compute_the_same_in_any_way)
{
	for (size_t i = 0; i < SOURCED; i++) {
		struct training *b = open_sourced(i);

		b->options.adapter.learning.explore = 0.2f;
		check_ways(b, measure_and_move);
	}
}

/* The last layer's q and k, read by it alone, are its own. Read by a second layer too, they learn from both. */
TEST(layers_share_queries_and_keys)
{
	struct training *b = open_sourced(3);
	float *grads[3];
	size_t counts[3];

	b->options.adapter.window = b->options.adapter.delay = 0;
	for (int way = 0; way < 3; way++) {
		const struct adapter_source own = {SOURCE_OWN, 0}, layer = {SOURCE_LAYER, way == 2 ? 1 : 2};

		b->options.adapter.source = (struct adapter_sources){1, {way ? layer : own}};
		/* a global layer has no adapter, but is the same */
		b->options.adapter.first_global_layers = way ? 0 : 2;
		start(b, 2);
		move_vectors(b);
		learn(b);
		grads[way] = all_gradients(b, &counts[way]);
	}
	assert_int_equal(counts[0], counts[1]);
	assert_true(distance(grads[0], grads[1], counts[0]) < 1e-5);
	assert_true(counts[2] > counts[1]);
}

/* Gradients of sequences first .. first + count - 1, added to those that are there; returns their loss. */
static double learn_some(struct training *b, size_t first, size_t count, const uint64_t *numbers)
{
	const struct batch batch = {
	    count,          STEPS, b->tokens + first * STEPS, b->targets + first * STEPS, b->weight + first * STEPS,
	    numbers + first};
	struct batch_result result;

	must(network_learn(b->network, &batch, 1, &result, &err));
	return result.loss;
}

/* What is drawn for a sequence goes by its number, not by what it is learnt together with. */
TEST(company_does_not_show)
{
	const struct {
		rosa_qk_grad rule;
		float explore, flip_share;
	} cases[] = {{ROSA_QK_LINEAR, 0.3f, 1}, {ROSA_QK_FLIPS, 0.3f, 0.5f}, {ROSA_QK_FLIPS, 0, 0.5f}};
	const uint64_t numbers[SEQUENCES] = {5, 9}, others[SEQUENCES] = {5, 10};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct training *b = open_tiny(6);
		float *together, *alone, *different;
		double losses[2];
		size_t count;

		b->options.adapter.learning.qk_grad = cases[i].rule;
		b->options.adapter.learning.explore = cases[i].explore;
		b->options.adapter.learning.flip_share = cases[i].flip_share;
		start(b, 2);
		network_set_seed(b->network, 77);
		losses[0] = learn_some(b, 0, SEQUENCES, numbers);
		together = all_gradients(b, &count);
		parameters_clear_gradients(b->parameters);
		losses[1] = learn_some(b, 1, 1, numbers);
		losses[1] += learn_some(b, 0, 1, numbers);
		alone = all_gradients(b, &count);
		parameters_clear_gradients(b->parameters);
		learn_some(b, 0, SEQUENCES, others);
		different = all_gradients(b, &count);
		assert_true(fabs(losses[0] - losses[1]) < 1e-5 * losses[0]);
		assert_true(distance(together, alone, count) < 1e-4);
		assert_true(distance(together, different, count) > 1e-3);
	}
}

/* ------------------------------------------------------------------------------------------------- tokens seen -- */

static const char *const seen_names[] = {"rosa.seen.table", "rosa.seen.gate", "rosa.seen.query", "rosa.seen.key"};

/* A seen-token head and no other adapter, so that all of the network has derivatives. Texts have few tokens, of two
 * ranks. */
static struct training *open_seeing(bool tied)
{
	struct tiny_model model = TINY_MODEL;

	model.vocabulary = 200;
	model.tied = tied;
	struct training *b = open_bench(&model);

	b->options.rosa = true;
	b->options.adapter.source = (struct adapter_sources){1, {{SOURCE_TOKENS, 0}}};
	b->options.adapter.first_global_layers = model.layers;
	b->options.adapter.delay = 6;
	b->options.adapter.seen = 5;
	for (size_t t = 0; t < SEQUENCES * STEPS; t++) {
		b->tokens[t] = b->tokens[t] % 5 * 40;
		b->targets[t] = t % 3 ? b->targets[t] % 5 * 40 : b->targets[t];
	}
	return b;
}

static void move_seen(struct training *b)
{
	for (size_t i = 0; i < COUNT(seen_names); i++) {
		const struct parameter *parameter = find(b, seen_names[i]);

		for (size_t j = 0; j < parameter->count; j++)
			parameter->value[j] += (float)(draw_long(12, i, j) % 100) / 200 - 0.2f;
	}
}

TEST(a_head_of_tokens_seen_begins_with_nothing)
{
	struct training *b = open_seeing(true);
	double losses[2][SEQUENCES * STEPS], least = 1, most = 0;

	for (int seen = 0; seen < 2; seen++) {
		const struct network_judging judging = {.losses = losses[seen]};
		struct batch_result result;

		b->options.adapter.seen = seen ? 5 : 0;
		start(b, 2);
		must(network_judge(b->network, &b->batch, &judging, &result, &err));
	}
	assert_memory_equal(losses[0], losses[1], sizeof(losses[0]));
	const struct parameter *query = find(b, "rosa.seen.query");

	for (size_t i = 0; i < query->count; i++) {
		least = fmin(least, fabs((double)query->value[i]));
		most = fmax(most, fabs((double)query->value[i]));
	}
	assert_true(least < most && most <= sqrt(6.0 / (5 + 64)) && most > 0.9 * sqrt(6.0 / (5 + 64)));
	learn(b);
	for (size_t i = 0; i < COUNT(seen_names); i++) {
		const struct parameter *parameter = find(b, seen_names[i]);
		double sum = 0;

		for (size_t j = 0; j < parameter->count; j++)
			sum += fabs((double)parameter->grad[j]);
		assert_true((sum > 0) == (i != 2)); /* the query learns once there is a key */
		assert_true(parameter->vector == (i < 2));
	}
}

/* Along the gradient the loss changes by its size. A part that is missing shows, however few numbers it is of. */
static void check_steepest(struct training *b, struct parameter *parameter)
{
	float *kept = test_alloc(parameter->count * sizeof(*kept));
	const double reach = 5e-3;
	double size = 0, loss[2];

	memcpy(kept, parameter->value, parameter->count * sizeof(*kept));
	for (size_t i = 0; i < parameter->count; i++)
		size += (double)parameter->grad[i] * (double)parameter->grad[i];
	size = sqrt(size);
	for (int side = 0; side < 2; side++) {
		for (size_t i = 0; i < parameter->count; i++)
			parameter->value[i] =
			    kept[i] + (float)((side ? reach : -reach) * (double)parameter->grad[i] / size);
		loss[side] = loss_of(b);
	}
	memcpy(parameter->value, kept, parameter->count * sizeof(*kept));
	const double found = (loss[1] - loss[0]) / (2 * reach);

	if (!(fabs(found - size) < 5e-3 * size))
		fail_msg("%s: the loss changes by %g, the gradient says %g", parameter->name, found, size);
}

TEST(a_head_of_tokens_seen_has_gradients)
{
	for (int tied = 0; tied < 2; tied++) {
		struct training *b = open_seeing(tied);

		start(b, 2);
		move_seen(b);
		learn(b);
		for (size_t i = 0; i < b->parameters->count; i++)
			check_steepest(b, &b->parameters->all[i]);
	}
}

TEST(a_head_of_tokens_seen_computes_the_same_in_any_way)
{
	struct training *b = open_seeing(false);
	float *whole, *apart;
	size_t count;

	check_ways(b, move_seen);
	whole = all_gradients(b, &count);
	/* one sequence after the other: the same sums in another order */
	parameters_clear_gradients(b->parameters);
	learn_some(b, 0, 1, (const uint64_t[]){0, 1});
	learn_some(b, 1, 1, (const uint64_t[]){0, 1});
	apart = all_gradients(b, &count);
	assert_true(distance(whole, apart, count) < 1e-5);
}

static struct tensor tensor_of(const struct training *b, const char *name)
{
	const struct parameter *parameter = find(b, name);

	return (struct tensor){.format = FORMAT_F32,
			       .dims = parameter->dims,
			       .shape = {parameter->shape[0], parameter->shape[1]},
			       .data = parameter->value};
}

/* The loss of the batch by the equations of the decoder. */
static double oracle_loss(const struct training *b, const struct adapter *adapter,
			  const struct decoder_options *options)
{
	const size_t vocabulary = b->checkpoint.config.vocabulary;
	double *logits = test_alloc(STEPS * vocabulary * sizeof(*logits)), loss = 0;

	for (size_t i = 0; i < SEQUENCES * STEPS; i++) {
		const double *row = logits + i % STEPS * vocabulary;
		double sum = 0;

		if (i % STEPS == 0)
			oracle_decoder(&b->checkpoint, adapter, options, b->tokens + i, STEPS, logits);
		for (size_t v = 0; v < vocabulary; v++)
			sum += exp(row[v]);
		loss += (double)b->weight[i] * (log(sum) - row[b->targets[i]]);
	}
	return loss;
}

/* What is read makes a difference, too. */
TEST(a_head_of_tokens_seen_is_that_of_the_decoder)
{
	struct training *b = open_seeing(false);
	double losses[3];

	b->options.adapter.window = 7;
	b->options.adapter.delay = KEY_UNSET;
	start(b, 2);
	move_seen(b);
	const struct tensor table = tensor_of(b, seen_names[0]), gate = tensor_of(b, seen_names[1]),
			    query = tensor_of(b, seen_names[2]), key = tensor_of(b, seen_names[3]);
	const struct adapter adapter = {.options = b->options.adapter, .seen = {&table, &gate, &query, &key}};

	for (int reads = READS_FOUND; reads <= READS_RANDOM; reads++) {
		const struct decoder_options options = {
		    .window = 7, .first_global_layers = 3, .reads = (enum past_reads)reads};
		const double expected = oracle_loss(b, &adapter, &options);

		losses[reads] = loss_with(b, (enum past_reads)reads);
		assert_true(fabs(losses[reads] - expected) < 1e-5 * expected);
	}
	assert_true(fabs(losses[0] - losses[1]) > 0.1 && fabs(losses[0] - losses[2]) > 0.1 &&
		    fabs(losses[1] - losses[2]) > 0.1);
}

TEST(the_loss_is_that_of_the_decoder)
{
	const struct decoder_options options = {.window = 7, .sinks = 2};
	struct tiny_model model = TINY_MODEL;
	struct batch_result result;
	double expected, weight = 0;

	model.format = FORMAT_Q8_0;
	struct training *b = open_bench(&model);

	b->options.adapter.window = 7;
	b->options.adapter.sinks = 2;
	start(b, 2);
	result = learn(b);
	expected = oracle_loss(b, NULL, &options);
	for (size_t i = 0; i < SEQUENCES * STEPS; i++)
		weight += (double)b->weight[i];
	assert_true(fabs(result.loss - expected) < 1e-5 * expected);
	assert_true(fabs(result.weight - weight) < 1e-9);
	assert_true(fabs(loss_of(b) - result.loss) < 1e-9 * result.loss);
}

TEST(frozen_weights_stay)
{
	const struct step_rates rates = {1e-2, 1e-2, 1e-2, 0.9, 0.99, 1e-8, 0, 1, 1};
	struct training *b = open_tiny(6);
	struct parameter *frozen, *trained;
	float before[2];

	b->options.adapter.first_global_layers = 1;
	start(b, 1);
	must(parameters_train(b->parameters, false, true, &err));
	frozen = find(b, "model.layers.1.mlp.up_proj.weight");
	trained = find(b, "rosa.layers.1.e0");
	assert_true(!frozen->grad && trained->grad);
	assert_null(parameters_find(b->parameters, "rosa.layers.0.e0"));
	before[0] = frozen->value[0];
	before[1] = trained->value[0];
	learn(b);
	assert_true(parameters_gradient_norm(b->parameters) > 0);
	parameters_step(b->parameters, &rates);
	assert_true(frozen->value[0] == before[0]);
	assert_true(trained->value[0] != before[1]);
}

TEST(it_learns)
{
	struct step_rates rates = {3e-3, 3e-3, 3e-3, 0.9, 0.99, 1e-8, 0.01, 0, 1.0f / 40};
	struct training *b = open_tiny(6);
	double first, last;

	start(b, 2);
	first = last = loss_of(b);
	for (rates.step = 1; rates.step <= 40; rates.step++) {
		last = learn(b).loss;
		parameters_step(b->parameters, &rates);
	}
	assert_true(last < first / 4);
}

TEST(losses_and_logits_agree)
{
	struct training *b = open_tiny(0);
	struct shown shown = {.batch = &b->batch, .vocabulary = b->checkpoint.config.vocabulary};
	double losses[SEQUENCES * STEPS], sum = 0;
	const struct network_judging judging = {.losses = losses, .logits = see_logits, .context = &shown};
	struct batch_result result;

	start(b, 1);
	must(network_judge(b->network, &b->batch, &judging, &result, &err));
	assert_int_equal(shown.rows, SEQUENCES * STEPS);
	for (size_t i = 0; i < SEQUENCES * STEPS; i++) {
		assert_true(fabs(losses[i] - shown.losses[i]) < 1e-5);
		sum += losses[i];
	}
	assert_true(fabs(sum - result.loss) < 1e-9 && fabs(result.loss - loss_of(b)) == 0);
}

TEST(bad_batches_are_refused)
{
	struct training *b = open_tiny(0);
	struct batch_result result;
	network *none;

	start(b, 1);
	b->targets[7] = 50;
	must_fail(network_learn(b->network, &b->batch, 1, &result, &err), ROSA_EINVAL, "token 50");
	b->targets[7] = 0;
	b->batch.steps = 0;
	assert_int_equal(network_learn(b->network, &b->batch, 1, &result, &err), ROSA_EINVAL);
	b->options.rosa = true;
	b->options.adapter.bits = 7;
	assert_int_equal(network_load(&b->checkpoint, NULL, &b->options, b->backend, b->workers, &none, &err),
			 ROSA_EINVAL);
	assert_null(none);
}
