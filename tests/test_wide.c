/*
 * Symbols of more than 16 bits: arrays of uint32_t, and codes of any width up to their own.
 *
 * Short streams are compared with the oracle, at once and through streams that are fed in pieces, saved, loaded, forked
 * and rewound on the way. Streams that use more than 65,536 different symbols are beyond the oracle; there the indexes
 * are compared with each other.
 */
#include "retrieval/engine.h"
#include "oracle.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

static const rosa_engine engines[] = {ROSA_ENGINE_AUTO, ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED, ROSA_ENGINE_EAGER};

/* A trial whose symbols are spread over 17 to 20 bits: different ones stay different. */
struct wide {
	struct trial trial; /* options.bits is the wide number; its own arrays are not used */
	uint32_t *query, *key;
	int32_t *tau, *length;
};

static struct wide wide_make(const struct trial *settings, int narrow_bits)
{
	struct wide wide = {.trial = *settings};
	struct trial narrow = *settings;
	const size_t cells = settings->routes * settings->steps;
	const uint32_t mask = (UINT32_C(1) << settings->options.bits) - 1;

	narrow.options.bits = narrow_bits;
	trial_make(&narrow);
	memcpy(wide.trial.text, narrow.text, sizeof(narrow.text));
	wide.query = test_alloc(cells * sizeof(*wide.query));
	wide.key = test_alloc(cells * sizeof(*wide.key));
	wide.tau = test_alloc(cells * sizeof(*wide.tau));
	wide.length = test_alloc(cells * sizeof(*wide.length));
	for (size_t i = 0; i < cells; i++) {
		/* an odd factor: one to one */
		wide.query[i] = (narrow.query[i] * 0x9e3779b1u + 77) & mask;
		wide.key[i] = (narrow.key[i] * 0x9e3779b1u + 77) & mask;
	}
	return wide;
}

static void wide_solve(struct wide *wide)
{
	const struct trial *trial = &wide->trial;

	for (size_t r = 0; r < trial->routes; r++) {
		const size_t at = r * trial->steps;

		oracle_route(&trial->options, trial->steps, wide->query + at, wide->key + at, wide->tau + at,
			     wide->length + at, NULL);
	}
}

static void expect_wide(const struct wide *wide, const char *how, const int32_t *tau, const int32_t *length)
{
	const size_t steps = wide->trial.steps;

	expect_all(&wide->trial, how, "tau", 0, steps, 1, tau, steps, wide->tau);
	expect_all(&wide->trial, how, "length", 0, steps, 1, length, steps, wide->length);
}

static void check_batch(const struct wide *wide, rosa_engine engine)
{
	const struct trial *trial = &wide->trial;
	const size_t cells = trial->routes * trial->steps;
	int32_t *tau = test_alloc(cells * sizeof(*tau)), *length = test_alloc(cells * sizeof(*length));

	must_for(trial->text, rosa_retrieve_by(engine, &trial->options, trial->routes, trial->steps, wide->query,
					       wide->key, tau, length, NULL, &err));
	expect_wide(wide, "wide batch", tau, length);
}

/* Another stream with the same past: a copy, or what comes back from a saved state. */
static rosa_stream *detour(rosa_stream *stream, size_t turn, const struct wide *wide, size_t steps)
{
	rosa_stream *other = stream;
	void *data;
	size_t size, back;

	switch (turn % 4) {
	case 0:
		must(rosa_stream_fork(stream, &other, &err));
		rosa_stream_free(stream);
		break;
	case 1:
		must(rosa_stream_save_memory(stream, &data, &size, &err));
		must(rosa_stream_load_memory(NULL, data, size, &other, &err));
		rosa_stream_free_memory(stream, data);
		rosa_stream_free(stream);
		break;
	case 2:
		back = steps - steps / 3;
		must(rosa_stream_rewind(stream, back, &err));
		if (back < steps)
			must(rosa_stream_push(stream, steps - back, wide->query + back, wide->key + back,
					      wide->trial.steps, NULL, NULL, NULL, &err));
		break;
	default:
		break;
	}
	return other;
}

static void check_stream(const struct wide *wide, rosa_engine engine, uint64_t turn)
{
	const struct trial *trial = &wide->trial;
	const size_t cells = trial->routes * trial->steps;
	int32_t *tau = test_alloc(cells * sizeof(*tau)), *length = test_alloc(cells * sizeof(*length));
	rosa_stream *stream = NULL;

	must(rosa_stream_new(&trial->options, trial->routes, &stream, &err));
	rosa_stream_set_engine(stream, engine);
	for (size_t t = 0, n; t < trial->steps; t += n) {
		n = test_random(&turn, 3) ? 1 + test_random(&turn, 50) : 1;
		n = n < trial->steps - t ? n : trial->steps - t;
		stream = detour(stream, test_random(&turn, 9), wide, t);
		must_for(trial->text, rosa_stream_push(stream, n, wide->query + t, wide->key + t, trial->steps, tau + t,
						       length + t, NULL, &err));
	}
	expect_wide(wide, "wide stream", tau, length);
	rosa_stream_free(stream);
}

TEST(test_short)
{
	static const int narrow_bits[] = {1, 3, 6, 8, 9, 12, 16};
	const size_t rounds = test_rounds(4);

	for (int kind = 0; kind < stream_count(); kind++) {
		for (size_t i = 0, mark = test_mark(); i < rounds; i++, test_release(mark)) {
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind};
			uint64_t turn = (uint64_t)kind * 1000 + i;
			struct wide wide;

			trial.seed = turn;
			trial.options.bits = 17 + (int)test_random(&turn, 4);
			trial.options.policy = trial_policies[test_random(&turn, 3)];
			trial.options.fold = (int)test_random(&turn, 2);
			trial.options.max_match = trial_cuts[test_random(&turn, COUNT(trial_cuts))];
			trial.options.delay = trial_delays[test_random(&turn, COUNT(trial_delays))];
			trial.options.threads = test_random(&turn, 8) ? 1 : 2;
			trial.routes = 1 + test_random(&turn, 2);
			trial.steps = i ? 1 + test_random(&turn, 300) : 700;
			wide = wide_make(&trial, narrow_bits[test_random(&turn, COUNT(narrow_bits))]);
			wide_solve(&wide);
			for (size_t e = 0; e < COUNT(engines); e++) {
				check_batch(&wide, engines[e]);
				check_stream(&wide, engines[e], turn + e);
			}
		}
	}
}

/* More different symbols than codes of 16 bits have room for, again and again in stretches of several lengths. */
TEST(test_many_symbols)
{
	static const int bits[] = {18, 20};

	for (size_t i = 0; i < COUNT(bits); i++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 1, .steps = 220000};
		struct wide wide = {.trial = trial};
		uint64_t turn = 5 + i;

		wide.trial.options.bits = bits[i];
		wide.trial.options.fold = i != 1;
		wide.trial.options.delay = i == 1 ? 1024 : 0;
		snprintf(wide.trial.text, sizeof(wide.trial.text), "many symbols of %d bits", bits[i]);
		wide.key = test_alloc(trial.steps * sizeof(*wide.key));
		wide.query = wide.key;
		wide.tau = test_alloc(trial.steps * sizeof(*wide.tau));
		wide.length = test_alloc(trial.steps * sizeof(*wide.length));
		for (size_t t = 0; t < trial.steps;) {
			const size_t from = t ? test_random(&turn, t) : 0, n = 1 + test_random(&turn, 60);

			for (size_t j = 0; j < n && t < trial.steps; j++, t++)
				wide.key[t] = t < 2 || turn % 2 ? (uint32_t)test_random(&turn, UINT64_C(1) << bits[i])
								: wide.key[from + j < t ? from + j : t - 1];
			turn++;
		}
		must(rosa_retrieve_by(ROSA_ENGINE_ORDERED, &wide.trial.options, 1, trial.steps, wide.query, wide.key,
				      wide.tau, wide.length, NULL, &err));
		check_batch(&wide, ROSA_ENGINE_AUTO);
		check_batch(&wide, ROSA_ENGINE_CHAINS);
		{
			int32_t *tau = test_alloc(trial.steps * sizeof(*tau));
			rosa_stream *stream = NULL;

			must(rosa_stream_new(&wide.trial.options, 1, &stream, &err));
			for (size_t t = 0; t < trial.steps; t += 512) {
				const size_t n = trial.steps - t < 512 ? trial.steps - t : 512;

				must(rosa_stream_push(stream, n, wide.query + t, wide.key + t, 0, tau + t, NULL, NULL,
						      &err));
			}
			expect_same(&wide.trial, "pieces", "tau", 0, 0, trial.steps, 1, tau, wide.tau);
			rosa_stream_free(stream);
		}
		wide.query = NULL;
	}
}

TEST(test_refusals)
{
	static const uint32_t good[] = {1, 2, 70000, 1, 2}, bad[] = {1, 2, 70000, 1 << 17, 2};
	int32_t tau[5], table[5 * 17];
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_stream *stream = NULL;
	rosa_flips flips = {0};

	options.bits = 17;
	must_fail(rosa_retrieve(&options, 1, 5, good, bad, tau, NULL, NULL, &err), ROSA_ESYMBOL,
		  "key symbol 131072 at route 0, step 3");
	must_fail(rosa_retrieve(&options, 1, 5, good, good, tau, NULL, &flips, &err), ROSA_EINVAL, "17 bits");
	must(rosa_stream_new(&options, 1, &stream, &err));
	must(rosa_stream_push(stream, 3, good, good, 0, tau, NULL, NULL, &err));
	must_fail(rosa_stream_push(stream, 2, bad + 3, good + 3, 0, tau, NULL, NULL, &err), ROSA_ESYMBOL,
		  "query symbol 131072 at route 0, step 3");
	must_refuse(rosa_stream_push(stream, 2, good + 3, good + 3, 0, tau, NULL, table, &err), ROSA_EINVAL);
	must(rosa_stream_push(stream, 2, good + 3, good + 3, 0, tau, NULL, NULL, &err));
	assert_int_equal(tau[0], 1);
	assert_int_equal(tau[1], 2);
	rosa_stream_free(stream);
}
