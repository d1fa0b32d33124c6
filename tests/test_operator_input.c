/* Bad input of the operator's parts: an error that names what is wrong. */
#include "support_scene.h"
#include "support_test.h"
#include "support_trial.h"

#include <math.h>

static void expect_refusal(const char *word, rosa_status status, rosa_status want, const rosa_error *err)
{
	expect_status(word, status, want, err);
	if (!strstr(err->message, word))
		fail_msg("the message does not say \"%s\": %s", word, err->message);
}

TEST(test_bad_find)
{
	struct scene scene = scene_usual(ROSA_QK_FLIPS);
	const rosa_options *options = &scene.c.options;
	const rosa_learning *learning = &scene.c.learning;
	struct outputs got;
	rosa_learning odd;
	rosa_options odd_options;
	const size_t n = 6, t = 60;
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

	scene_make(&scene);
	outputs_make(&scene, &got);
#define FIND(options, learning, routes, steps, query, key, read, flips)                                                \
	rosa_find(options, learning, routes, steps, query, key, read, NULL, flips, &err)
	expect_refusal("options", FIND(NULL, learning, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
		       ROSA_EINVAL, &err);
	expect_refusal("query", FIND(options, learning, n, t, NULL, scene.key, got.at[READ], got.at[FLIPS]),
		       ROSA_EINVAL, &err);
	expect_refusal("key", FIND(options, learning, n, t, scene.query, NULL, got.at[READ], got.at[FLIPS]),
		       ROSA_EINVAL, &err);
	expect_refusal("read", FIND(options, learning, n, t, scene.query, scene.key, NULL, got.at[FLIPS]), ROSA_EINVAL,
		       &err);
	expect_refusal("flips", FIND(options, learning, n, t, scene.query, scene.key, got.at[READ], NULL), ROSA_EINVAL,
		       &err);
	expect_refusal("0 routes", FIND(options, learning, 0, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
		       ROSA_EINVAL, &err);
	expect_refusal(
	    "steps",
	    FIND(options, learning, n, ROSA_MAX_STEPS + 1, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
	    ROSA_EINVAL, &err);
	odd_options = *options;
	odd_options.bits = 0;
	expect_refusal("bits is 0",
		       FIND(&odd_options, learning, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
		       ROSA_EINVAL, &err);
	scene.key[61] = 16;
	expect_refusal("key symbol 16",
		       FIND(options, learning, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]), ROSA_ESYMBOL,
		       &err);
	scene.key[61] = 0;
	odd = *learning;
	odd.size = 4;
	expect_refusal("learning.size is 4",
		       FIND(options, &odd, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]), ROSA_EINVAL,
		       &err);
	for (size_t i = 0; i < COUNT(numbers); i++) {
		odd = *learning;
		memcpy((char *)&odd + numbers[i].at, &numbers[i].value, sizeof(float));
		expect_refusal(numbers[i].word,
			       FIND(options, &odd, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
			       ROSA_EINVAL, &err);
	}
	for (size_t i = 0; i < COUNT(choices); i++) {
		const int nine = 9;

		odd = *learning;
		memcpy((char *)&odd + choices[i].at, &nine, sizeof(nine));
		expect_refusal(choices[i].word,
			       FIND(options, &odd, n, t, scene.query, scene.key, got.at[READ], got.at[FLIPS]),
			       ROSA_EINVAL, &err);
	}
#undef FIND
}

TEST(test_bad_read)
{
	struct scene scene = scene_usual(ROSA_QK_LINEAR);
	const rosa_options *options = &scene.c.options;
	struct outputs got;
	rosa_options odd;
	const uint16_t outside = 60;

	scene_make(&scene);
	scene_run_checked(&scene, &got);
#define READ_OUT(options, dtype, batch, steps, channels, value, history, read, e0, e1, y)                              \
	rosa_read(options, dtype, batch, steps, channels, value, history, read, e0, e1, y, &err)
#define REFUSE(word, ...) expect_refusal(word, READ_OUT(__VA_ARGS__), ROSA_EINVAL, &err)
	REFUSE("options", NULL, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("value", options, ROSA_FLOAT32, 2, 60, 12, NULL, 60, got.at[READ], scene.e0_floats, scene.e1_floats,
	       got.at[Y]);
	REFUSE("read", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, NULL, scene.e0_floats, scene.e1_floats,
	       got.at[Y]);
	REFUSE("e0", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], NULL, scene.e1_floats, got.at[Y]);
	REFUSE("e1", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats, NULL, got.at[Y]);
	REFUSE("y", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats, scene.e1_floats,
	       NULL);
	REFUSE("dtype is 1", options, ROSA_FLOAT16, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("batch 0", options, ROSA_FLOAT32, 0, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("0 steps", options, ROSA_FLOAT32, 2, 0, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("13 channels", options, ROSA_FLOAT32, 2, 60, 13, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("memory", options, ROSA_FLOAT32, SIZE_MAX / 64, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	REFUSE("value steps", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 0, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	odd = *options;
	odd.threads = -1;
	REFUSE("threads is -1", &odd, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
	memcpy((uint16_t *)got.at[READ] + 77, &outside, sizeof(outside));
	REFUSE("destination", options, ROSA_FLOAT32, 2, 60, 12, scene.value, 60, got.at[READ], scene.e0_floats,
	       scene.e1_floats, got.at[Y]);
#undef REFUSE
#undef READ_OUT
}

TEST(test_bad_backward)
{
	struct scene scene = scene_usual(ROSA_QK_FLIPS);
	const rosa_options *options = &scene.c.options;
	const rosa_learning *learning = &scene.c.learning;
	struct outputs got;
	rosa_read_pass pass;
	rosa_learning odd;
	const uint16_t outside = 60;
	static const struct {
		const char *word;
		size_t at;
	} pointers[] = {{"q", offsetof(rosa_read_pass, q)},         {"k", offsetof(rosa_read_pass, k)},
			{"v", offsetof(rosa_read_pass, v)},         {"e0", offsetof(rosa_read_pass, e0)},
			{"e1", offsetof(rosa_read_pass, e1)},       {"read", offsetof(rosa_read_pass, read)},
			{"flips", offsetof(rosa_read_pass, flips)}, {"gy", offsetof(rosa_read_pass, gy)}};

	scene_make(&scene);
	scene_run_checked(&scene, &got);
#define REFUSE(word, options, learning, pass)                                                                          \
	expect_refusal(word, rosa_read_backward(options, learning, pass, &err), ROSA_EINVAL, &err)
#define REFUSE_PASS(word, change)                                                                                      \
	do {                                                                                                           \
		pass = pass_of(&scene, &got);                                                                          \
		change;                                                                                                \
		REFUSE(word, options, learning, &pass);                                                                \
	} while (0)
	pass = pass_of(&scene, &got);
	REFUSE("options", NULL, learning, &pass);
	REFUSE("pass", options, learning, NULL);
	for (size_t i = 0; i < COUNT(pointers); i++)
		REFUSE_PASS(pointers[i].word, memset((char *)&pass + pointers[i].at, 0, sizeof(void *)));
	REFUSE_PASS("size is 8", pass.size = 8);
	REFUSE_PASS("dtype is 1", pass.dtype = ROSA_FLOAT16);
	REFUSE_PASS("batch 0", pass.batch = 0);
	REFUSE_PASS("0 steps", pass.steps = 0);
	REFUSE_PASS("13 channels", pass.channels = 13);
	REFUSE_PASS("memory", pass.batch = SIZE_MAX / 64);
	odd = *learning;
	odd.qk_grad = (rosa_qk_grad)4;
	pass = pass_of(&scene, &got);
	REFUSE("qk_grad is 4", options, &odd, &pass);
	memcpy((uint16_t *)got.at[FLIPS] + 3, &outside, sizeof(outside));
	REFUSE_PASS("flips has a destination", pass.size = sizeof(pass));
	memcpy((uint16_t *)got.at[READ] + 77, &outside, sizeof(outside));
	REFUSE_PASS("read has a destination", pass.size = sizeof(pass));
#undef REFUSE_PASS
#undef REFUSE
}
