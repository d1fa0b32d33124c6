/*
 * Which values a chat draws with: an option, else the model's advice, else the default.
 *
 * The expected values are written out here, one by one; the files are those that Hugging Face writes.
 */
#include "cli/generate_sampling.h"
#include "support_test.h"

#include <unistd.h>

static char folder[] = "/tmp/rosatune-sampling-XXXXXX";

static void write_config(const char *text)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/generation_config.json", folder);
	if (!text) {
		remove(path);
		return;
	}
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static struct sampler_options choose(const struct sampling_args *args, bool chat)
{
	struct checkpoint checkpoint = {.path = path_of(folder)};
	struct sampler_options options;
	rosa_error err = {0};

	if (!sampling_choose(args, chat, &checkpoint, &options, &err))
		fail_msg("%s", err.message);
	return options;
}

static void expect(const struct sampling_args *args, bool chat, float temperature, size_t top_k, float top_p,
		   float min_p, float repetition)
{
	struct sampler_options options = choose(args, chat);

	assert_float_equal(options.temperature, temperature, 1e-6);
	assert_int_equal(options.top_k, top_k);
	assert_float_equal(options.top_p, top_p, 1e-6);
	assert_float_equal(options.min_p, min_p, 1e-6);
	assert_float_equal(options.repetition, repetition, 1e-6);
	assert_int_equal(options.repeat_last, args->repeat_last);
	assert_int_equal(options.seed, args->seed);
}

TEST(test_defaults)
{
	const struct sampling_args none = SAMPLING_ARGS_INIT;
	struct sampling_args some = SAMPLING_ARGS_INIT;

	write_config(NULL);
	expect(&none, false, 0, 0, 1, 0, 1);
	expect(&none, true, 0.6f, 40, 0.9f, 0, 1.05f);
	some.top_p = 0.5f;
	some.top_k = 0;
	some.seed = 7;
	some.repeat_last = 9;
	expect(&some, false, 0, 0, 0.5f, 0, 1);
	expect(&some, true, 0.6f, 0, 0.5f, 0, 1.05f);
	some.temperature = 0; /* the likeliest token, unaltered */
	expect(&some, true, 0, 0, 0.5f, 0, 1);
}

TEST(test_advice)
{
	const struct sampling_args none = SAMPLING_ARGS_INIT;
	struct sampling_args some = SAMPLING_ARGS_INIT;

	write_config("{\"do_sample\": true, \"temperature\": 0.3, \"top_k\": 20, \"eos_token_id\": [1, 2]}");
	expect(&none, true, 0.3f, 20, 0.9f, 0, 1.05f);
	expect(&none, false, 0, 0, 1, 0, 1); /* a text is a function of model and text alone */
	some.temperature = 0.8f;
	expect(&some, true, 0.8f, 20, 0.9f, 0, 1.05f);
	some.temperature = 0;
	expect(&some, true, 0, 0, 1, 0, 1);
	write_config("{\"top_p\": 0.95, \"min_p\": 0.01, \"repetition_penalty\": 1.2, \"temperature\": null}");
	expect(&none, true, 0.6f, 40, 0.95f, 0.01f, 1.2f);
	write_config("{\"do_sample\": false}");
	expect(&none, true, 0, 40, 0.9f, 0, 1.05f);
}

TEST(test_refusals)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	    {"{\"temperature\": -1}", "temperature is -1, not from 0"},
	    {"{\"top_p\": 1.5}", "top_p is 1.5, not from 0 to 1"},
	    {"{\"top_k\": \"many\"}", "top_k"},
	    {"{", "generation_config.json"},
	};
	const struct sampling_args none = SAMPLING_ARGS_INIT;
	struct checkpoint checkpoint = {.path = path_of(folder)};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct sampler_options options;
		rosa_error err = {0};

		write_config(cases[i].text);
		assert_false(sampling_choose(&none, true, &checkpoint, &options, &err));
		must_say(cases[i].message);
	}
}

static int make_folder(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	write_config(NULL);
	return rmdir(folder);
}

TEST_GROUP(make_folder, remove_folder)
