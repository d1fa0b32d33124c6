/*
 * Bytes to options and symbols; batch, stream and oracle must agree.
 *
 * The first bytes choose the options, the engine and the sizes of the pieces, each folded into its range, so that no
 * input is wasted on being refused. The rest are symbols, one byte each for query and key in turn; for more than eight
 * bits the byte is spread over the width, which keeps inputs short and repetitions likely. Symbols of more than 16 bits
 * have no tables. The number of steps is held
 * low enough for the oracle to be quick.
 */
#include "rosatune.h"

#include "retrieval/engine.h"
#include "retrieval/symbol_array.h"
#include "oracle.h"
#include "support_fuzz.h"

#include <stdio.h>

#define MOST_STEPS 96

static const rosa_engine engines[] = {ROSA_ENGINE_AUTO, ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED, ROSA_ENGINE_EAGER};

struct result {
	int32_t tau[MOST_STEPS], length[MOST_STEPS], flips[MOST_STEPS * ROSA_MAX_BITS];
};

static void expect_ok(const char *what, rosa_status status, const rosa_error *err)
{
	if (status == ROSA_OK)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, rosa_status_name(status), err->message);
	abort();
}

static void expect_equal(const char *how, const char *what, const int32_t *got, const int32_t *want, size_t count,
			 size_t width)
{
	for (size_t i = 0; i < count * width; i++) {
		if (got[i] == want[i])
			continue;
		fprintf(stderr, "%s: %s at step %zu, column %zu: got %ld, want %ld\n", how, what, i / width, i % width,
			(long)got[i], (long)want[i]);
		abort();
	}
}

static void expect_result(const char *how, const struct result *got, const struct result *want, size_t steps, int bits)
{
	expect_equal(how, "tau", got->tau, want->tau, steps, 1);
	expect_equal(how, "length", got->length, want->length, steps, 1);
	if (bits <= ROSA_MAX_BITS)
		expect_equal(how, "flip", got->flips, want->flips, steps, (size_t)bits);
}

static void run_batch(const rosa_options *options, size_t steps, const void *query, const void *key, struct result *out)
{
	const bool tables = options->bits <= ROSA_MAX_BITS;
	rosa_flips flips = {0};
	rosa_error err;

	expect_ok("rosa_retrieve",
		  rosa_retrieve(options, 1, steps, query, key, out->tau, out->length, tables ? &flips : NULL, &err),
		  &err);
	if (tables)
		expect_ok("rosa_flips_expand", rosa_flips_expand(&flips, 0, steps, out->flips, &err), &err);
	rosa_flips_free(&flips);
}

/* By one engine, without lengths. */
static void check_engine(const rosa_options *options, rosa_engine engine, size_t steps, const void *query,
			 const void *key, const struct result *want, struct result *got)
{
	const bool tables = options->bits <= ROSA_MAX_BITS;
	rosa_flips flips = {0};
	rosa_error err;

	expect_ok("rosa_retrieve_by",
		  rosa_retrieve_by(engine, options, 1, steps, query, key, got->tau, NULL, tables ? &flips : NULL, &err),
		  &err);
	if (tables)
		expect_ok("rosa_flips_expand", rosa_flips_expand(&flips, 0, steps, got->flips, &err), &err);
	rosa_flips_free(&flips);
	expect_equal("engine", "tau", got->tau, want->tau, steps, 1);
	if (tables)
		expect_equal("engine", "flip", got->flips, want->flips, steps, (size_t)options->bits);
}

/* In pieces, with a detour before each: nothing, a fork that is kept, a rewind, or a save and a load. */
static void run_stream(const rosa_options *options, rosa_engine engine, uint8_t seed, size_t steps, const void *query,
		       const void *key, struct result *out)
{
	const unsigned bits = (unsigned)options->bits;
	unsigned turn = seed;
	rosa_stream *stream = NULL, *other = NULL;
	rosa_error err;

	expect_ok("rosa_stream_new", rosa_stream_new(options, 1, &stream, &err), &err);
	rosa_stream_set_engine(stream, engine);
	for (size_t t = 0; t < steps;) {
		size_t n = 1 + turn % 13;

		turn = (turn * 109 + 89) & 0xffff;
		if (n > steps - t)
			n = steps - t;
		if (turn % 8 == 1) {
			expect_ok("rosa_stream_fork", rosa_stream_fork(stream, &other, &err), &err);
			rosa_stream_free(stream);
			stream = other;
		} else if (turn % 8 == 2) {
			void *data;
			size_t size;

			expect_ok("rosa_stream_save_memory", rosa_stream_save_memory(stream, &data, &size, &err), &err);
			expect_ok("rosa_stream_load_memory", rosa_stream_load_memory(options, data, size, &other, &err),
				  &err);
			rosa_stream_free_memory(stream, data);
			rosa_stream_free(stream);
			stream = other;
		} else if (turn % 8 == 3) {
			t = (turn >> 8) * t / 256;
			expect_ok("rosa_stream_rewind", rosa_stream_rewind(stream, t, &err), &err);
		}
		if (n > steps - t)
			n = steps - t;
		expect_ok("rosa_stream_push",
			  rosa_stream_push(stream, n, symbols_from(query, bits, t), symbols_from(key, bits, t), 0,
					   out->tau + t, out->length + t,
					   bits <= ROSA_MAX_BITS ? out->flips + t * bits : NULL, &err),
			  &err);
		t += n;
	}
	rosa_stream_free(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { BITS, POLICY_AND_FOLD, CUT, DELAY, ENGINE, TURN, HEADER };
	static struct result want, got;
	uint32_t query[MOST_STEPS], key[MOST_STEPS]; /* with room for the widest */
	rosa_options options = ROSA_OPTIONS_INIT;
	size_t steps;

	if (size < HEADER + 2)
		return 0;
	options.bits = ROSA_MIN_BITS + data[BITS] % ROSA_MAX_SYMBOL_BITS;
	options.policy = (rosa_policy)(data[POLICY_AND_FOLD] % 3);
	options.fold = data[POLICY_AND_FOLD] / 3 % 2;
	options.max_match = data[CUT] % 12;
	/* mostly short ones, and none as often as any */
	options.delay = data[DELAY] % 2 ? 0 : data[DELAY] / 2 % 32 * (1 + data[DELAY] / 64);
	steps = (size - HEADER) / 2;
	if (steps > MOST_STEPS)
		steps = MOST_STEPS;
	for (size_t t = 0; t < steps; t++) {
		unsigned mask = (1u << options.bits) - 1;

		symbol_set(query, (unsigned)options.bits, t, data[HEADER + 2 * t] * 0x010101u & mask);
		symbol_set(key, (unsigned)options.bits, t, data[HEADER + 2 * t + 1] * 0x010101u & mask);
	}
	oracle_route(&options, steps, query, key, want.tau, want.length,
		     options.bits <= ROSA_MAX_BITS ? want.flips : NULL);
	run_batch(&options, steps, query, key, &got);
	expect_result("batch", &got, &want, steps, options.bits);
	memset(&got, 0xa5, sizeof(got));
	check_engine(&options, engines[data[ENGINE] % 4], steps, query, key, &want, &got);
	memset(&got, 0xa5, sizeof(got));
	run_stream(&options, engines[data[ENGINE] % 4], data[TURN], steps, query, key, &got);
	expect_result("stream", &got, &want, steps, options.bits);
	return 0;
}
