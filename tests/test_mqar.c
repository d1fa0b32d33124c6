/*
 * Associative recall: the examples follow their rules, counting counts, and a network learns with adapters what it
 * cannot learn with a window.
 */
#include "train/mqar_train.h"
#include "support_test.h"

#define LONGEST 512

struct made {
	uint32_t tokens[LONGEST], targets[LONGEST];
	float weight[LONGEST];
	int32_t answer[LONGEST];
};

static void make(const struct mqar *task, uint64_t n, struct made *made)
{
	assert_true(task->length <= LONGEST);
	must(mqar_check(task, &err));
	mqar_example(task, n, made->tokens, made->targets, made->weight, made->answer);
}

/* ------------------------------------------------------------------------------------------------------ examples -- */

static const struct mqar tasks[] = {
    {8192, 64, 512, 1, 0, 0.01, MQAR_WITHOUT_KEYS, false, 1},
    {8192, 64, 512, 1, 0, 0.01, MQAR_RANDOM, false, 2},
    {64, 8, 37, 1, 0, 0.1, MQAR_NONE, false, 3},
    {97, 8, 32, 1, 0, 0.01, MQAR_WITHOUT_KEYS, true, 4},
    {60, 6, 50, 2, 5, 0.5, MQAR_WITHOUT_KEYS, false, 5},
    {60, 6, 51, 2, 5, 1, MQAR_WITHOUT_KEYS, true, 6},
    {60, 6, 64, 4, 3, 0.5, MQAR_WITHOUT_KEYS, false, 5},
    {60, 5, 110, 8, 2, 1, MQAR_WITHOUT_KEYS, true, 6},
    {4, 1, 4, 1, 0, 0.01, MQAR_NONE, false, 7},
    {64, 31, 130, 1, 31, 0.01, MQAR_WITHOUT_KEYS, false, 8},
};

#define TASKS (COUNT(tasks))

/* The pairs: names and values where they belong, no key and no value twice. */
static void check_pairs(const struct mqar *task, const struct made *made)
{
	const struct mqar_words words = mqar_words(task);
	const size_t size = task->name_tokens;

	for (size_t i = 0; i < task->pairs; i++) {
		const uint32_t *pair = made->tokens + i * words.slot;

		for (size_t j = 0; j < size; j++)
			assert_in_range(pair[j], 1, words.names);
		assert_in_range(pair[size], words.first_value, task->vocabulary - 1);
		for (size_t k = 0; k < i; k++) {
			const uint32_t *other = made->tokens + k * words.slot;

			assert_memory_not_equal(pair, other, size * sizeof(*pair));
			assert_int_not_equal(pair[size], other[size]);
		}
	}
}

/* The queries: each key is asked for once, after the pairs, and its answer is where `answer` says. */
static void check_queries(const struct mqar *task, const struct made *made)
{
	const struct mqar_words words = mqar_words(task);
	const size_t size = task->name_tokens;
	bool asked[64] = {false};
	size_t count = 0;

	for (size_t t = 0; t < task->length; t++) {
		assert_true(made->weight[t] == 0 || made->weight[t] == 1);
		assert_int_equal(made->weight[t] == 1, made->answer[t] >= 0);
		assert_true(made->tokens[t] < task->vocabulary && made->targets[t] < task->vocabulary);
		if (made->weight[t] == 0)
			continue;
		const size_t place = (size_t)made->answer[t], pair = place / words.slot;
		assert_true(t >= words.context && (t - words.context) % words.slot == size - 1);
		assert_int_equal(place % words.slot, size);
		assert_true(pair < task->pairs && !asked[pair]);
		asked[pair] = true;
		assert_int_equal(made->targets[t], made->tokens[place]);
		for (size_t j = 0; j < size; j++)
			assert_int_equal(made->tokens[t + 1 - size + j],
					 mqar_second_name(task, made->tokens[pair * words.slot + j]));
		count++;
	}
	assert_int_equal(count, task->pairs);
}

/* Whether a position belongs to a query. */
static bool in_query(const struct mqar *task, const struct made *made, size_t t)
{
	for (size_t j = 0; j < task->name_tokens && t + j < task->length; j++)
		if (made->weight[t + j] == 1)
			return true;
	return false;
}

static bool is_name(const struct mqar *task, const struct made *made, uint32_t token)
{
	const struct mqar_words words = mqar_words(task);

	for (size_t i = 0; i < task->pairs; i++)
		for (size_t j = 0; j < task->name_tokens; j++) {
			const uint32_t name = made->tokens[i * words.slot + j];
			if (token == name || token == mqar_second_name(task, name))
				return true;
		}
	return false;
}

static void check_filler(const struct mqar *task, const struct made *made, size_t *names, size_t *filled)
{
	for (size_t t = mqar_words(task).context; t < task->length; t++) {
		if (in_query(task, made, t))
			continue;
		++*filled;
		*names += is_name(task, made, made->tokens[t]);
		if (task->filler == MQAR_NONE)
			assert_int_equal(made->tokens[t], 0);
	}
}

TEST(test_examples)
{
	struct made made;

	for (size_t i = 0; i < TASKS; i++) {
		size_t names = 0, filled = 0;

		for (uint64_t n = 0; n < 200; n++) {
			make(&tasks[i], n, &made);
			check_pairs(&tasks[i], &made);
			check_queries(&tasks[i], &made);
			check_filler(&tasks[i], &made, &names, &filled);
		}
		assert_true(filled > 0);
		if (tasks[i].filler == MQAR_RANDOM)
			assert_true(names > 0); /* 200 examples of 320: 64 of 8192 tokens come up */
		else
			assert_int_equal(names, 0);
	}
}

/* Filler without keys is still filler from everything else. */
TEST(test_filler_variety)
{
	const struct mqar task = {97, 8, 128, 1, 0, 0.01, MQAR_WITHOUT_KEYS, true, 4};
	bool seen[97] = {false};
	struct made made;

	for (uint64_t n = 0; n < 100; n++) {
		make(&task, n, &made);
		for (size_t t = 16; t < 128; t++)
			if (!in_query(&task, &made, t))
				seen[made.tokens[t]] = true;
	}
	for (size_t i = 0; i < 97; i++)
		assert_true(seen[i]);
}

/* Examples are a function of seed and number: the same again, others with another number or seed. */
TEST(test_deterministic)
{
	struct mqar task = tasks[0];
	struct made first, again, other;

	make(&task, 5, &first);
	make(&task, 5, &again);
	assert_memory_equal(&first, &again, sizeof(first));
	make(&task, 6, &other);
	assert_memory_not_equal(first.tokens, other.tokens, task.length * sizeof(uint32_t));
	task.seed++;
	make(&task, 5, &other);
	assert_memory_not_equal(first.tokens, other.tokens, task.length * sizeof(uint32_t));
	mqar_example(&tasks[0], 5, again.tokens, again.targets, again.weight, NULL);
	assert_memory_equal(first.tokens, again.tokens, task.length * sizeof(uint32_t));
}

TEST(test_second_names)
{
	struct mqar task = {100, 8, 64, 1, 0, 0.01, MQAR_NONE, true, 9};
	bool taken[100] = {false};
	size_t moved = 0;

	for (uint32_t name = 1; name <= 33; name++) {
		const uint32_t second = mqar_second_name(&task, name);

		assert_in_range(second, 34, 66);
		assert_false(taken[second]);
		taken[second] = true;
		moved += second != name + 33;
	}
	assert_true(moved > 20);
	task.rename = false;
	assert_int_equal(mqar_second_name(&task, 7), 7);
}

/* Of one query in 64 slots, the first slot's share is 1 / (1 + 2^-0.99 + 3^-0.99 + ...), 0.21; that of slots 32 to 63,
 * which a uniform draw would give half of the time, 0.15. With power 1 all slots are alike. */
TEST(test_gaps)
{
	struct mqar task = {64, 1, 130, 1, 0, 0.01, MQAR_NONE, false, 1};
	const struct {
		double power;
		int first[2], late[2];
	} wanted[] = {{0.01, {730, 950}, {490, 700}}, {1, {30, 95}, {1900, 2100}}};
	struct made made;

	for (size_t i = 0; i < 2; i++) {
		int first = 0, late = 0;

		task.power = wanted[i].power;
		for (uint64_t n = 0; n < 4000; n++) {
			make(&task, n, &made);
			first += made.weight[2] == 1;
			for (size_t t = 2 + 64; t < 130; t++)
				late += made.weight[t] == 1;
		}
		assert_in_range(first, wanted[i].first[0], wanted[i].first[1]);
		assert_in_range(late, wanted[i].late[0], wanted[i].late[1]);
	}
}

TEST(test_refused)
{
	const struct mqar wrong[] = {
	    {8192, 0, 512, 1, 0, 0.01, MQAR_NONE, false, 1},  {8192, 129, 512, 1, 0, 0.01, MQAR_NONE, false, 1},
	    {64, 40, 512, 1, 0, 0.01, MQAR_NONE, false, 1},   {3, 1, 8, 1, 0, 0.01, MQAR_NONE, false, 1},
	    {8192, 64, 512, 9, 0, 0.01, MQAR_NONE, false, 1}, {8192, 64, 512, 1, 0, 0, MQAR_NONE, false, 1},
	    {8192, 64, 512, 1, 0, 1.5, MQAR_NONE, false, 1},  {128, 64, 512, 1, 100, 0.01, MQAR_NONE, false, 1},
	    {97, 33, 512, 1, 0, 0.01, MQAR_NONE, true, 1},    {8192, 64, 100, 1, 0, 0.01, MQAR_NONE, false, 1},
	};

	for (size_t i = 0; i < COUNT(wrong); i++) {
		rosa_error err = {0};

		assert_int_equal(mqar_check(&wrong[i], &err), ROSA_EINVAL);
		assert_true(strlen(err.message) > 10);
	}
}

/* ------------------------------------------------------------------------------------------------------ counting -- */

TEST(test_watch)
{
	/* two sequences, two routes of two bits, three steps; the value at step 1 is asked for at step 2 */
	const uint16_t query[] = {0, 1, 2, 3, 3, 3, 0, 0, 1, 1, 1, 1}, key[] = {2, 1, 2, 3, 0, 3, 1, 0, 0, 0, 1, 1};
	const int32_t tau[] = {-1, -1, 1, -1, -1, 0, -1, -1, 1, -1, -1, -1};
	const int32_t answer[] = {-1, -1, 1, -1, -1, 1};
	const struct network_view view = {
	    .layer = 1, .count = 2, .steps = 3, .routes = 2, .tau = tau, .query = query, .key = key};
	struct mqar_watch watch;
	struct mqar_layer layer;

	must(mqar_watch_new(&watch, 2, 4, 2, &err));
	watch.answer = answer;
	for (int again = 0; again < 2; again++) {
		mqar_watch_clear(&watch);
		mqar_watch_batch(&watch, &view);
		mqar_watch_layer(&watch, 1, &layer);
		assert_true(layer.adapted);
		assert_true(layer.right == 0.5);
		assert_true(layer.found == 0.75);
		assert_true(layer.meets == 0.75);
		assert_true(layer.agree == 7.0 / 12);
		assert_true(layer.queries == 2.5);
		assert_true(layer.keys == 3);
		mqar_watch_layer(&watch, 0, &layer);
		assert_false(layer.adapted);
	}
	mqar_watch_free(&watch);
}

/* ------------------------------------------------------------------------------------------------------ learning -- */

static struct mqar_setup small(enum mqar_mode mode)
{
	struct mqar_setup setup = {.network = network_options_default(),
				   .vector_factor = 1,
				   .decay = 0.01,
				   .clip = 1,
				   .warmup = 10,
				   .seed = 1};

	setup.task = (struct mqar){64, 4, 32, 1, 0, 0.01, MQAR_WITHOUT_KEYS, false, 1};
	setup.mode = mode;
	setup.layers = 1;
	setup.heads = 2;
	setup.width = 32;
	setup.network.adapter = adapter_options_paper();
	setup.network.adapter.window = 4;
	setup.network.adapter.qk = QK_SHARED;
	setup.network.adapter.e_start = 0.5f;
	setup.examples = 320;
	setup.batch = 32;
	setup.epochs = 4;
	setup.held_out = 64;
	setup.rate = setup.adapter_rate = 0.02;
	setup.warmup = 5;
	return setup;
}

/* Trains, and gives the last epoch. */
static struct mqar_epoch learn(const struct mqar_setup *setup, rosa_workers *workers)
{
	mqar_trainer *trainer;
	struct mqar_epoch before, after;
	struct learner_result result;
	rosa_error err = {0};

	must(mqar_trainer_new(setup, workers, &trainer, &err));
	must(mqar_trainer_judge(trainer, 0, &before, &err));
	assert_true(before.accuracy < 0.2);
	assert_int_equal(before.asked, setup->held_out * setup->task.pairs);
	for (uint64_t step = 0; step < mqar_trainer_steps(trainer); step++)
		must(mqar_trainer_step(trainer, step, &result, &err));
	must(mqar_trainer_judge(trainer, mqar_trainer_steps(trainer), &after, &err));
	assert_int_equal(after.epoch, setup->epochs);
	mqar_trainer_free(trainer);
	return after;
}

TEST(test_learns_with_adapters)
{
	struct mqar_setup rosa = small(MQAR_ROSA), window = small(MQAR_WINDOW);
	struct mqar_epoch with, without;

	with = learn(&rosa, *state);
	without = learn(&window, *state);
	print_message("accuracy with adapters %.3f, with a window alone %.3f\n", with.accuracy, without.accuracy);
	assert_true(with.accuracy > 0.95);
	assert_true(with.layers[0].adapted && with.layers[0].right > 0.9 && with.layers[0].meets > 0.9);
	assert_true(with.layers[0].agree == 1);
	assert_true(without.accuracy < 0.2);
	assert_false(without.layers[0].adapted);
}

/* An adapter that is off, or held still, leaves the network as if there were none. */
TEST(test_adapters_by_layer)
{
	struct mqar_setup setup = small(MQAR_ROSA);
	struct mqar_epoch epoch;

	setup.layers = 2;
	setup.adapters = 1 << 1;
	setup.epochs = 1;
	setup.network.adapter.v_start = V_IDENTITY;
	setup.frozen = (const char *const[]){"embed_tokens", "v_proj"};
	setup.frozen_count = 2;
	epoch = learn(&setup, *state);
	assert_true(epoch.layers[0].adapted && epoch.layers[1].adapted); /* the first one looks, and says nothing */
	setup.adapters = 1 << 2;
	mqar_trainer *trainer;
	assert_int_equal(mqar_trainer_new(&setup, *state, &trainer, &err), ROSA_EINVAL);
	assert_null(trainer);
}

TEST(test_threads_change_nothing)
{
	struct mqar_setup setup = small(MQAR_ROSA);
	struct mqar_epoch epochs[2];

	setup.epochs = 1;
	setup.network.adapter.learning.explore = 0.2f;
	for (int threads = 1; threads <= 2; threads++) {
		rosa_workers *workers;

		must(rosa_workers_new(threads, NULL, &workers, &err));
		epochs[threads - 1] = learn(&setup, workers);
		rosa_workers_free(workers);
	}
	assert_true(epochs[0].loss == epochs[1].loss && epochs[0].accuracy == epochs[1].accuracy);
}

static int begin(void **state)
{
	rosa_workers *workers = NULL;

	if (rosa_workers_new(2, NULL, &workers, &err) != ROSA_OK)
		return -1;
	*state = workers;
	return 0;
}

static int end(void **state)
{
	rosa_workers_free(*state);
	return 0;
}

TEST_GROUP(begin, end)
