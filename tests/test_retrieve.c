/*
 * Retrieval at once, against the oracle.
 *
 * The grid has every kind of stream, every policy, folding on and off and every tried number of bits in full. The cut,
 * the delay, the number of steps, of routes and of threads turn with a counter instead of multiplying the grid; the
 * test keeps book of the pairs it has met and fails if one value of any setting never met one value of any other.
 *
 * Every cell is also tried by each engine that can be pinned; long streams are compared between engines.
 *
 * Beside the grid, all pairs of short strings over two and three symbols are tried, one pair a route: whatever goes
 * wrong with few runs goes wrong there.
 */
#include "retrieval/engine.h"
#include "oracle.h"
#include "eval/streams.h"
#include "support_test.h"
#include "support_trial.h"

/* The tables and tau alone, by one engine. */
static void check_engine(const struct trial *trial, rosa_engine engine)
{
	size_t bits = (size_t)trial->options.bits;
	int32_t *tau = test_alloc(trial->routes * trial->steps * sizeof(*tau));
	int32_t *table = test_alloc(trial->steps * bits * sizeof(*table));
	char how[64];

	for (int with_flips = 0; with_flips < 2; with_flips++) {
		rosa_flips flips;

		snprintf(how, sizeof(how), "engine %d, %s tables", (int)engine, with_flips ? "with" : "without");
		memset(tau, 0xa5, trial->routes * trial->steps * sizeof(*tau));
		must_for(how, rosa_retrieve_by(engine, &trial->options, trial->routes, trial->steps, trial->query,
					       trial->key, tau, NULL, with_flips ? &flips : NULL, &err));
		for (size_t r = 0; r < trial->routes; r++) {
			size_t at = r * trial->steps;

			expect_same(trial, how, "tau", r, 0, trial->steps, 1, tau + at, trial->tau + at);
			if (!with_flips)
				continue;
			must_for(how, rosa_flips_expand(&flips, r, trial->steps, table, &err));
			expect_same(trial, how, "flip", r, 0, trial->steps, bits, table, trial->flips + at * bits);
			for (size_t i = flips.first[r]; i < flips.first[r + 1]; i++)
				expect_same(trial, how, "tau of a run", r, (size_t)flips.start[i], 1, 1, &flips.tau[i],
					    &trial->tau[at + (size_t)flips.start[i]]);
		}
		if (with_flips)
			rosa_flips_free(&flips);
	}
}

/* Compare all outputs of rosa_retrieve, with the tables in both forms, to a solved trial. */
static void check_batch(const struct trial *trial)
{
	size_t cells = trial->routes * trial->steps;
	size_t bits = (size_t)trial->options.bits;
	int32_t *tau = test_alloc(cells * sizeof(*tau));
	int32_t *length = test_alloc(cells * sizeof(*length));
	int32_t *table = test_alloc(trial->steps * bits * sizeof(*table));
	size_t *start = test_alloc(trial->steps * sizeof(*start));
	uint16_t *symbol = test_alloc(trial->steps * sizeof(*symbol));
	rosa_flips flips;
	rosa_status status;

	memset(&flips, 0xa5, sizeof(flips));
	status = rosa_retrieve(&trial->options, trial->routes, trial->steps, trial->query, trial->key, tau, length,
			       &flips, &err);
	must_for(trial->text, status);
	assert_int_equal(flips.routes, trial->routes);
	assert_int_equal(flips.bits, trial->options.bits);
	assert_int_equal(flips.first[0], 0);
	for (size_t r = 0; r < trial->routes; r++) {
		size_t at = r * trial->steps;
		const int32_t *want_flips = trial->flips + at * bits;
		size_t first = flips.first[r];
		size_t runs = oracle_runs(trial->query + at, trial->steps, trial->options.fold, start, symbol);

		expect_same(trial, "batch", "tau", r, 0, trial->steps, 1, tau + at, trial->tau + at);
		expect_same(trial, "batch", "length", r, 0, trial->steps, 1, length + at, trial->length + at);
		if (flips.first[r + 1] - first != runs)
			fail_msg("%s: route %zu has %zu runs in the tables, want %zu", trial->text, r,
				 flips.first[r + 1] - first, runs);
		for (size_t i = 0; i < runs; i++) {
			int32_t t = (int32_t)start[i];

			expect_same(trial, "run tables", "start", r, start[i], 1, 1, &flips.start[first + i], &t);
			expect_same(trial, "run tables", "tau", r, start[i], 1, 1, &flips.tau[first + i],
				    &trial->tau[at + start[i]]);
			expect_same(trial, "run tables", "flip", r, start[i], 1, bits, &flips.flip[(first + i) * bits],
				    &want_flips[start[i] * bits]);
		}
		status = rosa_flips_expand(&flips, r, trial->steps, table, &err);
		must_for(trial->text, status);
		expect_same(trial, "expanded tables", "flip", r, 0, trial->steps, bits, table, want_flips);
	}
	rosa_flips_free(&flips);

	/* The same without what may be left out. */
	memset(tau, 0xa5, cells * sizeof(*tau));
	status = rosa_retrieve(&trial->options, trial->routes, trial->steps, trial->query, trial->key, tau, NULL, NULL,
			       NULL);
	expect_status(trial->text, status, ROSA_OK, NULL);
	expect_all(trial, "batch of tau alone", "tau", 0, trial->steps, 1, tau, trial->steps, trial->tau);
	for (rosa_engine engine = ROSA_ENGINE_CHAINS; engine <= ROSA_ENGINE_EAGER; engine++)
		check_engine(trial, engine);
}

static const size_t grid_steps[] = {1, 2, 3, 17, 64, 200, 400};

enum { KIND, BITS, POLICY, FOLD, CUT, DELAY, STEPS, ROUTES, THREADS, SETTINGS };
#define MOST_VALUES 64

static unsigned char met[SETTINGS][SETTINGS][MOST_VALUES][MOST_VALUES];

static void meet(const size_t value[SETTINGS])
{
	for (int a = 0; a < SETTINGS; a++) {
		for (int b = 0; b < SETTINGS; b++)
			met[a][b][value[a]][value[b]] = 1;
	}
}

TEST(test_grid)
{
	size_t values[SETTINGS] = {(size_t)stream_count(),
				   COUNT(trial_bits),
				   COUNT(trial_policies),
				   2,
				   COUNT(trial_cuts),
				   COUNT(trial_delays),
				   COUNT(grid_steps),
				   3,
				   3};
	size_t cells = values[KIND] * values[BITS] * values[POLICY] * values[FOLD];
	size_t rounds = test_rounds(1);

	assert_true(values[KIND] <= MOST_VALUES);
	memset(met, 0, sizeof(met));
	for (size_t i = 0, mark = test_mark(); i < cells * rounds; i++, test_release(mark)) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = i};
		size_t value[SETTINGS];
		size_t rest = i % cells;
		uint64_t turn = i;

		for (int s = KIND; s <= FOLD; s++) {
			value[s] = rest % values[s];
			rest /= values[s];
		}
		for (int s = CUT; s < SETTINGS; s++)
			value[s] = test_random(&turn, values[s]);
		meet(value);
		trial.kind = (int)value[KIND];
		trial.options.bits = trial_bits[value[BITS]];
		trial.options.policy = trial_policies[value[POLICY]];
		trial.options.fold = (int)value[FOLD];
		trial.options.max_match = trial_cuts[value[CUT]];
		trial.options.delay = trial_delays[value[DELAY]];
		trial.options.threads = 1 + (int)value[THREADS];
		trial.steps = grid_steps[value[STEPS]];
		trial.routes = 1 + value[ROUTES];
		trial_make(&trial);
		trial_solve(&trial);
		check_batch(&trial);
	}
	for (int a = 0; a < SETTINGS; a++) {
		for (int b = 0; b < a; b++) {
			for (size_t x = 0; x < values[a]; x++) {
				for (size_t y = 0; y < values[b]; y++) {
					if (!met[a][b][x][y])
						fail_msg("value %zu of setting %d never met value %zu of setting %d", x,
							 a, y, b);
				}
			}
		}
	}
}

/* Every pair of strings of `steps` symbols below `symbols`. */
static void check_all_pairs(int bits, size_t symbols, size_t steps, const rosa_options *options)
{
	struct trial trial = {.options = *options, .steps = steps, .routes = 1};
	size_t strings = 1;

	trial.options.bits = bits;
	for (size_t t = 0; t < steps; t++)
		strings *= symbols;
	trial.routes = strings * strings;
	trial_make(&trial);
	snprintf(trial.text, sizeof(trial.text),
		 "all pairs over %zu symbols, %zu steps, bits %d, %s, fold %d, cut %u, delay %u", symbols, steps, bits,
		 policy_name(options->policy), options->fold, (unsigned)options->max_match, (unsigned)options->delay);
	for (size_t r = 0; r < trial.routes; r++) {
		size_t q = r / strings, k = r % strings;

		for (size_t t = 0; t < steps; t++, q /= symbols, k /= symbols) {
			trial.query[r * steps + t] = (uint16_t)(q % symbols);
			trial.key[r * steps + t] = (uint16_t)(k % symbols);
		}
	}
	trial_solve(&trial);
	check_batch(&trial);
}

TEST(test_all_pairs)
{
	for (size_t p = 0; p < COUNT(trial_policies); p++) {
		for (int fold = 0; fold < 2; fold++) {
			for (uint32_t turn = 0; turn < 6; turn++) {
				const uint32_t cut = turn % 3, delay = turn < 3 ? 0 : turn - 2;
				rosa_options options = ROSA_OPTIONS_INIT;

				options.policy = trial_policies[p];
				options.fold = fold;
				options.max_match = cut;
				options.delay = delay;
				options.threads = 1 + (int)cut;
				check_all_pairs(1, 2, 6, &options);
				check_all_pairs(2, 3, 4, &options);
			}
		}
	}
}

/* More steps than any table of short contexts has room for at the start, on the streams with the longest matches. */
TEST(test_longer)
{
	static const char *const names[] = {"halves", "fibonacci-alternating", "sorted-deep", "text-like", "uniform"};

	for (size_t i = 0; i < COUNT(names); i++) {
		for (size_t b = 0; b < COUNT(trial_bits); b += 3) {
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 7 + i, .routes = 1, .steps = 1200};

			trial.kind = stream_kind(names[i]);
			trial.options.bits = trial_bits[b];
			trial.options.delay = trial_delays[(i + b) % COUNT(trial_delays)];
			trial_make(&trial);
			trial_solve(&trial);
			check_batch(&trial);
		}
	}
}

/*
 * Streams that use few of the values that symbols may have, so that routes keep them as codes. The alphabets end just
 * below, at and just above where codes get another bit, and where there are too many symbols for codes; half of the
 * streams meet new symbols late.
 */
TEST(test_narrow_alphabets)
{
	static const char *const names[] = {"uniform", "skewed", "text-like", "correlated", "sticky", "equal"};
	static const unsigned alphabets[] = {1, 2, 3, 4, 5, 8, 16, 17, 64, 255, 256, 257, 300};
	static const int widths[] = {2, 4, 5, 8, 9, 16};

	for (size_t w = 0; w < COUNT(widths); w++) {
		for (size_t a = 0; a < COUNT(alphabets); a++) {
			const size_t i = w * COUNT(alphabets) + a;
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = i, .routes = 2};

			if (alphabets[a] >> widths[w])
				continue;
			trial.steps = alphabets[a] > 100 ? 700 : 350;
			trial.kind = stream_kind(names[i % COUNT(names)]);
			trial.options.bits = widths[w];
			trial.options.policy = trial_policies[i % COUNT(trial_policies)];
			trial.options.fold = i % 5 != 0;
			trial.options.max_match = i % 4 == 1 ? 3 : 0;
			trial.options.delay = trial_delays[i % 7 % COUNT(trial_delays)];
			trial_make(&trial);
			for (size_t t = 0; t < trial.routes * trial.steps; t++) {
				/* in order of appearance, the alphabet grows to its size by the middle or by the end */
				size_t most = 1 + t % trial.steps * alphabets[a] / (trial.steps / (1 + i % 2));

				most = most < alphabets[a] ? most : alphabets[a];
				trial.query[t] = (uint16_t)(trial.query[t] % most);
				trial.key[t] = (uint16_t)(trial.key[t] % most);
			}
			stream_spread(widths[w], trial.routes * trial.steps, trial.query);
			stream_spread(widths[w], trial.routes * trial.steps, trial.key);
			trial_solve(&trial);
			check_batch(&trial);
		}
	}
}

/* What two engines say of one route. */
static void expect_same_by(rosa_engine engine, rosa_engine other, const struct trial *trial)
{
	size_t bits = (size_t)trial->options.bits;
	int32_t *tau[2];
	rosa_flips flips[2];

	for (int i = 0; i < 2; i++) {
		tau[i] = test_alloc(trial->steps * sizeof(*tau[i]));
		must_for(trial->text, rosa_retrieve_by(i ? other : engine, &trial->options, 1, trial->steps,
						       trial->query, trial->key, tau[i], NULL, &flips[i], &err));
	}
	expect_same(trial, "long batch", "tau", 0, 0, trial->steps, 1, tau[0], tau[1]);
	assert_int_equal(flips[0].first[1], flips[1].first[1]);
	for (size_t run = 0; run < flips[0].first[1]; run++) {
		size_t t = (size_t)flips[1].start[run];

		expect_same(trial, "long batch", "start", 0, t, 1, 1, &flips[0].start[run], &flips[1].start[run]);
		expect_same(trial, "long batch", "tau of a run", 0, t, 1, 1, &flips[0].tau[run], &flips[1].tau[run]);
		expect_same(trial, "long batch", "flip", 0, t, 1, bits, &flips[0].flip[run * bits],
			    &flips[1].flip[run * bits]);
	}
	/* and without tables, for which other lengths are long */
	must_for(trial->text, rosa_retrieve_by(engine, &trial->options, 1, trial->steps, trial->query, trial->key,
					       tau[0], NULL, NULL, &err));
	expect_same(trial, "long batch without tables", "tau", 0, 0, trial->steps, 1, tau[0], tau[1]);
	for (int i = 0; i < 2; i++)
		rosa_flips_free(&flips[i]);
}

/* Long streams, for which the oracle takes too long, against the index that suits them best. */
TEST(test_long_streams)
{
	static const struct {
		const char *kind;
		int bits;
		uint32_t cut;
		rosa_engine other;
	} cases[] = {
	    {"uniform", 4, 0, ROSA_ENGINE_CHAINS},      {"uniform", 7, 3, ROSA_ENGINE_CHAINS},
	    {"uniform", 16, 0, ROSA_ENGINE_CHAINS},     {"skewed", 12, 0, ROSA_ENGINE_CHAINS},
	    {"correlated", 3, 0, ROSA_ENGINE_CHAINS},   {"sticky", 5, 9, ROSA_ENGINE_CHAINS},
	    {"text-like", 9, 0, ROSA_ENGINE_CHAINS},    {"shifted", 4, 0, ROSA_ENGINE_CHAINS},
	    {"halves", 8, 0, ROSA_ENGINE_CHAINS},       {"de-bruijn", 4, 0, ROSA_ENGINE_ORDERED},
	    {"sorted-deep", 4, 0, ROSA_ENGINE_ORDERED}, {"growing-alternating", 4, 0, ROSA_ENGINE_ORDERED},
	    {"thue-morse", 2, 0, ROSA_ENGINE_ORDERED},  {"ids", 16, 0, ROSA_ENGINE_CHAINS},
	    {"ids", 12, 0, ROSA_ENGINE_CHAINS},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = i, .routes = 1, .steps = 150000};

		trial.kind = stream_kind(cases[i].kind);
		trial.options.bits = cases[i].bits;
		trial.options.max_match = cases[i].cut;
		trial.options.delay = i % 2 ? 1024 : 0;
		trial_make(&trial);
		expect_same_by(ROSA_ENGINE_AUTO, cases[i].other, &trial);
	}
}

/* So many contexts that the chains have the layout and the prefetching of an index beyond the caches, against the other
 * index. */
TEST(test_beyond_caches)
{
	static const struct {
		const char *kind;
		int bits;
		int fold;
	} cases[] = {{"uniform", 4, 1}, {"uniform", 16, 1}, {"correlated", 8, 0}, {"text-like", 12, 1}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = i, .routes = 1, .steps = 260000};

		trial.kind = stream_kind(cases[i].kind);
		trial.options.bits = cases[i].bits;
		trial.options.fold = cases[i].fold;
		trial.options.delay = i % 2 ? 0 : 3000;
		trial_make(&trial);
		expect_same_by(ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED, &trial);
	}
}

/* A good stream whose end repeats one word of it over and over. */
TEST(test_late_repetition)
{
	for (int bits = 4; bits <= 16; bits += 12) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 5, .routes = 1, .steps = 150000};
		size_t from = trial.steps - trial.steps / 5;

		trial.kind = stream_kind("uniform");
		trial.options.bits = bits;
		trial_make(&trial);
		for (size_t t = from; t < trial.steps; t++)
			trial.query[t] = trial.key[t] = (uint16_t)((t - from) % 5 + (t - from) % 7777 / 7776);
		expect_same_by(ROSA_ENGINE_AUTO, ROSA_ENGINE_ORDERED, &trial);
	}
}

/* The query stands still on a long string that the key repeats: contexts that come are compared with it at length. */
TEST(test_standing_query)
{
	for (size_t b = 0; b < COUNT(trial_bits); b++) {
		for (size_t steps = 20; steps <= 260; steps += 60) {
			struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 1, .steps = steps};
			size_t period = trial_bits[b] < 3 ? 2 : 6;

			trial.options.bits = trial_bits[b];
			trial.options.delay = (uint32_t)(b % 4);
			trial_make(&trial);
			for (size_t t = 0; t < steps; t++) {
				trial.key[t] = (uint16_t)(t % period);
				trial.query[t] = (uint16_t)((t < steps / 2 ? t : steps / 2) % period);
			}
			trial_solve(&trial);
			check_batch(&trial);
		}
	}
}

struct watch {
	uint64_t calls, last, total;
	uint64_t stop_at; /* the call that asks to stop; 0: none */
	int fell;         /* `done` went down, or above `total`, or `total` changed */
};

static int watch_progress(void *context, uint64_t done, uint64_t total)
{
	struct watch *watch = context;

	if (done < watch->last || done > total || (watch->calls > 0 && total != watch->total))
		watch->fell = 1;
	watch->calls++;
	watch->last = done;
	watch->total = total;
	return watch->calls == watch->stop_at;
}

TEST(test_progress)
{
	for (int threads = 1; threads <= 3; threads++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 3, .routes = 12, .steps = 200};
		struct watch watch = {0};
		rosa_flips flips = {0};
		int32_t *tau;

		trial.options.threads = threads;
		trial.options.progress = watch_progress;
		trial.options.progress_context = &watch;
		trial_make(&trial);
		tau = test_alloc(trial.routes * trial.steps * sizeof(*tau));
		must(rosa_retrieve(&trial.options, trial.routes, trial.steps, trial.query, trial.key, tau, NULL, NULL,
				   &err));
		assert_true(watch.calls > 0);
		assert_false(watch.fell);
		assert_int_equal(watch.total, trial.routes * trial.steps);
		assert_int_equal(watch.last, watch.total);

		watch = (struct watch){.stop_at = 1};
		must_refuse(rosa_retrieve(&trial.options, trial.routes, trial.steps, trial.query, trial.key, tau, NULL,
					  &flips, &err),
			    ROSA_ECANCELLED);
		assert_int_equal(watch.calls, 1);
		rosa_flips_free(&flips);
	}
}

/* The callback is asked within a route too: one long route stops soon after it is told to. */
TEST(test_stopping_within_a_route)
{
	static const char *const kinds[] = {"uniform", "sorted-deep"};

	for (size_t i = 0; i < COUNT(kinds); i++) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .routes = 1, .steps = 100000};
		struct watch watch = {.stop_at = 3};
		int32_t *tau = test_alloc(trial.steps * sizeof(*tau));

		trial.kind = stream_kind(kinds[i]);
		trial.options.progress = watch_progress;
		trial.options.progress_context = &watch;
		trial_make(&trial);
		must_refuse(
		    rosa_retrieve(&trial.options, 1, trial.steps, trial.query, trial.key, tau, NULL, NULL, &err),
		    ROSA_ECANCELLED);
		assert_int_equal(watch.calls, 3);
		assert_false(watch.fell);
		assert_in_range(watch.last, 1, trial.steps / 4);
		/* and without being stopped it ends as before */
		watch = (struct watch){0};
		must(rosa_retrieve(&trial.options, 1, trial.steps, trial.query, trial.key, tau, NULL, NULL, &err));
		assert_true(watch.calls > 10);
		assert_false(watch.fell);
		assert_int_equal(watch.last, trial.steps);
	}
}
