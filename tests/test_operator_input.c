/* Bad input of the operator's parts: an error that names what is wrong. */
#include "support_scene.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>
#include <stdbool.h>

/* A call with one thing changed is refused for that. `good` is the call as it should be, `call` what is changed of it.
 */
#define REFUSE_AS(status_, word_, change_)                                                                             \
	do {                                                                                                           \
		call = good;                                                                                           \
		change_;                                                                                               \
		must_fail(CALL(&call), status_, word_);                                                                \
	} while (0)
#define REFUSE(word_, change_) REFUSE_AS(ROSA_EINVAL, word_, change_)

/* Arguments of rosa_find, their options apart so that they can be changed. */
struct find_call {
	rosa_options own_options;
	rosa_learning own_learning;
	bool no_options;
	size_t routes, steps;
	const uint16_t *query, *key;
	void *read, *flips;
};

static rosa_status find(const struct find_call *c)
{
	return rosa_find(c->no_options ? NULL : &c->own_options, &c->own_learning, c->routes, c->steps, c->query,
			 c->key, c->read, NULL, c->flips, &err);
}

TEST(test_bad_find)
{
	static const struct {
		const char *word;
		size_t at;
		float value;
	} numbers[] = {{"explore is -0.5", offsetof(rosa_learning, explore), -0.5f},
		       {"explore is 1.5", offsetof(rosa_learning, explore), 1.5f},
		       {"explore is nan", offsetof(rosa_learning, explore), NAN},
		       {"flip_share is 0", offsetof(rosa_learning, flip_share), 0},
		       {"flip_share is 2", offsetof(rosa_learning, flip_share), 2},
		       {"slope is 0", offsetof(rosa_learning, slope), 0},
		       {"slope is inf", offsetof(rosa_learning, slope), INFINITY},
		       {"suffix is -1", offsetof(rosa_learning, suffix), -1},
		       {"suffix is nan", offsetof(rosa_learning, suffix), NAN}};
	static const struct {
		const char *word;
		size_t at;
	} choices[] = {{"qk_grad is 9", offsetof(rosa_learning, qk_grad)},
		       {"credit is 9", offsetof(rosa_learning, credit)},
		       {"key_credit is 9", offsetof(rosa_learning, key_credit)}};
	struct scene scene = scene_usual(ROSA_QK_FLIPS);
	struct outputs got;

	scene_make(&scene);
	outputs_make(&scene, &got);
	const struct find_call good = {.own_options = scene.c.options,
				       .own_learning = scene.c.learning,
				       .routes = 6,
				       .steps = 60,
				       .query = scene.query,
				       .key = scene.key,
				       .read = got.at[READ],
				       .flips = got.at[FLIPS]};
	struct find_call call;
#define CALL find
	REFUSE("options", call.no_options = true);
	REFUSE("query", call.query = NULL);
	REFUSE("key", call.key = NULL);
	REFUSE("read", call.read = NULL);
	REFUSE("flips", call.flips = NULL);
	REFUSE("0 routes", call.routes = 0);
	REFUSE("steps", call.steps = ROSA_MAX_STEPS + 1);
	REFUSE("bits is 0", call.own_options.bits = 0);
	REFUSE_AS(ROSA_ESYMBOL, "key symbol 16", scene.key[61] = 16);
	scene.key[61] = 0;
	REFUSE("learning.size is 4", call.own_learning.size = 4);
	for (size_t i = 0; i < COUNT(numbers); i++)
		REFUSE(numbers[i].word,
		       memcpy((char *)&call.own_learning + numbers[i].at, &numbers[i].value, sizeof(float)));
	for (size_t i = 0; i < COUNT(choices); i++)
		REFUSE(choices[i].word, memcpy((char *)&call.own_learning + choices[i].at, &(int){9}, sizeof(int)));
#undef CALL
}

/* Arguments of rosa_read. */
struct read_call {
	const rosa_options *options;
	rosa_dtype dtype;
	size_t batch, steps, channels;
	const uint16_t *value;
	size_t history;
	const void *read;
	const float *e0, *e1;
	void *y;
};

static rosa_status read_out(const struct read_call *c)
{
	return rosa_read(c->options, c->dtype, c->batch, c->steps, c->channels, c->value, c->history, c->read, c->e0,
			 c->e1, c->y, &err);
}

TEST(test_bad_read)
{
	struct scene scene = scene_usual(ROSA_QK_LINEAR);
	struct outputs got;
	rosa_options odd;
	const uint16_t outside = 60;

	scene_make(&scene);
	scene_run_checked(&scene, &got);
	const struct read_call good = {
	    &scene.c.options, ROSA_FLOAT32,    2,        60, 12, scene.value, 60, got.at[READ],
	    scene.e0_floats,  scene.e1_floats, got.at[Y]};
	struct read_call call;
#define CALL read_out
	REFUSE("options", call.options = NULL);
	REFUSE("value", call.value = NULL);
	REFUSE("read", call.read = NULL);
	REFUSE("e0", call.e0 = NULL);
	REFUSE("e1", call.e1 = NULL);
	REFUSE("y", call.y = NULL);
	REFUSE("dtype is 1", call.dtype = ROSA_FLOAT16);
	REFUSE("batch 0", call.batch = 0);
	REFUSE("0 steps", call.steps = 0);
	REFUSE("13 channels", call.channels = 13);
	REFUSE("memory", call.batch = SIZE_MAX / 64);
	REFUSE("value steps", call.history = 0);
	odd = scene.c.options;
	odd.threads = -1;
	REFUSE("threads is -1", call.options = &odd);
	memcpy((uint16_t *)got.at[READ] + 77, &outside, sizeof(outside));
	REFUSE("destination", (void)0);
#undef CALL
}

/* Arguments of rosa_read_backward. */
struct backward_call {
	const rosa_options *options;
	rosa_learning learning;
	rosa_read_pass pass;
	bool no_pass;
};

static rosa_status read_backward(const struct backward_call *c)
{
	return rosa_read_backward(c->options, &c->learning, c->no_pass ? NULL : &c->pass, &err);
}

TEST(test_bad_backward)
{
	static const struct {
		const char *word;
		size_t at;
	} pointers[] = {{"q", offsetof(rosa_read_pass, q)},         {"k", offsetof(rosa_read_pass, k)},
			{"v", offsetof(rosa_read_pass, v)},         {"e0", offsetof(rosa_read_pass, e0)},
			{"e1", offsetof(rosa_read_pass, e1)},       {"read", offsetof(rosa_read_pass, read)},
			{"flips", offsetof(rosa_read_pass, flips)}, {"gy", offsetof(rosa_read_pass, gy)}};
	struct scene scene = scene_usual(ROSA_QK_FLIPS);
	struct outputs got;
	const uint16_t outside = 60;

	scene_make(&scene);
	scene_run_checked(&scene, &got);
	const struct backward_call good = {&scene.c.options, scene.c.learning, pass_of(&scene, &got), false};
	struct backward_call call;
#define CALL read_backward
	REFUSE("options", call.options = NULL);
	REFUSE("pass", call.no_pass = true);
	for (size_t i = 0; i < COUNT(pointers); i++)
		REFUSE(pointers[i].word, memset((char *)&call.pass + pointers[i].at, 0, sizeof(void *)));
	REFUSE("size is 8", call.pass.size = 8);
	REFUSE("dtype is 1", call.pass.dtype = ROSA_FLOAT16);
	REFUSE("batch 0", call.pass.batch = 0);
	REFUSE("0 steps", call.pass.steps = 0);
	REFUSE("13 channels", call.pass.channels = 13);
	REFUSE("memory", call.pass.batch = SIZE_MAX / 64);
	REFUSE("qk_grad is 4", call.learning.qk_grad = (rosa_qk_grad)4);
	memcpy((uint16_t *)got.at[FLIPS] + 3, &outside, sizeof(outside));
	REFUSE("flips has a destination", (void)0);
	memcpy((uint16_t *)got.at[READ] + 77, &outside, sizeof(outside));
	REFUSE("read has a destination", (void)0);
#undef CALL
}
