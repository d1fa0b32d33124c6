/*
 * What is out of range is refused with a status and a sentence, and nothing else happens.
 *
 * The calls are made on a stream that already holds some steps, and at the end the stream goes on as the oracle says,
 * so a refusal that left something behind is found. Where the message has to help, the test looks for the numbers that
 * help: the route, the step and the symbol at fault.
 */
#include "oracle.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

#include <limits.h>

/* Room for the calls that are refused; none of them may read or write much of it. */
static uint16_t symbols[256];
static int32_t numbers[256];

static void expect_options(const char *how, const rosa_options *options, rosa_status want)
{
	rosa_stream *stream = NULL;

	expect_status(how, rosa_retrieve(options, 1, 8, symbols, symbols, numbers, NULL, NULL, &err), want, &err);
	assert_int_equal(rosa_retrieve(options, 1, 8, symbols, symbols, numbers, NULL, NULL, NULL), want);
	expect_status(how, rosa_stream_new(options, 1, &stream, &err), want, &err);
	assert_int_equal(stream != NULL, want == ROSA_OK);
	rosa_stream_free(stream);
}

TEST(test_ranges)
{
	static const int good_bits[] = {ROSA_MIN_BITS, 2, 15, ROSA_MAX_BITS, 17, ROSA_MAX_SYMBOL_BITS};
	static const int bad_bits[] = {0, -1, ROSA_MAX_SYMBOL_BITS + 1, INT_MAX, INT_MIN};
	static const int bad_policies[] = {-1, 3, INT_MAX};
	static const int bad_threads[] = {-1, INT_MIN};
	rosa_options options = ROSA_OPTIONS_INIT;

	for (size_t i = 0; i < COUNT(good_bits); i++) {
		options.bits = good_bits[i];
		expect_options("good bits", &options, ROSA_OK);
	}
	for (size_t i = 0; i < COUNT(bad_bits); i++) {
		options.bits = bad_bits[i];
		expect_options("bad bits", &options, ROSA_EINVAL);
	}
	options = (rosa_options)ROSA_OPTIONS_INIT;
	for (size_t i = 0; i < COUNT(bad_policies); i++) {
		options.policy = (rosa_policy)bad_policies[i];
		expect_options("unknown policy", &options, ROSA_EINVAL);
	}
	options = (rosa_options)ROSA_OPTIONS_INIT;
	for (size_t i = 0; i < COUNT(bad_threads); i++) {
		options.threads = bad_threads[i];
		expect_options("negative threads", &options, ROSA_EINVAL);
	}
	for (int threads = 0; threads < 20; threads += 19) {
		options.threads = threads;
		expect_options("as many threads as there are, or too many", &options, ROSA_OK);
	}
}

TEST(test_bad_bits_are_named)
{
	rosa_options options = ROSA_OPTIONS_INIT;

	options.bits = 77;
	must_fail(rosa_retrieve(&options, 1, 8, symbols, symbols, numbers, NULL, NULL, &err), ROSA_EINVAL, "77");
}

/* The structure may be shorter than ours (an older caller) or longer (a newer one), but must say how long it is. */
TEST(test_size)
{
	const size_t least = offsetof(rosa_options, bits) + sizeof(int);
	struct {
		rosa_options options;
		char more[64];
	} newer = {ROSA_OPTIONS_INIT, {1, 2, 3}};
	rosa_options options = ROSA_OPTIONS_INIT;

	options.size = 0;
	expect_options("size 0", &options, ROSA_EINVAL);
	options.size = least - 1;
	expect_options("size that ends within bits", &options, ROSA_EINVAL);
	options.size = sizeof(size_t);
	expect_options("size of size alone", &options, ROSA_EINVAL);

	newer.options.size = sizeof(newer);
	expect_options("a newer structure", &newer.options, ROSA_OK);

	/* Beyond `size` nothing may be looked at. */
	memset(&options, 0xa5, sizeof(options));
	options.size = least;
	options.bits = 16;
	expect_options("an older structure", &options, ROSA_OK);
	options.bits = 0;
	expect_options("an older structure with bad bits", &options, ROSA_EINVAL);
}

/* A short structure means the defaults, not just anything that works. */
TEST(test_short_size_means_defaults)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = 1, .seed = 4, .routes = 2, .steps = 60};
	int32_t *tau = test_alloc(120 * sizeof(*tau));
	rosa_options older;

	trial.options.bits = 2;
	trial_make(&trial);
	trial_solve(&trial);
	memset(&older, 0xa5, sizeof(older));
	older.size = offsetof(rosa_options, policy);
	older.bits = 2;
	must(rosa_retrieve(&older, 2, 60, trial.query, trial.key, tau, NULL, NULL, &err));
	expect_all(&trial, "an older structure", "tau", 0, 60, 1, tau, 60, trial.tau);
}

TEST(test_retrieve_arguments)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_flips flips = {0};

	must_refuse(rosa_retrieve(NULL, 1, 8, symbols, symbols, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_retrieve(&options, 0, 8, symbols, symbols, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_retrieve(&options, 1, 0, symbols, symbols, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_retrieve(&options, 1, ROSA_MAX_STEPS + 1, symbols, symbols, numbers, NULL, NULL, &err),
		    ROSA_EINVAL);
	must_refuse(rosa_retrieve(&options, 1, 8, NULL, symbols, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_retrieve(&options, 1, 8, symbols, NULL, numbers, NULL, NULL, &err), ROSA_EINVAL);

	must(rosa_retrieve(&options, 2, 8, symbols, symbols, numbers, NULL, &flips, &err));
	must_refuse(rosa_flips_expand(&flips, 2, 8, numbers, &err), ROSA_EINVAL);
	must_refuse(rosa_flips_expand(&flips, 0, 8, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_flips_expand(NULL, 0, 8, numbers, &err), ROSA_EINVAL);
	rosa_flips_free(&flips);
	memset(&flips, 0, sizeof(flips));
	rosa_flips_free(&flips);
	rosa_flips_free(NULL);
}

/* A stream that holds the first half of a trial, and what it must still be able to do. */
struct half {
	struct trial trial;
	rosa_stream *stream;
};

static void half_open(struct half *half, int bits)
{
	struct trial *trial = &half->trial;

	*half = (struct half){.trial = {.options = ROSA_OPTIONS_INIT, .kind = 4, .seed = 8, .routes = 3, .steps = 80}};
	trial->options.bits = bits;
	trial_make(trial);
	trial_solve(trial);
	must(rosa_stream_new(&trial->options, trial->routes, &half->stream, &err));
	must(rosa_stream_push(half->stream, 40, trial->query, trial->key, trial->steps, NULL, NULL, NULL, &err));
}

/* After something was refused: the steps are as many as before, and the other half gives what the oracle says. */
static void half_close(struct half *half, const char *how)
{
	struct trial *trial = &half->trial;
	rosa_stream_info info = {.size = sizeof(info)};
	int32_t *tau = test_alloc(trial->routes * trial->steps * sizeof(*tau));

	must_for(how, rosa_stream_describe(half->stream, &info, &err));
	assert_int_equal(info.steps, 40);
	must_for(how, rosa_stream_push(half->stream, 40, trial->query + 40, trial->key + 40, trial->steps, tau, NULL,
				       NULL, &err));
	expect_all(trial, how, "tau", 40, 40, 1, tau, trial->steps, trial->tau);
	rosa_stream_free(half->stream);
}

TEST(test_stream_arguments)
{
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream *none = NULL;
	rosa_stream_info info = {.size = sizeof(info)};
	struct half half;
	rosa_stream *stream;
	void *data = NULL;
	size_t size = 0;

	half_open(&half, 16);
	stream = half.stream;
	must_refuse(rosa_stream_new(NULL, 1, &none, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_new(&options, 0, &none, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_new(&options, 1, NULL, &err), ROSA_EINVAL);
	assert_null(none);

	must_refuse(rosa_stream_push(NULL, 8, symbols, symbols, 0, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, 0, symbols, symbols, 0, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, 8, NULL, symbols, 0, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, 8, symbols, NULL, 0, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, 8, symbols, symbols, 7, numbers, NULL, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, ROSA_MAX_STEPS - 39, symbols, symbols, 0, numbers, NULL, NULL, &err),
		    ROSA_EINVAL);
	must_refuse(rosa_stream_push(stream, SIZE_MAX, symbols, symbols, 0, numbers, NULL, NULL, &err), ROSA_EINVAL);

	must_refuse(rosa_stream_fork(NULL, &none, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_fork(stream, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_rewind(NULL, 0, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_rewind(stream, 41, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_rewind(stream, SIZE_MAX, &err), ROSA_EINVAL);
	must(rosa_stream_rewind(stream, 40, &err));

	must_refuse(rosa_stream_save(NULL, "x", &err), ROSA_EINVAL);
	must_refuse(rosa_stream_save(stream, NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_save_memory(NULL, &data, &size, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_save_memory(stream, NULL, &size, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_save_memory(stream, &data, NULL, &err), ROSA_EINVAL);
	assert_null(data);
	must_refuse(rosa_stream_load(NULL, NULL, &none, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_load(NULL, "x", NULL, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_load_memory(NULL, NULL, 8, &none, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_load_memory(NULL, symbols, 8, NULL, &err), ROSA_EINVAL);
	assert_null(none);

	must_refuse(rosa_stream_describe(NULL, &info, &err), ROSA_EINVAL);
	must_refuse(rosa_stream_describe(stream, NULL, &err), ROSA_EINVAL);
	info.size = 0;
	must_refuse(rosa_stream_describe(stream, &info, &err), ROSA_EINVAL);
	rosa_stream_free(NULL);
	rosa_stream_free_memory(stream, NULL);
	half_close(&half, "after refused calls");
}

/* An older caller's structure is filled as far as it goes. */
TEST(test_describe_size)
{
	rosa_stream_info info;
	struct half half;

	half_open(&half, 4);
	memset(&info, 0x5a, sizeof(info));
	info.size = offsetof(rosa_stream_info, bits);
	must(rosa_stream_describe(half.stream, &info, &err));
	assert_int_equal(info.routes, 3);
	assert_int_equal(info.steps, 40);
	for (const unsigned char *p = (unsigned char *)&info.bits; p < (unsigned char *)(&info + 1); p++)
		assert_int_equal(*p, 0x5a);
	half_close(&half, "after describe");
}

TEST(test_symbol_out_of_range)
{
	for (size_t b = 0; b + 1 < COUNT(trial_bits); b++) {
		const int bits = trial_bits[b];
		const uint16_t least = (uint16_t)(1u << bits), bad[] = {least, 65535};

		for (size_t i = 0; i < 4; i++) {
			struct half half;
			uint16_t *wrong = test_alloc(3 * 80 * sizeof(*wrong));
			int32_t *tau = test_alloc(3 * 80 * sizeof(*tau));
			const uint16_t *query, *key;
			rosa_flips flips = {0};
			char number[16];

			half_open(&half, bits);
			memcpy(wrong, i < 2 ? half.trial.query : half.trial.key, 3 * 80 * sizeof(*wrong));
			wrong[2 * 80 + 57] = bad[i % 2];
			query = i < 2 ? wrong : half.trial.query;
			key = i < 2 ? half.trial.key : wrong;
			must_refuse(rosa_retrieve(&half.trial.options, 3, 80, query, key, tau, NULL, &flips, &err),
				    ROSA_ESYMBOL);
			snprintf(number, sizeof(number), "%d", bad[i % 2]);
			must_say("57");
			must_say("2");
			must_say(number);
			rosa_flips_free(&flips);
			must_refuse(rosa_stream_push(half.stream, 40, query + 40, key + 40, 80, tau, NULL, NULL, &err),
				    ROSA_ESYMBOL);
			must_say("57");
			must_say("2");
			must_say(number);
			half_close(&half, "after a bad symbol");
		}
	}
}

TEST(test_names)
{
	char version[32];

	snprintf(version, sizeof(version), "%d.%d.%d", ROSA_VERSION_MAJOR, ROSA_VERSION_MINOR, ROSA_VERSION_PATCH);
	assert_string_equal(rosa_version(), version);
	for (int status = ROSA_OK; status <= ROSA_EDEVICE; status++) {
		const char *name = rosa_status_name((rosa_status)status);

		assert_non_null(name);
		assert_true(name[0] != 0);
		for (int other = ROSA_OK; other < status; other++)
			assert_string_not_equal(name, rosa_status_name((rosa_status)other));
	}
	assert_non_null(rosa_status_name((rosa_status)1000));
}
