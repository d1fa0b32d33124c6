/*
 * Retrieval as it comes: every way of cutting the streams into pieces, and every detour, must give what the whole
 * gives.
 *
 * Short streams are compared with the oracle: each kind of stream at a few settings, in each of several sizes of piece,
 * on each engine, with and without tables. Detours (fork, rewind, save and load, in any order) are tried by random
 * walks over a few streams at once, each with its history kept beside it; after every push the oracle answers for that
 * history from the start. Long streams, beyond the oracle's reach, are compared between the engines and the batch.
 */
#include "retrieval/engine.h"
#include "oracle.h"
#include "eval/streams.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

#include <unistd.h>

static const rosa_engine engines[] = {ROSA_ENGINE_AUTO, ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED, ROSA_ENGINE_EAGER};
static const char *const engine_names[] = {"auto", "tree", "ordered", "eager"};

/* Sizes of piece; 0: random ones. */
static const size_t pieces[] = {1, 2, 3, 7, 64, 0};

static rosa_stream *open_stream(const rosa_options *options, size_t routes, rosa_engine engine)
{
	rosa_stream *stream = NULL;

	must(rosa_stream_new(options, routes, &stream, &err));
	assert_non_null(stream);
	rosa_stream_set_engine(stream, engine);
	return stream;
}

/* What a whole trial gave, piece by piece; the layout is the trial's. */
struct outputs {
	int32_t *tau, *length, *flips;
};

static struct outputs outputs_make(const struct trial *trial)
{
	size_t cells = trial->routes * trial->steps;
	struct outputs out;

	out.tau = test_alloc(cells * sizeof(*out.tau));
	out.length = test_alloc(cells * sizeof(*out.length));
	out.flips = test_alloc(cells * (size_t)trial->options.bits * sizeof(*out.flips));
	return out;
}

/* Feed a trial to a fresh stream in pieces. The symbols and the answers stay where they are, `steps` apart, so that
 * every push but the last has a stride; the tables come dense and are moved into place. */
static void feed(const struct trial *trial, rosa_stream *stream, size_t piece, int with_flips, struct outputs *out)
{
	size_t bits = (size_t)trial->options.bits;
	int32_t *dense = test_alloc(trial->routes * trial->steps * bits * sizeof(*dense));
	uint64_t turn = trial->seed;

	for (size_t t = 0; t < trial->steps;) {
		size_t n = piece ? piece : 1 + test_random(&turn, 40);
		rosa_status status;

		if (n > trial->steps - t)
			n = trial->steps - t;
		status = rosa_stream_push(stream, n, trial->query + t, trial->key + t, trial->steps, out->tau + t,
					  out->length + t, with_flips ? dense : NULL, &err);
		must_for(trial->text, status);
		for (size_t r = 0; with_flips && r < trial->routes; r++)
			memcpy(out->flips + (r * trial->steps + t) * bits, dense + r * n * bits,
			       n * bits * sizeof(*dense));
		t += n;
	}
}

static void compare(const struct trial *trial, const char *how, const struct outputs *got, const struct outputs *want,
		    int with_flips)
{
	size_t bits = (size_t)trial->options.bits;

	expect_all(trial, how, "tau", 0, trial->steps, 1, got->tau, trial->steps, want->tau);
	expect_all(trial, how, "length", 0, trial->steps, 1, got->length, trial->steps, want->length);
	if (with_flips)
		expect_all(trial, how, "flip", 0, trial->steps, bits, got->flips, trial->steps, want->flips);
}

static void check_pieces(const struct trial *trial, struct outputs *got)
{
	struct outputs want = {trial->tau, trial->length, trial->flips};

	for (size_t e = 0; e < COUNT(engines); e++) {
		for (size_t p = 0; p < COUNT(pieces); p++) {
			int with_flips = (e + p) % 2 == 0;
			rosa_stream *stream = open_stream(&trial->options, trial->routes, engines[e]);
			char how[64];

			snprintf(how, sizeof(how), "engine %s, pieces of %zu, tables %d", engine_names[e], pieces[p],
				 with_flips);
			feed(trial, stream, pieces[p], with_flips, got);
			compare(trial, how, got, &want, with_flips);
			rosa_stream_free(stream);
		}
	}
}

TEST(test_pieces)
{
	static const size_t steps[] = {17, 64, 130, 200};
	size_t rounds = test_rounds(6);

	for (int kind = 0; kind < stream_count(); kind++) {
		for (size_t i = 0, mark = test_mark(); i < rounds; i++, test_release(mark)) {
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind};
			uint64_t turn = (uint64_t)kind * 1000 + i;
			struct outputs got;

			trial.seed = turn;
			trial.options.bits = trial_bits[test_random(&turn, COUNT(trial_bits))];
			trial.options.max_match = trial_cuts[test_random(&turn, COUNT(trial_cuts))];
			/* Workers are woken for every piece, which is slow; an eighth of the trials is enough of it. */
			trial.options.threads = test_random(&turn, 8) ? 1 : 2 + (int)test_random(&turn, 2);
			trial.options.policy = trial_policies[i % 3];
			trial.options.fold = i / 3 % 2 == 0;
			trial.options.delay = trial_delays[test_random(&turn, COUNT(trial_delays))];
			trial.steps = steps[test_random(&turn, COUNT(steps))];
			trial.routes = 1 + test_random(&turn, 3);
			trial_make(&trial);
			trial_solve(&trial);
			got = outputs_make(&trial);
			check_pieces(&trial, &got);
		}
	}
}

/* Any output may be left out, in any push, and a stride of 0 means dense. */
TEST(test_outputs_left_out)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 5, .routes = 3, .steps = 90};

	trial.options.bits = 2;
	trial_make(&trial);
	trial_solve(&trial);
	for (size_t e = 0; e < COUNT(engines); e++) {
		rosa_stream *stream = open_stream(&trial.options, trial.routes, engines[e]);
		uint16_t query[3 * 9], key[3 * 9];
		int32_t tau[3 * 9], length[3 * 9];
		const size_t n = 9;

		for (size_t t = 0; t < trial.steps; t += n) {
			int want_tau = t / n % 3 != 0, want_length = t / n % 3 != 1;

			for (size_t r = 0; r < trial.routes; r++) {
				memcpy(query + r * n, trial.query + r * trial.steps + t, n * sizeof(*query));
				memcpy(key + r * n, trial.key + r * trial.steps + t, n * sizeof(*key));
			}
			must(rosa_stream_push(stream, n, query, key, 0, want_tau ? tau : NULL,
					      want_length ? length : NULL, NULL, &err));
			if (want_tau)
				expect_all(&trial, "dense push", "tau", t, n, 1, tau, n, trial.tau);
			if (want_length)
				expect_all(&trial, "dense push", "length", t, n, 1, length, n, trial.length);
		}
		rosa_stream_free(stream);
	}
}

/* A table wanted in the middle of a run that began without is refused, and nothing else is. */
TEST(test_late_tables)
{
	static const uint16_t query[] = {1, 2, 2, 2, 3, 3, 1};
	static const uint16_t key[] = {1, 2, 3, 1, 2, 3, 1};
	const size_t steps = COUNT(query);

	for (size_t e = 0; e < COUNT(engines); e++) {
		rosa_options options = ROSA_OPTIONS_INIT;
		int32_t want_tau[COUNT(query)], want_flips[COUNT(query) * 2];
		int32_t tau[COUNT(query)], flips[COUNT(query) * 2];
		rosa_stream *stream;

		options.bits = 2;
		oracle_route(&options, steps, query, key, want_tau, NULL, want_flips);
		stream = open_stream(&options, 1, engines[e]);
		must(rosa_stream_push(stream, 2, query, key, 0, tau, NULL, NULL, &err));
		must_refuse(rosa_stream_push(stream, 5, query + 2, key + 2, 0, tau + 2, NULL, flips, &err),
			    ROSA_EINVAL);
		must(rosa_stream_push(stream, 2, query + 2, key + 2, 0, tau + 2, NULL, NULL, &err));
		must(rosa_stream_push(stream, 3, query + 4, key + 4, 0, tau + 4, NULL, flips + 8, &err));
		assert_memory_equal(tau, want_tau, sizeof(tau));
		assert_memory_equal(flips + 8, want_flips + 8, 6 * sizeof(*flips));
		rosa_stream_free(stream);
	}
}

/* ------------------------------------------------------------------------------------------------- random walks -- */

#define LANES      3
#define LANE_STEPS 150

/* A stream and all that was ever pushed to it. Layout of the history: [routes][LANE_STEPS]. */
struct lane {
	rosa_stream *stream;
	size_t steps;
	uint16_t *query, *key;
	char tables[LANE_STEPS]; /* was this step pushed with tables? */
};

/* Whether pushes ask for tables. */
enum tables { NEVER, ALWAYS, AT_TIMES };

struct walk {
	struct trial trial; /* for its options, routes and words */
	rosa_engine engine;
	enum tables tables;
	uint64_t turn;
	struct lane lanes[LANES];
};

static void lane_copy_history(const struct walk *walk, struct lane *to, const struct lane *from)
{
	size_t size = walk->trial.routes * LANE_STEPS * sizeof(*to->query);

	to->steps = from->steps;
	memcpy(to->tables, from->tables, sizeof(to->tables));
	memcpy(to->query, from->query, size);
	memcpy(to->key, from->key, size);
}

/* New symbols: half of the time from some kind of stream, else a stretch of the lane's own past with a symbol changed
 * here and there, which makes matches long. */
static void invent(struct walk *walk, struct lane *lane, size_t route, size_t n)
{
	uint16_t *query = lane->query + route * LANE_STEPS, *key = lane->key + route * LANE_STEPS;
	uint64_t symbols = 1u << walk->trial.options.bits;

	if (lane->steps == 0 || test_random(&walk->turn, 2)) {
		stream_fill((int)test_random(&walk->turn, (uint64_t)stream_count()), walk->trial.options.bits,
			    walk->turn, n, query + lane->steps, key + lane->steps);
		return;
	}
	for (int side = 0; side < 2; side++) {
		const uint16_t *from =
		    (test_random(&walk->turn, 2) ? key : query) + test_random(&walk->turn, lane->steps);
		uint16_t *to = (side ? key : query) + lane->steps;

		for (size_t i = 0; i < n; i++)
			to[i] = test_random(&walk->turn, 16) ? from[i] : (uint16_t)test_random(&walk->turn, symbols);
	}
}

/* Does the next step go on with a query run that began without tables, in any route? */
static int tables_missing(const struct walk *walk, const struct lane *lane)
{
	for (size_t r = 0; walk->trial.options.fold && lane->steps > 0 && r < walk->trial.routes; r++) {
		const uint16_t *query = lane->query + r * LANE_STEPS;
		size_t first = lane->steps;

		while (first > 0 && query[first - 1] == query[lane->steps])
			first--;
		if (first < lane->steps && !lane->tables[first])
			return 1;
	}
	return 0;
}

static void walk_push(struct walk *walk, struct lane *lane, const char *how)
{
	struct trial *trial = &walk->trial;
	size_t bits = (size_t)trial->options.bits;
	size_t n = 1 + test_random(&walk->turn, 30), before = lane->steps, all;
	int with_flips = walk->tables == ALWAYS || (walk->tables == AT_TIMES && test_random(&walk->turn, 2));
	int32_t tau[3 * LANE_STEPS], length[3 * LANE_STEPS], *flips;
	int32_t want_tau[LANE_STEPS], want_length[LANE_STEPS], *want_flips;
	rosa_status status;

	if (n > LANE_STEPS - before)
		n = LANE_STEPS - before;
	if (n == 0)
		return;
	flips = test_alloc(trial->routes * n * bits * sizeof(*flips));
	want_flips = test_alloc(LANE_STEPS * bits * sizeof(*want_flips));
	for (size_t r = 0; r < trial->routes; r++)
		invent(walk, lane, r, n);
	status = rosa_stream_push(lane->stream, n, lane->query + before, lane->key + before, LANE_STEPS, tau, length,
				  with_flips ? flips : NULL, &err);
	if (with_flips && status == ROSA_EINVAL && tables_missing(walk, lane)) {
		with_flips = 0;
		status = rosa_stream_push(lane->stream, n, lane->query + before, lane->key + before, LANE_STEPS, tau,
					  length, NULL, &err);
	}
	if (status != ROSA_OK)
		print_error("%s\n", trial->text);
	must_for(how, status);
	memset(lane->tables + before, with_flips, n);
	all = lane->steps += n;
	for (size_t r = 0; r < trial->routes; r++) {
		oracle_route(&trial->options, all, lane->query + r * LANE_STEPS, lane->key + r * LANE_STEPS, want_tau,
			     want_length, with_flips ? want_flips : NULL);
		expect_same(trial, how, "tau", r, before, n, 1, tau + r * LANE_STEPS, want_tau + before);
		expect_same(trial, how, "length", r, before, n, 1, length + r * LANE_STEPS, want_length + before);
		if (with_flips)
			expect_same(trial, how, "flip", r, before, n, bits, flips + r * n * bits,
				    want_flips + before * bits);
	}
}

static void walk_rewind(struct walk *walk, struct lane *lane)
{
	size_t to = test_random(&walk->turn, 5) ? test_random(&walk->turn, lane->steps + 1) : 0;

	/* Most of the time a little: that undoes, and does not rebuild. */
	if (test_random(&walk->turn, 2))
		to = lane->steps - test_random(&walk->turn, lane->steps < 9 ? lane->steps + 1 : 9);
	must_for(walk->trial.text, rosa_stream_rewind(lane->stream, to, &err));
	lane->steps = to;
}

static void walk_fork(struct walk *walk, struct lane *lane)
{
	struct lane *other = &walk->lanes[test_random(&walk->turn, LANES)];
	rosa_stream *copy = NULL;

	if (other == lane)
		return;
	must_for(walk->trial.text, rosa_stream_fork(lane->stream, &copy, &err));
	rosa_stream_free(other->stream);
	other->stream = copy;
	lane_copy_history(walk, other, lane);
}

/* Through memory or a file, and the original goes first, so that nothing can be shared with it. */
static void walk_save(struct walk *walk, struct lane *lane)
{
	rosa_stream *loaded = NULL;

	if (test_random(&walk->turn, 4)) {
		void *data = NULL, *copy;
		size_t size = 0;

		must(rosa_stream_save_memory(lane->stream, &data, &size, &err));
		copy = test_alloc(size);
		memcpy(copy, data, size);
		rosa_stream_free_memory(lane->stream, data);
		rosa_stream_free(lane->stream);
		lane->stream = NULL;
		must(rosa_stream_load_memory(&walk->trial.options, copy, size, &loaded, &err));
	} else {
		char path[64];

		snprintf(path, sizeof(path), "test_stream-%ld.state", (long)getpid());
		must(rosa_stream_save(lane->stream, path, &err));
		rosa_stream_free(lane->stream);
		lane->stream = NULL;
		must(rosa_stream_load(&walk->trial.options, path, &loaded, &err));
		assert_int_equal(unlink(path), 0);
	}
	lane->stream = loaded;
}

static void walk_run(struct walk *walk, size_t moves)
{
	struct trial *trial = &walk->trial;
	size_t cells = trial->routes * LANE_STEPS;

	for (size_t i = 0; i < LANES; i++) {
		walk->lanes[i].stream = open_stream(&trial->options, trial->routes, walk->engine);
		walk->lanes[i].steps = 0;
		walk->lanes[i].query = test_zeros(cells, sizeof(uint16_t));
		walk->lanes[i].key = test_zeros(cells, sizeof(uint16_t));
	}
	for (size_t i = 0; i < moves; i++) {
		struct lane *lane = &walk->lanes[test_random(&walk->turn, LANES)];
		char how[96];

		snprintf(how, sizeof(how), "engine %s, tables %d, move %zu", engine_names[walk->engine],
			 (int)walk->tables, i);
		switch (test_random(&walk->turn, 8)) {
		case 0:
			walk_rewind(walk, lane);
			break;
		case 1:
			walk_fork(walk, lane);
			break;
		case 2:
			walk_save(walk, lane);
			break;
		default:
			walk_push(walk, lane, how);
			break;
		}
		if (lane->steps == LANE_STEPS)
			walk_rewind(walk, lane);
	}
	for (size_t i = 0; i < LANES; i++)
		rosa_stream_free(walk->lanes[i].stream);
}

TEST(test_walks)
{
	size_t rounds = test_rounds(288);

	for (size_t i = 0, mark = test_mark(); i < rounds; i++, test_release(mark)) {
		struct walk walk = {.trial = {.options = ROSA_OPTIONS_INIT, .seed = i}};
		struct trial *trial = &walk.trial;

		walk.engine = engines[i % COUNT(engines)];
		walk.turn = i;
		trial->options.policy = trial_policies[i / 4 % 3];
		trial->options.fold = i / 12 % 2 == 0;
		walk.tables = (enum tables)(i / 24 % 3);
		trial->options.bits = trial_bits[test_random(&walk.turn, COUNT(trial_bits))];
		trial->options.max_match = trial_cuts[test_random(&walk.turn, COUNT(trial_cuts))];
		trial->options.threads = 1 + (int)test_random(&walk.turn, 2);
		trial->options.delay = trial_delays[test_random(&walk.turn, COUNT(trial_delays))];
		trial->routes = 1 + test_random(&walk.turn, 3);
		snprintf(trial->text, sizeof(trial->text),
			 "walk %zu, %zu routes, bits %d, %s, fold %d, max_match %u, delay %u, threads %d", i,
			 trial->routes, trial->options.bits, policy_name(trial->options.policy), trial->options.fold,
			 (unsigned)trial->options.max_match, (unsigned)trial->options.delay, trial->options.threads);
		walk_run(&walk, 40);
	}
}

/* ------------------------------------------------------------------------------------------------- long streams -- */

static void check_long(int kind, int bits, size_t steps, int fold, uint32_t max_match, rosa_policy policy,
		       uint32_t delay)
{
	static const size_t long_pieces[] = {64, 1000, 0, 3};
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 11, .routes = 1, .steps = steps};
	struct outputs want, got;
	rosa_flips flips;

	trial.options.bits = bits;
	trial.options.fold = fold;
	trial.options.max_match = max_match;
	trial.options.policy = policy;
	trial.options.delay = delay;
	trial_make(&trial);
	want = outputs_make(&trial);
	got = outputs_make(&trial);
	must_for(trial.text,
		 rosa_retrieve(&trial.options, 1, steps, trial.query, trial.key, want.tau, want.length, &flips, &err));
	must_for(trial.text, rosa_flips_expand(&flips, 0, steps, want.flips, &err));
	rosa_flips_free(&flips);
	for (size_t e = 0; e < COUNT(engines); e++) {
		rosa_stream *stream = open_stream(&trial.options, 1, engines[e]);
		char how[64];

		snprintf(how, sizeof(how), "engine %s against the batch", engine_names[e]);
		feed(&trial, stream, long_pieces[e], 1, &got);
		compare(&trial, how, &got, &want, 1);
		rosa_stream_free(stream);
	}
}

TEST(test_long)
{
	static const int bits[] = {1, 4, 8, 9, 16}; /* 9: wide symbols without codes */
	int turn = 0;

	for (int kind = 0; kind < stream_count(); kind++) {
		for (size_t b = 0; b < COUNT(bits); b++, turn++)
			check_long(kind, bits[b], 3000, turn % 3 != 0, turn % 5 == 0 ? 7 : 0,
				   trial_policies[turn % 7 % 3], turn % 11 % 3 ? 0 : 100);
	}
}

TEST(test_longest)
{
	static const char *const names[] = {
	    "uniform",     "sticky",    "correlated",         "periodic", "fibonacci-alternating",
	    "sorted-deep", "text-like", "growing-alternating"};
	static const int bits[] = {1, 4, 8, 10, 16};

	for (size_t i = 0; i < COUNT(names); i++) {
		const int kind = stream_kind(names[i]);

		check_long(kind, bits[i % COUNT(bits)], 20000, 1, 0, ROSA_READABLE, 0);
		check_long(kind, bits[(i + 1) % COUNT(bits)], 20000, 0, 0, ROSA_READABLE, 2048);
	}
	/* with context 2^16 links get longer */
	check_long(stream_kind("uniform"), 4, 75000, 1, 0, ROSA_READABLE, 0);
}

/* A long history, undone in part, must go on as one that never was longer. */
TEST(test_long_rewind)
{
	static const size_t back_to[] = {2999, 2990, 2500, 1000, 100, 1, 0};

	for (int turn = 0; turn < 2 * stream_count(); turn++) {
		const int kind = turn / 2;
		const rosa_engine engine = engines[(size_t)kind % COUNT(engines)];
		struct trial trial = {
		    .options = ROSA_OPTIONS_INIT, .kind = kind, .seed = 23, .routes = 2, .steps = 3000};
		struct outputs want, got;
		rosa_stream *stream;

		trial.options.bits = turn % 2 ? 9 : trial_bits[(size_t)kind % COUNT(trial_bits)];
		trial.options.fold = kind % 3 != 0;
		trial.options.delay = trial_delays[(size_t)kind % 5];
		trial_make(&trial);
		want = outputs_make(&trial);
		got = outputs_make(&trial);
		stream = open_stream(&trial.options, trial.routes, engine);
		feed(&trial, stream, 0, 0, &want);
		for (size_t i = 0; i < COUNT(back_to); i++) {
			size_t at = back_to[i], rest = trial.steps - at;
			char how[64];

			snprintf(how, sizeof(how), "engine %s, rewound to %zu", engine_names[engine], at);
			must_for(how, rosa_stream_rewind(stream, at, &err));
			must_for(how, rosa_stream_push(stream, rest, trial.query + at, trial.key + at, trial.steps,
						       got.tau + at, got.length + at, NULL, &err));
			expect_all(&trial, how, "tau", at, rest, 1, got.tau + at, trial.steps, want.tau);
			expect_all(&trial, how, "length", at, rest, 1, got.length + at, trial.steps, want.length);
		}
		rosa_stream_free(stream);
	}
}

/* Trees that grow deep while nobody asks: the first look-ups that do may have to give up, in the middle of a piece, and
 * the rest of it must be answered by the order. */
TEST(test_late_question)
{
	enum { STEPS = 300000, ASKED = STEPS - 3000, NAMES = 15 };
	static const size_t late_pieces[] = {1, 4096};
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 1, .steps = STEPS, .text = "late question"};
	struct outputs want, got;

	trial.options.bits = 4;
	trial.query = test_alloc(STEPS * sizeof(*trial.query));
	trial.key = test_alloc(STEPS * sizeof(*trial.key));
	want = outputs_make(&trial);
	got = outputs_make(&trial);
	for (int falling = 0; falling < 2; falling++) {
		for (size_t t = 0; t < STEPS; t++) {
			size_t name = t / 2 % NAMES;

			trial.key[t] = (uint16_t)(t % 2 ? 0 : 1 + (falling ? NAMES - 1 - name : name));
		}
		for (size_t t = 0; t < STEPS; t++)
			trial.query[t] = t < ASKED ? 0 : trial.key[t % 8];
		must_for(trial.text, rosa_retrieve(&trial.options, 1, STEPS, trial.query, trial.key, want.tau,
						   want.length, NULL, &err));
		for (size_t p = 0; p < COUNT(late_pieces); p++) {
			rosa_stream *stream = open_stream(&trial.options, 1, ROSA_ENGINE_AUTO);

			feed(&trial, stream, late_pieces[p], 0, &got);
			compare(&trial, falling ? "falling keys" : "rising keys", &got, &want, 0);
			rosa_stream_free(stream);
		}
	}
}

/* ------------------------------------------------------------------------------------------------------ describe -- */

static uint64_t count_runs(const struct trial *trial, const uint16_t *symbols, size_t steps)
{
	size_t *start = test_alloc(trial->steps * sizeof(*start));
	uint16_t *symbol = test_alloc(trial->steps * sizeof(*symbol));
	uint64_t runs = 0;

	for (size_t r = 0; r < trial->routes; r++)
		runs += oracle_runs(symbols + r * trial->steps, steps, trial->options.fold, start, symbol);
	return runs;
}

TEST(test_describe)
{
	for (size_t e = 0; e < COUNT(engines); e++) {
		for (int fold = 0; fold < 2; fold++) {
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 9, .routes = 3, .steps = 300};
			struct test_memory memory;
			rosa_stream *stream;

			test_memory_init(&memory);
			trial.kind = stream_kind("sticky");
			trial.options.bits = 3;
			trial.options.fold = fold;
			trial.options.policy = ROSA_INCLUSIVE;
			trial.options.max_match = 5;
			trial.options.delay = 7;
			trial.options.allocator = test_memory_allocator(&memory);
			trial_make(&trial);
			stream = open_stream(&trial.options, trial.routes, engines[e]);
			for (size_t t = 0; t <= trial.steps; t += 50) {
				rosa_stream_info info = {.size = sizeof(info)};

				must(rosa_stream_describe(stream, &info, &err));
				assert_int_equal(info.size, sizeof(info));
				assert_int_equal(info.routes, trial.routes);
				assert_int_equal(info.steps, t);
				assert_int_equal(info.bits, 3);
				assert_int_equal(info.policy, ROSA_INCLUSIVE);
				assert_int_equal(info.fold != 0, fold);
				assert_int_equal(info.max_match, 5);
				assert_int_equal(info.delay, 7);
				assert_int_equal(info.key_runs, count_runs(&trial, trial.key, t));
				assert_int_equal(info.query_runs, count_runs(&trial, trial.query, t));
				assert_int_equal(info.bytes, atomic_load(&memory.bytes));
				if (engines[e] == ROSA_ENGINE_CHAINS)
					assert_int_equal(info.ordered, 0);
				if (t == trial.steps && engines[e] != ROSA_ENGINE_AUTO &&
				    engines[e] != ROSA_ENGINE_CHAINS)
					assert_int_equal(info.ordered, trial.routes);
				if (t < trial.steps)
					must(rosa_stream_push(stream, 50, trial.query + t, trial.key + t, trial.steps,
							      NULL, NULL, NULL, &err));
			}
			rosa_stream_free(stream);
			assert_int_equal(atomic_load(&memory.blocks), 0);
			assert_int_equal(atomic_load(&memory.bytes), 0);
		}
	}
}
