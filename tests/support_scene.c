/* Settings of the operator. */
#include "support_scene.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

#define RUBBISH 0x7b

static size_t row_bytes(const struct scene *scene)
{
	return operator_cells(&scene->c) * (scene->c.dtype == ROSA_FLOAT32 ? 4 : 2);
}

void scene_make(struct scene *scene)
{
	struct operator_case *c = &scene->c;
	const rosa_learning *learning = &c->learning;
	const size_t all = operator_route_steps(c);
	uint64_t state = scene->seed;

	scene->routes = all / c->steps;
	scene->width = (size_t)c->options.bits + 1;
	scene->query = test_alloc(all * sizeof(*scene->query));
	scene->key = test_alloc(all * sizeof(*scene->key));
	scene->value = test_alloc(all * sizeof(*scene->value));
	for (size_t r = 0; r < scene->routes; r++)
		stream_fill((int)(((size_t)scene->kind + r) % (size_t)stream_count()), c->options.bits, scene->seed + r,
			    c->steps, scene->query + r * c->steps, scene->key + r * c->steps);
	scene->q = rows_of_symbols(c, &state, scene->query);
	scene->k = rows_of_symbols(c, &state, scene->key);
	scene->v = random_rows(&state, c->dtype, operator_cells(c), 1);
	for (size_t i = test_random(&state, 13); i < operator_cells(c); i += 13)
		scene->v[i] = i % 2 ? 0.0 : -0.0;
	scene->gy = random_rows(&state, c->dtype, operator_cells(c), 1);
	scene->e0 = random_rows(&state, ROSA_FLOAT32, c->channels, 0.5);
	scene->e1 = random_rows(&state, ROSA_FLOAT32, c->channels, 0.5);
	operator_symbols(c, scene->v, scene->value);
	scene->q_rows = to_dtype(c->dtype, scene->q, operator_cells(c));
	scene->k_rows = to_dtype(c->dtype, scene->k, operator_cells(c));
	scene->v_rows = to_dtype(c->dtype, scene->v, operator_cells(c));
	scene->gy_rows = to_dtype(c->dtype, scene->gy, operator_cells(c));
	scene->e0_floats = to_floats(scene->e0, c->channels);
	scene->e1_floats = to_floats(scene->e1, c->channels);
	scene->tau = test_alloc(all * sizeof(*scene->tau));
	scene->table = test_alloc(all * scene->width * sizeof(*scene->table));
	scene->runs = operator_find(c, scene->q, scene->k, scene->tau, scene->table);
	snprintf(scene->text, sizeof(scene->text),
		 "seed %llu, %s, %s, batch %zu, steps %zu, channels %zu, bits %d, %s, fold %d, max_match %u, "
		 "threads %d, qk_grad %d, credit %d, key_credit %d, slope %g, suffix %g, explore %g, flip_share %g",
		 (unsigned long long)scene->seed, stream_name(scene->kind),
		 c->dtype == ROSA_FLOAT32 ? "float32" : "bfloat16", c->batch, c->steps, c->channels, c->options.bits,
		 policy_name(c->options.policy), c->options.fold, (unsigned)c->options.max_match, c->options.threads,
		 (int)learning->qk_grad, (int)learning->credit, (int)learning->key_credit, (double)learning->slope,
		 (double)learning->suffix, (double)learning->explore, (double)learning->flip_share);
}

struct scene scene_start(uint64_t seed)
{
	struct scene scene = {.c = {.options = ROSA_OPTIONS_INIT, .learning = ROSA_LEARNING_INIT}, .seed = seed};

	scene.kind = (int)(seed % (uint64_t)stream_count());
	scene.c.learning.seed = seed;
	return scene;
}

const char *const output_names[OUTPUTS] = {"read", "flips", "y", "gq", "gk", "gv", "ge0", "ge1"};

void outputs_make(const struct scene *scene, struct outputs *outputs)
{
	const size_t destination = (size_t)rosa_width(scene->c.steps), rows = row_bytes(scene);
	const int flips = scene->c.learning.qk_grad == ROSA_QK_FLIPS;

	for (int i = 0; i < OUTPUTS; i++)
		outputs->bytes[i] = i >= GE0 ? scene->c.channels * sizeof(float) : rows;
	outputs->bytes[READ] = operator_route_steps(&scene->c) * destination;
	outputs->bytes[FLIPS] = flips ? scene->runs * scene->width * destination : 0;
	for (int i = 0; i < OUTPUTS; i++) {
		outputs->at[i] = test_alloc(outputs->bytes[i]);
		memset(outputs->at[i], RUBBISH, outputs->bytes[i]);
	}
}

rosa_read_pass pass_of(const struct scene *scene, const struct outputs *outputs)
{
	return (rosa_read_pass){.size = sizeof(rosa_read_pass),
				.dtype = scene->c.dtype,
				.batch = scene->c.batch,
				.steps = scene->c.steps,
				.channels = scene->c.channels,
				.q = scene->q_rows,
				.k = scene->k_rows,
				.v = scene->v_rows,
				.e0 = scene->e0_floats,
				.e1 = scene->e1_floats,
				.read = outputs->at[READ],
				.flips = outputs->at[FLIPS],
				.gy = scene->gy_rows,
				.gq = outputs->at[GQ],
				.gk = outputs->at[GK],
				.gv = outputs->at[GV],
				.ge0 = outputs->at[GE0],
				.ge1 = outputs->at[GE1]};
}

rosa_status scene_run(const struct scene *scene, struct outputs *outputs, rosa_error *err)
{
	const struct operator_case *c = &scene->c;
	const rosa_read_pass pass = pass_of(scene, outputs);
	rosa_status status = rosa_find(&c->options, &c->learning, scene->routes, c->steps, scene->query, scene->key,
				       outputs->at[READ], NULL, outputs->at[FLIPS], err);

	if (status == ROSA_OK)
		status = rosa_read(&c->options, c->dtype, c->batch, c->steps, c->channels, scene->value, c->steps,
				   outputs->at[READ], scene->e0_floats, scene->e1_floats, outputs->at[Y], err);
	if (status == ROSA_OK)
		status = rosa_read_backward(&c->options, &c->learning, &pass, err);
	return status;
}

void scene_run_checked(const struct scene *scene, struct outputs *outputs)
{
	outputs_make(scene, outputs);
	must_for(scene->text, scene_run(scene, outputs, &err));
}

void expect_same_outputs(const struct scene *scene, const struct outputs *a, const struct outputs *b)
{
	for (int i = 0; i < OUTPUTS; i++)
		if (memcmp(a->at[i], b->at[i], a->bytes[i]))
			fail_msg("%s: %s differs", scene->text, output_names[i]);
}

struct scene scene_usual(int i)
{
	struct scene scene = scene_start(9000 + (uint64_t)i);

	scene.c.learning.qk_grad = (rosa_qk_grad)(i % 4);
	scene.c.learning.explore = 0.2f;
	scene.c.learning.flip_share = 0.7f;
	scene.c.learning.suffix = 0.5f;
	scene.c.dtype = i / 4 % 2 ? ROSA_BFLOAT16 : ROSA_FLOAT32;
	operator_resize(&scene.c,
			(struct operator_size){.bits = 4, .threads = 2, .batch = 2, .steps = 60, .channels = 12});
	return scene;
}
