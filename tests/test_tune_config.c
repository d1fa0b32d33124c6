/*
 * Configurations of a run: what is read, what is refused and how that is said, and that what is written reads back.
 */
#include "train/tune_config.h"

#include "support_checkpoint.h"
#include "support_test.h"
#include "support_trial.h"

#ifdef ROSATUNE_JANSSON

#define STAGE "{\"data\": \"a.tokens\", \"tokens\": \"1M\"}"
#define FRAME "{\"model\": \"m.gguf\", \"out\": \"run\", "
#define SMALL FRAME "\"stages\": [" STAGE "]}"

static rosa_status load(const char *text, const char *setting, struct tune_config *config, rosa_error *err)
{
	scratch_write("c.json", text);
	return tune_config_load(scratch_path("c.json"), &setting, setting != NULL, config, err);
}

static void close_config(void *config)
{
	tune_config_free(config);
	tune_config_free(config); /* twice does no harm */
}

static struct tune_config *must_load(const char *text, const char *setting)
{
	struct tune_config *config = test_zeros(1, sizeof(*config));

	if (load(text, setting, config, &err) != ROSA_OK)
		fail_msg("%s: %s", text, err.message);
	test_later(close_config, config);
	return config;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

TEST(has_defaults)
{
	const struct tune_config *config = must_load(SMALL, NULL);
	const struct network_options options = tune_config_network(config);

	assert_string_equal(config->model, "m.gguf");
	assert_int_equal(config->stage_count, 1);
	assert_string_equal(config->stages[0].name, "adapter");
	assert_int_equal(config->stages[0].tokens, 1 << 20);
	assert_int_equal(config->stages[0].data.count, 1);
	assert_string_equal(config->stages[0].data.sources[0].path, "a.tokens");
	assert_int_equal(tune_stage_steps(&config->stages[0]), 64);
	assert_true(options.rosa);
	assert_int_equal(options.adapter.bits, 16);
	assert_int_equal(options.adapter.window, 2048);
	assert_int_equal(options.adapter.learning.qk_grad, ROSA_QK_LINEAR);
	assert_true(options.adapter.learning.slope == 1);
}

TEST(reads_everything)
{
	static const char text[] = FRAME
	    "\"seed\": 7, \"threads\": 2, \"recompute\": false,"
	    "\"adapter\": {\"bits\": 4, \"fusion\": \"pre\", \"qk\": \"shared\", \"e_start\": 0.5, \"window\": 64,"
	    "\"sinks\": 4, \"first_global_layers\": 1, \"policy\": \"literal\", \"fold\": false, \"max_match\": 9},"
	    "\"learning\": {\"qk_grad\": \"flips\", \"credit\": \"route\", \"key_credit\": \"destination\","
	    "\"suffix\": 1, \"explore\": 0.25, \"flip_share\": 0.5, \"slope\": 2},"
	    "\"stages\": [{\"name\": \"one\", \"kind\": \"sft\", \"data\": [\"a\", {\"path\": \"b\", \"weight\": 3}],"
	    "\"valid\": \"v\", \"length\": \"1k\", \"batch\": 3, \"micro_batch\": 2, \"tokens\": 3073,"
	    "\"adapter_rate\": {\"max\": 1e-3, \"min\": 1e-4}, \"warmup\": 0, \"clip\": 0.5}]}";
	const struct tune_config *config = must_load(text, NULL);
	const struct network_options options = tune_config_network(config);

	assert_int_equal(options.seed, 7);
	assert_int_equal(options.adapter.fusion, ROSA_PRE);
	assert_int_equal(options.adapter.qk, QK_SHARED);
	assert_int_equal(options.adapter.policy, ROSA_LITERAL);
	assert_false(options.adapter.fold);
	assert_false(options.recompute);
	assert_int_equal(options.adapter.max_match, 9);
	assert_int_equal(options.adapter.first_global_layers, 1);
	assert_int_equal(options.adapter.learning.key_credit, ROSA_KEY_DESTINATION);
	assert_true(options.adapter.learning.explore == 0.25f);
	assert_int_equal(config->stages[0].kind, TUNE_SFT);
	assert_int_equal(config->stages[0].data.count, 2);
	assert_true(config->stages[0].data.sources[1].weight == 3);
	assert_int_equal(tune_stage_steps(&config->stages[0]), 2); /* the last step is not full */
	assert_true(config->stages[0].clip == 0.5);
}

TEST(settings_win)
{
	static const char two[] = FRAME "\"stages\": [" STAGE ", {\"name\": \"end\", \"data\": \"b\", \"tokens\": 5}]}";
	const struct tune_config *config = must_load(two, "stage.1.tokens=2M");

	assert_int_equal(config->stages[0].tokens, 2 << 20);
	assert_int_equal(config->stages[1].tokens, 5);
	assert_true(must_load(two, "stage.end.adapter_rate.max=1e-2")->stages[1].adapter_max == 1e-2);
	config = must_load(two, "stage.*.data=x.tokens,y.tokens");
	assert_int_equal(config->stages[0].data.count, 2);
	assert_string_equal(config->stages[1].data.sources[1].path, "y.tokens");
	assert_int_equal(must_load(two, "adapter.fusion=pre")->options.fusion, ROSA_PRE);
	assert_true(must_load(two, "adapter.delay=null")->options.delay == KEY_UNSET);
	assert_int_equal(must_load(two, "adapter.source=tokens+layer 3")->options.source.count, 2);
	config = must_load(FRAME "\"adapter\": {\"delay\": null}, \"stages\": [" STAGE "]}", NULL);
	assert_true(config->options.delay == KEY_UNSET);
	assert_int_equal(must_load(two, "stage.2.valid=")->stages[1].valid.count, 0);
	assert_false(must_load(two, NULL)->options.layers.named);
	assert_false(layers_have(&must_load(two, "adapter.layers=0,3")->options.layers, 1));
	config = must_load(FRAME "\"adapter\": {\"layers\": [0, 3], \"seen\": 8}, \"stages\": [" STAGE "]}", NULL);
	assert_true(layers_have(&config->options.layers, 3) && !layers_have(&config->options.layers, 4));
}

/* A stage lasts for so many tokens or so many steps; --set replaces one by the other. */
TEST(steps_or_tokens)
{
	static const char seven[] = FRAME "\"stages\": [{\"data\": \"a\", \"steps\": 7}]}";

	assert_int_equal(tune_stage_steps(&must_load(seven, NULL)->stages[0]), 7);
	assert_int_equal(tune_stage_steps(&must_load(SMALL, "stage.1.steps=3")->stages[0]), 3);
	assert_int_equal(tune_stage_steps(&must_load(seven, "stage.*.tokens=16k")->stages[0]), 1);
	assert_int_equal(tune_stage_steps(&must_load(seven, "stage.1.tokens=0")->stages[0]), 7);
	assert_int_equal(tune_stage_steps(&must_load(SMALL, "stage.1.steps=0")->stages[0]), 64);
}

/* The help names every key with its default. */
TEST(help_names_keys)
{
	static const char *const lines[] = {"  adapter.bits [16] ",          "  learning.qk_grad [linear] ",
					    "  recompute [true] ",           "    steps [0] ",
					    "    adapter_rate.max [0.002] ", "    valid "};
	struct json_text text = {0};

	tune_config_help(&text);
	assert_false(text.failed);
	for (size_t i = 0; i < COUNT(lines); i++)
		if (!strstr(text.data, lines[i]))
			fail_msg("the help has no '%s'", lines[i]);
	json_text_free(&text);
}

/* ------------------------------------------------------------------------------------------------------ refusals -- */

TEST(mistakes_are_named)
{
	static const struct {
		const char *text, *setting, *wanted;
	} mistakes[] = {
	    {FRAME "\"sedd\": 1, \"stages\": [" STAGE "]}", NULL,
	     "c.json: sedd: is not a known key; did you mean seed?"},
	    {FRAME "\"adaptr\": {}, \"stages\": [" STAGE "]}", NULL, "did you mean adapter?"},
	    {FRAME "\"adapter\": {\"bit\": 4}, \"stages\": [" STAGE "]}", NULL, "did you mean adapter.bits?"},
	    {FRAME "\"adapter\": {\"bits\": 17}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.bits: is 17; it must be a whole number from 1 to 16"},
	    {FRAME "\"adapter\": {\"bits\": true}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.bits: must be a whole number"},
	    {FRAME "\"adapter\": {\"bits\": 2.5}, \"stages\": [" STAGE "]}", NULL, "adapter.bits: is 2.5"},
	    {FRAME "\"adapter\": 3, \"stages\": [" STAGE "]}", NULL, "adapter: is not a known key"},
	    {FRAME "\"seed\": -1, \"stages\": [" STAGE "]}", NULL, "seed: is -1"},
	    {FRAME "\"recompute\": \"true\", \"stages\": [" STAGE "]}", NULL, "recompute: must be true or false"},
	    {FRAME "\"stages\": []}", NULL, "stages: is empty"},
	    {FRAME "\"stages\": 3}", NULL, "stages: is a number"},
	    {FRAME "\"stages\": [3]}", NULL, "stage.1: must be an object"},
	    {FRAME "\"stages\": [{\"tokns\": 3}]}", NULL, "stage.1.tokns: is not a known key; did you mean tokens?"},
	    {FRAME "\"stages\": [{\"tokens\": 3}]}", NULL, "stage.1: has no data"},
	    {FRAME "\"stages\": [{\"data\": \"a\"}]}", NULL, "stage.1: has neither tokens nor steps"},
	    {FRAME "\"stages\": [{\"data\": \"a\", \"tokens\": 3, \"steps\": 1}]}", NULL,
	     "stage.1: has both tokens and steps"},
	    {FRAME "\"stages\": [{\"data\": 3, \"tokens\": 3}]}", NULL, "stage.1.data: has an entry without a path"},
	    {FRAME "\"stages\": [{\"data\": [{\"path\": \"a\", \"wait\": 1}]}]}", NULL, "stage.1.data: has wait"},
	    {FRAME "\"stages\": [{\"kind\": \"everything\"}]}", NULL, "choose from: adapter, all, sft"},
	    {FRAME "\"stages\": [{\"adapter_rate\": {\"maxi\": 3}}]}", NULL, "did you mean adapter_rate.max?"},
	    {FRAME "\"stages\": [{\"eps\": 0}]}", NULL, "it must be a number above 0"},
	    {"[]", NULL, "must hold an object"},
	    {"{\"out\": \"o\", \"stages\": [" STAGE "]}", NULL, "has no model"},
	    {"{\"model\": \"o\", \"stages\": [" STAGE "]}", NULL, "has no out"},
	    {"{\"model\": ", NULL, "line 1"},
	    {SMALL, "bits", "give key=value"},
	    {SMALL, "adapter.bits=x", "--set adapter.bits: is x"},
	    {SMALL, "adapter.bots=4", "did you mean adapter.bits?"},
	    {SMALL, "adapter.wndw=4", "did you mean adapter.window?"},
	    {SMALL, "adapter.mood=4", "adapter.mood: is not a known key; 'rosatune tune --help' lists them all"},
	    {SMALL, "stage.2.tokens=4", "there is no such stage; they are 1 to 1"},
	    {SMALL, "stage.1.tokens=0", "stage.1: has neither tokens nor steps"},
	    {SMALL, "stage.1.steps=1.5", "--set stage.1.steps: is 1.5"},
	    {SMALL, "stage.1.tokins=4", "did you mean tokens?"},
	    {SMALL, "stages=4", "name the stage and the key"},
	    {SMALL, "steps=3", "--set steps: is a key of a stage; give --set stage.1.steps=3"},
	    {SMALL, "stage.1.adapter_rate.min=1", "adapter_rate.min is 1, above adapter_rate.max"},
	    {SMALL, "stage.1.data=a,,b", "empty path between commas"},
	    {SMALL, "adapter.rosa=false", "adapter.rosa is false"},
	    {SMALL, "stage.1.clip=nan", "is nan"},
	    {FRAME "\"adapter\": {\"path\": \"x\", \"bits\": 4}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.bits is given beside adapter.path"},
	    {FRAME "\"adapter\": {\"path\": \"x\", \"layers\": [1]}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.layers is given beside adapter.path"},
	    {FRAME "\"adapter\": {\"path\": \"x\", \"source\": \"own\"}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.source is given beside adapter.path"},
	    {FRAME "\"adapter\": {\"layers\": []}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.layers names no layer, and adapter.seen is 0"},
	    {FRAME "\"adapter\": {\"layers\": [0], \"first_global_layers\": 1}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.layers: names layer 0, which first_global_layers (1) leaves without an adapter"},
	    {SMALL, "adapter.layers=third", "--set adapter.layers: is third; give all, or numbers of layers"},
	    {FRAME "\"adapter\": {\"window\": 64, \"delay\": 63}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.delay: is 63 beside a window of 64"},
	    {FRAME "\"adapter\": {\"source\": \"words\"}, \"stages\": [" STAGE "]}", NULL,
	     "adapter.source: is words; choose from"},
	    {SMALL, "adapter.delay=near", "--set adapter.delay: is near; it must be a whole number from 0 to"},
	};

	for (size_t i = 0; i < COUNT(mistakes); i++) {
		rosa_error err = {ROSA_OK, ""};
		struct tune_config config;
		rosa_status status = load(mistakes[i].text, mistakes[i].setting, &config, &err);

		if (status == ROSA_OK || !strstr(err.message, mistakes[i].wanted))
			fail_msg("%s with %s: '%s' is not in '%s'", mistakes[i].text,
				 mistakes[i].setting ? mistakes[i].setting : "nothing", mistakes[i].wanted,
				 err.message);
		assert_null(config.stages);
	}
}

/* ------------------------------------------------------------------------------------------------------- writing -- */

TEST(reads_back_what_it_writes)
{
	static const char *const texts[] = {
	    SMALL,
	    FRAME "\"adapter\": {\"path\": \"old \\\"one\\\"\"}, \"stages\": [" STAGE ", " STAGE "]}",
	    FRAME
	    "\"adapter\": {\"bits\": 4, \"e_start\": 0.1}, \"learning\": {\"explore\": 0.3}, \"stages\": ["
	    "{\"data\": [\"a\", {\"path\": \"b\", \"weight\": 0.7}], \"tokens\": 4000000000, \"kind\": \"all\"}]}",
	};

	for (size_t i = 0; i < COUNT(texts); i++) {
		struct json_text once = {0}, twice = {0};

		tune_config_write(must_load(texts[i], NULL), &once);
		tune_config_write(must_load(once.data, NULL), &twice);
		assert_string_equal(once.data, twice.data);
		json_text_free(&once);
		json_text_free(&twice);
	}
}

/* ----------------------------------------------------------------------------------------------------- comparing -- */

static char told[512];

static void hear(void *context, const char *message)
{
	snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s; ", message);
}

TEST(compares)
{
	static const char *const fixed[] = {"seed=1", "adapter.bits=8", "stage.1.batch=4", "stage.1.kind=all"};
	const struct tune_config *was = must_load(SMALL, NULL),
				 *now = must_load(SMALL, "stage.1.adapter_rate.max=1e-3");

	told[0] = '\0';
	must(tune_config_compare(was, now, 0, hear, NULL, &err));
	assert_string_equal(told, "stage.1.adapter_rate.max was 0.002, it is 0.001 from here on; ");
	must_refuse(tune_config_compare(was, now, 1, hear, NULL, &err), ROSA_EINVAL);
	for (size_t i = 0; i < COUNT(fixed); i++)
		must_fail(tune_config_compare(was, must_load(SMALL, fixed[i]), 0, hear, NULL, &err), ROSA_EINVAL,
			  "cannot change");
}

TEST_GROUP(scratch_enter, scratch_leave)

#else

TEST(says_what_is_missing)
{
	struct tune_config config;

	assert_int_not_equal(tune_config_load("c.json", NULL, 0, &config, &err), ROSA_OK);
}

#endif
