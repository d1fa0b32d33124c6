/*
 * Places of a text that grows, and what a layer gathers there, against plain loops: the chain by its definition, the
 * bits and the weights place by place; copies and saved images continue as the original does.
 */
#include "rosa/finder.h"
#include "rosa/layer.h"
#include "support_test.h"
#include "support_trial.h"

#define LINKS 4

/* What must be found: [LINKS][routes][steps]. */
struct answer {
	int32_t *tau;
	uint8_t *length;
};

static uint8_t cut(int32_t length)
{
	return (uint8_t)(length < 255 ? length : 255);
}

/* d_1 = tau, d_{i+1} = tau_0(d_i - 1), l_{i+1} = min(l_i, l_0(d_i - 1)). */
static struct answer answer_make(const struct trial *delayed, const struct trial *plain)
{
	const size_t cells = plain->routes * plain->steps, steps = plain->steps;
	struct answer answer = {test_alloc(LINKS * cells * sizeof(int32_t)), test_alloc(LINKS * cells)};

	for (size_t i = 0; i < cells; i++) {
		answer.tau[i] = delayed->tau[i];
		answer.length[i] = cut(delayed->length[i]);
		for (size_t link = 1; link < LINKS; link++) {
			const size_t at = link * cells + i;
			const int32_t d = answer.tau[at - cells];
			const size_t before = i / steps * steps + (size_t)(d - 1);

			answer.tau[at] = d < 1 ? -1 : plain->tau[before];
			answer.length[at] = d < 1 ? 0 : cut(plain->length[before]);
			if (answer.length[at] > answer.length[at - cells])
				answer.length[at] = answer.length[at - cells];
		}
	}
	return answer;
}

static void expect_places(const struct trial *trial, const char *how, const struct answer *want, size_t first,
			  const struct places *got)
{
	const size_t cells = trial->routes * trial->steps;

	for (size_t link = 0; link < got->links; link++)
		for (size_t r = 0; r < got->routes; r++)
			for (size_t t = 0; t < got->steps; t++) {
				const size_t at = (link * got->routes + r) * got->steps + t;
				const size_t from = link * cells + r * trial->steps + first + t;

				if (got->tau[at] != want->tau[from] || got->length[at] != want->length[from])
					fail_msg("%s: %s: link %zu, route %zu, step %zu: place %d of length %d, want "
						 "%d of %d",
						 trial->text, how, link, r, first + t, got->tau[at], got->length[at],
						 want->tau[from], want->length[from]);
			}
}

/* Some steps of all routes. */
static void take_piece(const struct trial *trial, size_t first, size_t count, uint16_t *to)
{
	for (size_t r = 0; r < trial->routes; r++)
		memcpy(to + r * count, trial->key + r * trial->steps + first, count * sizeof(*to));
}

static void find(struct finder *finder, const char *how, const struct trial *trial, const struct answer *want,
		 size_t first, size_t count, const uint16_t *piece, struct places *places)
{
	must(places_reserve(places, finder->links, trial->routes, count, &err));
	must(finder_find(finder, count, piece, piece, (struct past_control){READS_FOUND, 0}, places, &err));
	expect_places(trial, how, want, first, places);
}

/* In pieces; now and then the finder is replaced by its copy, or by what was saved of it. */
static void check_finder(const struct trial *trial, const struct answer *want, size_t links)
{
	uint16_t *piece = test_alloc(trial->routes * trial->steps * sizeof(*piece));
	uint64_t state = trial->seed;
	struct places places = {0};
	struct finder finder;

	must(finder_new(&finder, &trial->options, trial->routes, links, &err));
	for (size_t first = 0, count; first < trial->steps; first += count) {
		const size_t left = trial->steps - first, most = test_random(&state, 2) ? 3 : 2000;
		void *image = NULL;
		size_t size;

		count = 1 + test_random(&state, left < most ? left : most);
		take_piece(trial, first, count, piece);
		if (test_random(&state, 8) == 0) {
			must(finder_save(&finder, &image, &size, &err));
			finder_free(&finder);
			must_refuse(
			    finder_load(&finder, &trial->options, trial->routes, links, first, image, size - 1, &err),
			    ROSA_EFORMAT);
			must_refuse(
			    finder_load(&finder, &trial->options, trial->routes, links, first + 1, image, size, &err),
			    ROSA_EFORMAT);
			must(finder_load(&finder, &trial->options, trial->routes, links, first, image, size, &err));
		}
		find(&finder, "found", trial, want, first, count, piece, &places);
		free(image);
	}
	assert_true(finder_bytes(&finder) > 0);
	finder_free(&finder);
	places_free(&places);
}

/* All at once, as training does it. */
static void check_lookup(const struct trial *trial, const struct answer *want, size_t links)
{
	const struct lookup_shape shape = {1, trial->routes, trial->steps, links, true};
	rosa_options options = trial->options;
	struct places places = {0};
	struct lookup lookup = {0};

	must(rosa_workers_new(2, NULL, &options.workers, &err));
	must(lookup_reserve(&options, &shape, &lookup, &err));
	must(lookup_find(&options, NULL, NULL, trial->key, trial->key, &lookup, &err));
	must(places_reserve(&places, links, trial->routes, trial->steps, &err));
	assert_true(lookup_places(&lookup, 0, &places));
	expect_places(trial, "looked up", want, 0, &places);
	*(uint16_t *)lookup.read = (uint16_t)trial->steps;
	assert_false(lookup_places(&lookup, 0, &places));
	places_free(&places);
	lookup_free(&options, &lookup);
	rosa_workers_free(options.workers);
}

/* With a seed for each sequence, what it draws does not depend on its place in the batch; nor does its chain, which
 * goes on from an explored place through what was found, not through what was explored. */
TEST(test_seeds)
{
	enum { ROUTES = 2, STEPS = 200, CELLS = ROUTES * STEPS };
	static uint16_t symbols[2 * CELLS];
	const uint64_t seeds[2][2] = {{5, 9}, {9, 5}};
	const struct lookup_shape shape = {2, ROUTES, STEPS, 2, true};
	rosa_options options = ROSA_OPTIONS_INIT;
	rosa_learning learning = ROSA_LEARNING_INIT;
	struct lookup lookup[3];
	uint64_t turn = 3;

	memset(lookup, 0, sizeof(lookup));
	options.bits = 3;
	learning.explore = 0.5f;
	must(rosa_workers_new(2, NULL, &options.workers, &err));
	for (size_t i = 0; i < CELLS; i++)
		symbols[i] = symbols[CELLS + i] = (uint16_t)test_random(&turn, 8);
	for (int i = 0; i < 3; i++) {
		must(lookup_reserve(&options, &shape, &lookup[i], &err));
		must(lookup_find(&options, i < 2 ? &learning : NULL, i < 2 ? seeds[i] : NULL, symbols, symbols,
				 &lookup[i], &err));
	}
	for (size_t link = 0; link < 2; link++) {
		const uint16_t *one = (uint16_t *)lookup[0].read + 2 * link * CELLS,
			       *two = (uint16_t *)lookup[1].read + 2 * link * CELLS;

		assert_memory_equal(one, two + CELLS, CELLS * 2);
		assert_memory_equal(one + CELLS, two, CELLS * 2);
		assert_memory_not_equal(one, two, CELLS * 2);
	}
	for (size_t i = 0; i < 2 * CELLS; i++) {
		const uint16_t *read = lookup[0].read, *found = lookup[2].read, d = read[i];

		if (d != UINT16_MAX && d)
			assert_int_equal(read[2 * CELLS + i], found[i / STEPS * STEPS + d - 1]);
	}
	for (int i = 0; i < 3; i++)
		lookup_free(&options, &lookup[i]);
	rosa_workers_free(options.workers);
}

/* A trial whose query is its key. */
static void make_equal(struct trial *trial)
{
	trial_make(trial);
	memcpy(trial->query, trial->key, trial->routes * trial->steps * sizeof(*trial->key));
	trial_solve(trial);
}

TEST(test_chain)
{
	static const size_t lengths[] = {1, 60, 300};
	static const uint32_t delays[] = {0, 1, 7, 100};

	for (size_t i = 0, mark = test_mark(); i < test_rounds(30); i++, test_release(mark)) {
		struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = (int)i, .seed = i, .routes = 1 + i % 3};
		struct answer answer;

		trial.steps = lengths[i % COUNT(lengths)];
		trial.options.bits = trial_bits[i % COUNT(trial_bits)];
		trial.options.policy = trial_policies[i / 2 % 3];
		trial.options.fold = i % 5 != 0;
		struct trial late = trial;

		late.options.delay = delays[i % COUNT(delays)];
		make_equal(&trial);
		make_equal(&late);
		answer = answer_make(&late, &trial);
		check_finder(&late, &answer, LINKS);
		check_finder(&late, &answer, 1);
		check_lookup(&late, &answer, LINKS);
	}
}

/* Kept places cross the border of a block. */
TEST(test_blocks)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = 1, .seed = 5, .routes = 2, .steps = 9000};
	struct answer answer;

	trial.options.bits = 4;
	trial_make(&trial);
	memcpy(trial.query, trial.key, trial.routes * trial.steps * sizeof(*trial.key));
	trial.tau = test_alloc(trial.routes * trial.steps * sizeof(*trial.tau));
	trial.length = test_alloc(trial.routes * trial.steps * sizeof(*trial.length));
	must(rosa_retrieve(&trial.options, trial.routes, trial.steps, trial.query, trial.key, trial.tau, trial.length,
			   NULL, &err));
	answer = answer_make(&trial, &trial);
	check_finder(&trial, &answer, LINKS);
}

TEST(test_controls)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .kind = 2, .seed = 3, .routes = 2, .steps = 200};
	struct places found = {0}, random = {0}, again = {0}, nothing = {0};
	struct places *all[] = {&found, &random, &again, &nothing};
	static const enum past_reads reads[] = {READS_FOUND, READS_RANDOM, READS_RANDOM, READS_NOTHING};
	size_t moved = 0;

	trial.options.bits = 2;
	make_equal(&trial);
	for (size_t i = 0; i < 4; i++) {
		struct finder finder;

		must(finder_new(&finder, &trial.options, 2, LINKS, &err));
		must(places_reserve(all[i], LINKS, 2, trial.steps, &err));
		must(finder_find(&finder, trial.steps, trial.key, trial.key, (struct past_control){reads[i], 9}, all[i],
				 &err));
		finder_free(&finder);
	}
	for (size_t i = 0; i < LINKS * 2 * trial.steps; i++) {
		const int32_t t = (int32_t)(i % trial.steps);

		assert_int_equal(random.tau[i] < 0, found.tau[i] < 0);
		assert_true(random.tau[i] < t && random.length[i] == found.length[i]);
		assert_int_equal(random.tau[i], again.tau[i]);
		assert_true(nothing.tau[i] == -1 && nothing.length[i] == 0);
		moved += random.tau[i] != found.tau[i];
	}
	assert_true(moved > trial.steps);
	for (size_t i = 0; i < 4; i++)
		places_free(all[i]);
}

/* ------------------------------------------------------------------------------------------------------- values -- */

static void check_values(size_t channels, size_t steps)
{
	const size_t words = bit_words(channels), spare = words * 64 - channels;
	uint64_t state = channels, *rows = test_alloc(steps * words * sizeof(*rows));
	char *image = test_alloc(values_image_bytes(channels, steps) + 1);
	struct values values, other;

	for (size_t i = 0; i < steps * words; i++)
		rows[i] = test_random(&state, UINT64_MAX) >> (i % words == words - 1 ? spare : 0);
	values_init(&values, channels);
	for (size_t first = 0, count; first < steps; first += count) {
		count = 1 + test_random(&state, steps - first);
		must(values_append(&values, count, rows + first * words, &err));
	}
	assert_true(values_bytes(&values) >= values_image_bytes(channels, steps));
	/* the image is not aligned */
	values_save(&values, image + 1);
	must(values_load(&other, channels, steps, image + 1, &err));
	for (int loaded = 0; loaded < 2; loaded++) {
		const struct value_rows kept = values_rows(loaded ? &other : &values);

		for (size_t t = 0; t < steps; t++)
			assert_memory_equal(value_row(&kept, t), rows + t * words, words * sizeof(*rows));
	}
	values_free(&other);
	image[values_image_bytes(channels, steps)] = (char)0x80;
	expect_status("values_load", values_load(&other, channels, steps, image + 1, &err),
		      spare ? ROSA_EFORMAT : ROSA_OK, &err);
	values_free(&other);
	values_free(&values);
}

TEST(test_values)
{
	check_values(48, 10);
	check_values(64, 5000);
	check_values(130, 9000);
}

/* ------------------------------------------------------------------------------------------------------- gather -- */

static void check_gather(size_t channels, size_t steps, size_t sources, const size_t *source_routes,
			 const size_t *source_links, bool gain)
{
	const size_t words = bit_words(channels), spare = words * 64 - channels, past = 2 * steps;
	uint64_t state = channels + steps, *value = test_alloc(past * words * sizeof(*value));
	const uint64_t *const blocks[] = {value};
	const struct value_rows rows = {blocks, VALUES_WHOLE, words};
	struct places places[3] = {{0}};
	const struct places *const given[] = {&places[0], &places[1], &places[2]};
	size_t routes[16], links = 0, row = 0;
	struct rosa_weights weights = {.scale = 0.7f, .routes = routes};
	rosa_workers *workers;
	struct rosa_setup setup = {.channels = channels, .options = ROSA_OPTIONS_INIT};
	struct rosa_room room;
	struct reads reads;
	float *gains;

	must(rosa_workers_new(2, NULL, &workers, &err));
	setup.options.workers = workers;
	for (size_t i = 0; i < past * words; i++)
		value[i] = test_random(&state, UINT64_MAX) >> (i % words == words - 1 ? spare : 0);
	for (size_t s = 0; s < sources; s++) {
		must(places_reserve(&places[s], source_links[s], source_routes[s], steps, &err));
		for (size_t i = 0; i < source_links[s] * source_routes[s] * steps; i++) {
			places[s].tau[i] = (int32_t)test_random(&state, past + 1) - 1;
			places[s].length[i] = (uint8_t)(places[s].tau[i] < 0     ? 0
							: test_random(&state, 2) ? test_random(&state, 12)
										 : 255);
		}
		for (size_t i = 0; i < source_links[s]; i++) {
			routes[links++] = source_routes[s];
			row += source_routes[s];
		}
	}
	weights.links = links;
	gains = test_alloc(row * ROSA_GAINS * sizeof(*gains));
	for (size_t i = 0; i < row * ROSA_GAINS; i++)
		gains[i] = (float)(1 + test_random(&state, 1000)) / 500;
	weights.gain = gain ? gains : NULL;
	assert_int_equal(layer_room_bits(&setup, &weights, steps), links * steps * words);
	assert_int_equal(layer_room_weights(&weights, steps), row * steps);
	room = (struct rosa_room){test_alloc(links * steps * words * sizeof(uint64_t)),
				  test_alloc(row * steps * sizeof(float))};
	reads = layer_gather(&setup, &weights, sources, given, &rows, &room);
	assert_int_equal(reads.links, links);
	row = links = 0;
	for (size_t s = 0; s < sources; s++)
		for (size_t i = 0; i < source_links[s]; i++, links++, row += source_routes[s])
			for (size_t t = 0; t < steps; t++)
				for (size_t c = 0; c < channels; c++) {
					const size_t r = c / (channels / source_routes[s]);
					const size_t at = (i * source_routes[s] + r) * steps + t;
					const int32_t tau = places[s].tau[at];
					const size_t l = places[s].length[at] < 9 ? places[s].length[at] : 9;
					const uint64_t bit = reads.bits[(links * steps + t) * words + c / 64] >> c % 64;

					assert_true(
					    reads.weight[(row + r) * steps + t] ==
					    (tau < 0 ? 0 : 0.7f * (gain ? gains[(row + r) * ROSA_GAINS + l] : 1)));
					assert_true((bit & 1) ==
						    (tau < 0 ? 0 : value[(size_t)tau * words + c / 64] >> c % 64 & 1));
				}
	for (size_t s = 0; s < sources; s++)
		places_free(&places[s]);
	rosa_workers_free(workers);
}

TEST(test_gather)
{
	check_gather(48, 1, 1, (const size_t[]){3}, (const size_t[]){1}, false);
	check_gather(30, 70, 1, (const size_t[]){10}, (const size_t[]){1}, true);
	check_gather(130, 20, 2, (const size_t[]){1, 26}, (const size_t[]){4, 1}, true);
	check_gather(576, 300, 3, (const size_t[]){1, 36, 36}, (const size_t[]){4, 2, 1}, true);
}
