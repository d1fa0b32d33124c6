/*
 * The decoder: against the same equations written out plainly, and against itself.
 *
 * Itself, because a text may be read in chunks, in pieces, one token at a time, beside other texts, on any number of
 * threads, or by a sequence that was saved and loaded half-way; and each of these has to give the same bits.
 */
#include "support_decoder.h"
#include "support_test.h"
#include "support_trial.h"
#include "support_weights.h"

#include "base/checksum.h"
#include "base/draw.h"
#include "base/status.h"

#include <sys/resource.h>

#define VOCABULARY ((size_t)50) /* of TINY_MODEL */

TEST_CLOSER(close_sequence, sequence_free)

static uint32_t *random_tokens(size_t count, size_t vocabulary, uint64_t seed)
{
	uint32_t *tokens = test_alloc(count * sizeof(*tokens));

	for (size_t i = 0; i < count; i++) { /* with stretches that were there before, for long matches */
		const bool again = i >= 37 && draw_long(seed, 1, i) % 4;

		tokens[i] = again ? tokens[i - 37] : (uint32_t)(draw_long(seed, 0, i) % vocabulary);
	}
	return tokens;
}

static void read_some(decoder *d, sequence *s, const uint32_t *tokens, size_t count, float *logits)
{
	struct piece piece = {s, tokens, count, LOGITS_ALL, logits};

	must(decoder_read(d, 1, &piece, NULL, NULL, &err));
}

/* Room for the logits of a text. */
static float *new_logits(const struct bench *b, size_t steps)
{
	return test_alloc(steps * b->checkpoint.config.vocabulary * sizeof(float));
}

static float *read_text(struct bench *b, const uint32_t *tokens, size_t steps)
{
	float *logits = new_logits(b, steps);
	sequence *s = bench_sequence(b);

	read_some(b->decoder, s, tokens, steps, logits);
	assert_int_equal(sequence_steps(s), steps);
	return logits;
}

static void assert_same(const float *a, const float *b, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (memcmp(&a[i], &b[i], sizeof(*a)) != 0)
			fail_msg("number %zu is %.9g here and %.9g there", i, a[i], b[i]);
	}
}

/* ------------------------------------------------------------------------------------------------------- oracle -- */

static void compare(struct bench *b, size_t steps, double tolerance)
{
	const size_t vocabulary = b->checkpoint.config.vocabulary;
	uint32_t *tokens = random_tokens(steps, vocabulary, 7);
	double *expected = test_alloc(steps * vocabulary * sizeof(*expected)), distance = 0, size = 0;
	float *logits;

	bench_start(b, 32, 2);
	logits = read_text(b, tokens, steps);
	oracle_decoder(&b->checkpoint, b->adapted ? &b->adapter : NULL, &b->options, tokens, steps, expected);
	for (size_t i = 0; i < steps * vocabulary; i++) {
		distance += (logits[i] - expected[i]) * (logits[i] - expected[i]);
		size += expected[i] * expected[i];
	}
	assert_true(size > 1);
	if (!(distance <= tolerance * tolerance * size))
		fail_msg("the logits are off by %g of their size, window %zu", distance / size, b->options.window);
}

TEST(equals_the_oracle)
{
	const enum format formats[] = {FORMAT_F32,  FORMAT_F16,  FORMAT_BF16, FORMAT_Q8_0,
				       FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1};
	const size_t windows[][2] = {{0, 0}, {1, 0}, {9, 0}, {16, 3}};

	for (size_t i = 0, mark = test_mark(); i < ARCHITECTURES * COUNT(formats); i++, test_release(mark)) {
		struct tiny_model model = TINY_MODEL;

		model.architecture = (enum architecture)(i / COUNT(formats));
		model.format = formats[i % COUNT(formats)];
		model.tied = i % 2;
		struct bench *b = bench_open(&model, NULL);

		for (size_t w = 0; w < COUNT(windows); w++) {
			b->options.window = windows[w][0];
			b->options.sinks = windows[w][1];
			b->options.first_global_layers = w == 3;
			compare(b, 50, 1e-5);
		}
	}
}

TEST(equals_the_oracle_in_large_blocks)
{
	const enum format formats[] = {FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K};

	for (size_t f = 0; f < COUNT(formats); f++) {
		const struct tiny_model model = {LLAMA, formats[f], 2, 256, 4, 2, 64, 512, 40, true, 3};

		compare(bench_open(&model, NULL), 20, 2e-4); /* products of activations rounded to 16 bits, fixed.h */
	}
}

static const struct tiny_adapter adapters[] = {
    {.bits = 8, .window = 8, .seed = 11},
    {.bits = 4, .fusion = ROSA_PRE, .window = 16, .sinks = 4, .seed = 12},
    {.bits = 16, .window = 5, .sinks = 2, .first_global_layers = 1, .shared = true, .seed = 13},
    {.bits = 1, .fusion = ROSA_PRE, .shared = true, .seed = 14},
    LIST(.bits = 16, .window = 8, .sinks = 2, .seed = 15, .source = "tokens", .chain = 4, .late = true, .gain = true,
	 .gate = true, .units = true),
    LIST(.bits = 8, .fusion = ROSA_PRE, .window = 8, .seed = 16, .source = "embeddings", .chain = 3, .late = true,
	 .gain = true, .units = true),
    {.bits = 4, .window = 6, .shared = true, .seed = 17, .source = "own", .chain = 2, .late = true, .gate = true},
    LIST(.bits = 8, .window = 8, .seed = 18, .source = "tokens+layer 1+own+embeddings", .chain = 2, .late = true,
	 .gain = true, .gate = true, .units = true),
    LIST(.bits = 4, .fusion = ROSA_PRE, .window = 7, .first_global_layers = 1, .shared = true, .seed = 19,
	 .source = "layer 1", .chain = 3, .gain = true),
    {.bits = 4, .window = 0, .seed = 20, .source = "layer 2+tokens", .chain = 1, .late = true, .gate = true},
    /* with a seen-token head, of a rank that is no multiple of anything, and of the greatest */
    {.bits = 8, .window = 8, .seed = 23, .source = "tokens", .chain = 2, .late = true, .gain = true, .seen = 5},
    {.bits = 8, .fusion = ROSA_PRE, .seed = 24, .source = "own", .chain = 1, .seen = 64},
    /* delays at and beyond that from which on values are made later, several rows at once */
    {.bits = 8, .window = 16, .seed = 21, .source = "tokens+own", .chain = 4, .late = true, .gain = true},
    {.bits = 8, .fusion = ROSA_PRE, .window = 19, .seed = 22, .source = "tokens", .chain = 2, .late = true},
};

#define ADAPTERS (COUNT(adapters))
#define SEEING   10 /* the first with a seen-token head */

TEST(equals_the_oracle_with_an_adapter)
{
	for (size_t i = 0; i < ADAPTERS; i++) {
		struct tiny_model model = TINY_MODEL;

		model.architecture = (enum architecture)(i % ARCHITECTURES);
		compare(bench_open(&model, &adapters[i]), 120, 1e-5);
	}
}

/* No layer has an adapter, so that reads are those of the seen-token head alone. Ids are of several ranks, some
 * tokens come more than 8 times, and the keys are more than a block. */
TEST(a_head_of_tokens_seen_reads_what_it_is_told)
{
	static const enum past_reads reads[] = {READS_FOUND, READS_NOTHING, READS_RANDOM};
	static const size_t windows[] = {9, 0};

	for (size_t i = 0; i < COUNT(reads) * COUNT(windows); i++) {
		struct tiny_model model = TINY_MODEL;
		const struct tiny_adapter adapter = {.bits = 8,
						     .window = windows[i / 3],
						     .first_global_layers = 3,
						     .seed = 30 + i,
						     .source = "tokens",
						     .chain = 1,
						     .late = true,
						     .seen = 7};

		model.vocabulary = 400;
		model.tied = i % 2;
		model.format = i < 3 ? FORMAT_F32 : FORMAT_Q4_1;
		struct bench *b = bench_open(&model, &adapter);

		b->options.reads = reads[i % 3];
		compare(b, 700, 1e-5);
	}
}

/* ---------------------------------------------------------------------------------------------------- same bits -- */

#define STEPS ((size_t)140)

static void same_in_pieces(struct bench *b, const uint32_t *tokens, const float *expected, size_t chunk, int threads,
			   size_t piece)
{
	const size_t vocabulary = b->checkpoint.config.vocabulary;
	float *logits = new_logits(b, STEPS);

	bench_start(b, chunk, threads);
	sequence *s = bench_sequence(b);

	for (size_t t = 0; t < STEPS; t += piece)
		read_some(b->decoder, s, tokens + t, STEPS - t < piece ? STEPS - t : piece, logits + t * vocabulary);
	assert_same(expected, logits, STEPS * vocabulary);
}

TEST(every_way_to_read_gives_the_same_bits)
{
	const size_t chunks[] = {1, 7, 64, 200};

	for (size_t i = 0, mark = test_mark(); i < ADAPTERS; i++, test_release(mark)) {
		struct tiny_model model = TINY_MODEL;

		model.architecture = (enum architecture)(i % ARCHITECTURES);
		model.format = i % 2 ? FORMAT_Q4_1 : FORMAT_BF16;
		struct bench *b = bench_open(&model, &adapters[i]);
		uint32_t *tokens = random_tokens(STEPS, model.vocabulary, 21);

		bench_start(b, 256, 1);
		float *expected = read_text(b, tokens, STEPS);

		for (size_t c = 0; c < 4; c++) {
			same_in_pieces(b, tokens, expected, chunks[c], 1, STEPS);
			same_in_pieces(b, tokens, expected, chunks[c], 3, 11);
		}
		same_in_pieces(b, tokens, expected, 256, 2, 1);
	}
}

/* Texts of different lengths, read side by side in rounds of different pieces. */
static void read_side_by_side(const struct tiny_adapter *adapter)
{
	enum { TEXTS = 5 };
	struct bench *b = bench_tiny(adapter, 48, 2);
	const size_t vocabulary = decoder_vocabulary(b->decoder);
	sequence *sequences[TEXTS];
	uint32_t *tokens[TEXTS];
	float *logits[TEXTS];
	size_t done[TEXTS] = {0};

	for (size_t i = 0; i < TEXTS; i++) {
		tokens[i] = random_tokens(STEPS, vocabulary, 30 + i);
		logits[i] = new_logits(b, STEPS);
		sequences[i] = bench_sequence(b);
	}
	for (uint64_t round = 0;; round++) {
		struct piece pieces[TEXTS];
		size_t some = 0;

		for (size_t i = 0; i < TEXTS; i++) {
			const size_t left = STEPS - 10 * i - done[i], wish = (size_t)(draw_long(5, i, round) % 40),
				     take = wish < left ? wish : left;

			pieces[i] = (struct piece){sequences[i], tokens[i] + done[i], take, LOGITS_ALL,
						   logits[i] + done[i] * vocabulary};
			done[i] += take;
			some += left;
		}
		if (!some)
			break;
		must(decoder_read(b->decoder, TEXTS, pieces, NULL, NULL, &err));
	}
	for (size_t i = 0; i < TEXTS; i++)
		assert_same(read_text(b, tokens[i], STEPS - 10 * i), logits[i], (STEPS - 10 * i) * vocabulary);
}

TEST(batches_give_the_same_bits)
{
	for (size_t i = 0; i < ADAPTERS; i += 4) /* own, tokens, a layer's */
		read_side_by_side(&adapters[i]);
	read_side_by_side(&adapters[7]);
	read_side_by_side(&adapters[SEEING]);
	read_side_by_side(&adapters[ADAPTERS - 2]); /* values made later */
	read_side_by_side(&adapters[ADAPTERS - 1]);
}

TEST(last_logits_are_those_of_the_last_token)
{
	struct bench *b = bench_tiny(NULL, 16, 1);
	uint32_t *tokens = random_tokens(STEPS, VOCABULARY, 3);
	float *all = read_text(b, tokens, STEPS), last[VOCABULARY];
	struct piece piece = {bench_sequence(b), tokens, STEPS, LOGITS_LAST, last};

	must(decoder_read(b->decoder, 1, &piece, NULL, NULL, &err));
	assert_same(all + (STEPS - 1) * VOCABULARY, last, VOCABULARY);
}

/* ---------------------------------------------------------------------------------------------- saved and loaded -- */

static rosa_status append(void *bytes, const void *data, size_t size, rosa_error *why)
{
	bytes_put(bytes, data, size);
	return ROSA_OK;
}

/* A sequence that has read some tokens, as saved. */
static struct bytes saved(struct bench *b, const uint32_t *tokens, size_t steps)
{
	struct bytes image = {0};
	sequence *s = bench_sequence(b);

	read_some(b->decoder, s, tokens, steps, new_logits(b, steps));
	must(sequence_save(s, append, &image, &err));
	return image;
}

TEST(a_loaded_sequence_goes_on_with_the_same_bits)
{
	const size_t cuts[] = {0, 1, 6, 17, 100};

	for (size_t i = 0, mark = test_mark(); i < ADAPTERS + 1; i++, test_release(mark)) {
		struct bench *b = bench_tiny(i < ADAPTERS ? &adapters[i] : NULL, 24, 2);
		uint32_t *tokens = random_tokens(STEPS, VOCABULARY, 40 + i);
		float *expected = read_text(b, tokens, STEPS), *logits = new_logits(b, STEPS);

		for (size_t c = 0; c < COUNT(cuts); c++) {
			const size_t cut = cuts[c];
			const struct bytes image = saved(b, tokens, cut);
			sequence *loaded;

			must(sequence_load(b->decoder, image.data, image.size, &loaded, &err));
			test_later(close_sequence, loaded);
			assert_int_equal(sequence_steps(loaded), cut);
			read_some(b->decoder, loaded, tokens + cut, STEPS - cut, logits);
			assert_same(expected + cut * VOCABULARY, logits, (STEPS - cut) * VOCABULARY);
		}
	}
}

/* Walks back and forth over a text of which the logits are known: in place, or by a fork that takes over. */
static void walk(struct bench *b, const uint32_t *tokens, const float *expected, size_t steps, uint64_t seed)
{
	const size_t vocabulary = decoder_vocabulary(b->decoder);
	float *logits = new_logits(b, steps);
	sequence *s = bench_sequence(b), *other;

	for (uint64_t i = 0; i < 30; i++) {
		const size_t at = sequence_steps(s), more = 1 + draw_long(seed, i, 0) % 150,
			     count = more < steps - at ? more : steps - at;

		if (count)
			read_some(b->decoder, s, tokens + at, count, logits);
		assert_same(logits, expected + at * vocabulary, count * vocabulary);
		const size_t floor = sequence_floor(s), now = at + count,
			     to = floor + draw_long(seed, i, 1) % (now - floor + 1);

		assert_true(b->options.window || floor == 0);
		if (floor)
			must_fail(sequence_fork(s, floor - 1, &other, &err), ROSA_EINVAL, "can go back to");
		must_fail(sequence_rewind(s, now + 1, &err), ROSA_EINVAL, "can go back to");
		if (draw_long(seed, i, 2) % 2) {
			must(sequence_rewind(s, to, &err));
		} else {
			must(sequence_fork(s, to, &other, &err));
			test_later(close_sequence, other);
			assert_int_equal(sequence_steps(s), now);
			s = other;
		}
		assert_int_equal(sequence_steps(s), to);
		assert_true(sequence_floor(s) <= to);
	}
}

TEST(going_back_gives_the_same_bits)
{
	const size_t windows[][2] = {{0, 0}, {1, 0}, {9, 3}, {100, 0}}, steps = 500;
	struct tiny_model model = TINY_MODEL;
	uint32_t *tokens = random_tokens(steps, VOCABULARY, 5);

	for (size_t i = 0, mark = test_mark(); i < COUNT(windows) + ADAPTERS; i++, test_release(mark)) {
		const struct tiny_adapter *adapter = i < COUNT(windows) ? NULL : &adapters[i - COUNT(windows)];
		struct bench *b = bench_open(&model, adapter);

		if (!adapter) {
			b->options.window = windows[i][0];
			b->options.sinks = windows[i][1];
		}
		bench_start(b, 16, 1);
		float *expected = read_text(b, tokens, steps);

		for (uint64_t seed = 0; seed < test_rounds(1); seed++)
			walk(b, tokens, expected, steps, 100 * i + seed);
	}
}

/* The keys of tokens seen are in blocks of 128. Most tokens are new. */
TEST(going_back_over_blocks_of_keys_gives_the_same_bits)
{
	const size_t steps = 600;
	struct tiny_model model = TINY_MODEL;
	struct tiny_adapter adapter = adapters[SEEING];

	model.vocabulary = 1000;
	adapter.window = 0; /* back to any step */
	for (int threads = 1; threads <= 2; threads++) {
		struct bench *b = bench_open(&model, &adapter);
		uint32_t *tokens = test_alloc(steps * sizeof(*tokens));

		for (size_t t = 0; t < steps; t++)
			tokens[t] = (uint32_t)((t % 4 ? t : t / 2) * 7 % model.vocabulary);
		bench_start(b, 64, threads);
		walk(b, tokens, read_text(b, tokens, steps), steps, 700);
	}
}

/* What was taken back leaves nothing behind: another text goes on as if it had been read from the start. */
TEST(another_end_gives_the_same_bits)
{
	for (size_t i = SEEING; i < SEEING + 2; i++) {
		struct bench *b = bench_tiny(&adapters[i], 32, 2);
		uint32_t *tokens = random_tokens(STEPS, VOCABULARY, 60), *other = test_alloc(STEPS * sizeof(*other));
		float *logits = new_logits(b, STEPS), *expected;
		sequence *s = bench_sequence(b), *forked;

		read_some(b->decoder, s, tokens, 100, logits);
		const size_t floor = sequence_floor(s), rest = STEPS - floor;

		assert_true(floor < 100 - 8 - 4); /* tokens that were counted go */
		for (size_t t = 0; t < STEPS; t++)
			other[t] = t < floor ? tokens[t] : (tokens[t] + 1) % (uint32_t)VOCABULARY;
		expected = read_text(b, other, STEPS) + floor * VOCABULARY;
		must(sequence_fork(s, floor, &forked, &err));
		test_later(close_sequence, forked);
		must(sequence_rewind(s, floor, &err));
		for (int fork = 0; fork < 2; fork++) {
			read_some(b->decoder, fork ? forked : s, other + floor, rest, logits);
			assert_same(expected, logits, rest * VOCABULARY);
		}
	}
}

static void refuse_load(const struct bench *b, const struct bytes *image, size_t size, const char *word)
{
	sequence *s;

	must_fail(sequence_load(b->decoder, image->data, size, &s, &err), ROSA_EFORMAT, word);
	assert_null(s);
}

static struct bytes saved_20(struct bench *b)
{
	return saved(b, random_tokens(20, VOCABULARY, 50), 20);
}

/* Another number in an image, and the checksum that goes with it. */
static void put_number(struct bytes *image, size_t at, uint64_t number)
{
	uint64_t sum;

	memcpy(image->data + at, &number, sizeof(number));
	sum = checksum_of(image->data, image->size - sizeof(sum));
	memcpy(image->data + image->size - sizeof(sum), &sum, sizeof(sum));
}

static void damage(const struct tiny_adapter *adapter)
{
	struct bench *b = bench_tiny(adapter, 16, 1);
	struct bytes image = saved_20(b);

	for (size_t size = 0; size < image.size; size += 1 + size / 7)
		refuse_load(b, &image, size, "");
	for (size_t at = 0; at < image.size; at += 1 + at / 9) {
		image.data[at] ^= 0x10;
		refuse_load(b, &image, image.size, "");
		image.data[at] ^= 0x10;
	}
	/* even where the checksum is right, nothing in it is believed */
	for (size_t at = 64; at + 16 <= image.size; at += 8) {
		uint64_t old;
		sequence *s;

		memcpy(&old, image.data + at, sizeof(old));
		put_number(&image, at, UINT64_C(0x7fffffffffff0001));
		if (sequence_load(b->decoder, image.data, image.size, &s, NULL) == ROSA_OK) { /* another number */
			const uint32_t tokens[] = {1, 2, 3};
			float logits[3 * VOCABULARY];

			read_some(b->decoder, s, tokens, 3, logits); /* what was loaded can be read on from */
		}
		sequence_free(s);
		memcpy(image.data + at, &old, sizeof(old));
	}
}

TEST(damaged_sequences_are_refused)
{
	damage(&adapters[0]);
	damage(&adapters[4]);
	damage(&adapters[7]);
	damage(&adapters[SEEING]);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED false
#endif

#define STEPS_AT 56 /* in the header */
#define KEPT_AT  64 /* of the first layer */

/* Memory that loads may take, so little that one which believes a large number fails with ROSA_ENOMEM. Sanitizers need
 * more than that, and find a read beyond the end by themselves. Returns what the limit was. */
static struct rlimit limit_memory(void)
{
	struct rlimit limit, low;

	assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
	low = limit;
	low.rlim_cur = (rlim_t)1 << 30;
	if (!SANITIZED)
		assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
	return limit;
}

/* The numbers of steps and of kept positions contradict each other: refused before anything of that size is read or
 * allocated. */
TEST(counts_must_agree)
{
	static const size_t windows[] = {0, 8};
	static const uint64_t steps[] = {0, 1, 5, 7, 8, 9, 19, 21, 1000, 1 << 20, ROSA_MAX_STEPS, UINT64_C(1) << 31};
	struct tiny_model model = TINY_MODEL;

	for (size_t w = 0; w < 2; w++) {
		struct bench *b = bench_open(&model, NULL);
		struct bytes image;
		struct rlimit limit;
		uint64_t kept;

		b->options.window = windows[w];
		b->options.sinks = windows[w] ? 2 : 0;
		bench_start(b, 16, 1);
		image = saved_20(b);
		memcpy(&kept, image.data + KEPT_AT, sizeof(kept));
		assert_int_equal(kept, windows[w] ? 9 : 20);
		limit = limit_memory();
		for (size_t i = 0; i < COUNT(steps); i++) {
			/* beyond the window any number of steps keeps the same positions */
			if (windows[w] && steps[i] > 8)
				continue;
			put_number(&image, STEPS_AT, steps[i]);
			refuse_load(b, &image, image.size, "cut short");
		}
		put_number(&image, STEPS_AT, 20);
		for (uint64_t other = 0; other <= 2 * kept; other++) {
			put_number(&image, KEPT_AT, other);
			if (other != kept)
				refuse_load(b, &image, image.size, "cut short");
		}
		assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	}
}

/* Beyond the window the adapter alone knows how many steps there were: its values and its finders. */
TEST(adapters_count_the_steps_too)
{
	static const uint64_t steps[] = {19, 21, 1000, 1 << 20, ROSA_MAX_STEPS, UINT64_C(1) << 31};

	for (size_t a = 0; a < ADAPTERS; a++) {
		struct bench *b = bench_tiny(&adapters[a], 16, 1);
		struct bytes image = saved_20(b);
		struct rlimit limit = limit_memory();

		for (size_t i = 0; i < COUNT(steps); i++) {
			put_number(&image, STEPS_AT, steps[i]);
			refuse_load(b, &image, image.size, "");
		}
		assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	}
}

TEST(sequences_of_others_are_refused)
{
	struct tiny_model model = TINY_MODEL, other = TINY_MODEL;
	struct bench *b = bench_open(&model, NULL), *c;
	struct bytes image;

	other.seed = 2;
	b->options.window = 8;
	bench_start(b, 16, 1);
	image = saved_20(b);
	b->options.window = 9;
	bench_start(b, 16, 1);
	refuse_load(b, &image, image.size, "window 8");
	c = bench_open(&other, NULL);
	c->options.window = 8;
	bench_start(c, 16, 1);
	refuse_load(c, &image, image.size, "another model");
	refuse_load(bench_tiny(&adapters[0], 16, 1), &image, image.size, "without an adapter");
}

/* Takes so many bytes; most 0: any number. */
struct disk {
	size_t size, most;
};

static rosa_status fill_disk(void *context, const void *data, size_t size, rosa_error *why)
{
	struct disk *disk = context;

	if (disk->most && disk->size + size > disk->most)
		return rosa_fail(why, ROSA_EIO, "no room");
	disk->size += size;
	return ROSA_OK;
}

TEST(a_failed_write_is_reported)
{
	sequence *s = bench_sequence(bench_tiny(&adapters[0], 16, 1));
	struct disk whole = {0};

	must(sequence_save(s, fill_disk, &whole, &err));
	for (size_t most = 1; most < whole.size; most += 1 + whole.size / 30)
		assert_int_equal(sequence_save(s, fill_disk, &(struct disk){.most = most}, &err), ROSA_EIO);
}

/* -------------------------------------------------------------------------------------------------------- misuse -- */

static int stop_after(void *context, uint64_t done, uint64_t total)
{
	return done >= *(uint64_t *)context;
}

TEST(reading_can_be_cancelled_and_resumed)
{
	struct bench *b = bench_tiny(&adapters[0], 16, 1);
	uint32_t *tokens = random_tokens(STEPS, VOCABULARY, 60);
	float *expected = read_text(b, tokens, STEPS), last[VOCABULARY];
	uint64_t most = 40;
	struct piece piece = {bench_sequence(b), tokens, STEPS, LOGITS_LAST, last};

	assert_int_equal(decoder_read(b->decoder, 1, &piece, stop_after, &most, &err), ROSA_ECANCELLED);
	const size_t read = sequence_steps(piece.sequence);

	assert_int_equal(read, 48);
	piece.tokens += read;
	piece.count -= read;
	must(decoder_read(b->decoder, 1, &piece, NULL, NULL, &err));
	assert_same(expected + (STEPS - 1) * VOCABULARY, last, VOCABULARY);
}

TEST(what_cannot_be_read_is_refused)
{
	const struct decoder_options wrong[] = {
	    {.sinks = 4}, {.window = 8, .first_global_layers = 4}, {.window = 8, .chunk = (size_t)1 << 40}};
	struct bench *b = bench_tiny(NULL, 16, 1);
	sequence *s = bench_sequence(b);
	uint32_t tokens[3] = {1, 50, 2};
	struct piece pieces[2] = {{s, tokens, 3, LOGITS_NONE, NULL}, {s, tokens, 1, LOGITS_NONE, NULL}};
	decoder *none;

	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(decoder_new(&b->checkpoint, NULL, &wrong[i], b->backend, b->workers, &none, &err),
				 ROSA_EINVAL);
		assert_null(none);
	}
	must_fail(decoder_read(b->decoder, 1, pieces, NULL, NULL, &err), ROSA_EINVAL, "token 50 at place 1");
	assert_int_equal(sequence_steps(s), 0);
	pieces[0].count = 1;
	assert_int_equal(decoder_read(b->decoder, 2, pieces, NULL, NULL, &err), ROSA_EINVAL);
}

/* What is not said of attention is the adapter's, or global; sinks are not taken over without a window. */
TEST(attention_is_settled_by_the_adapter)
{
	const struct adapter adapter = {.options = {.window = 8, .sinks = 2, .first_global_layers = 1}};
	const size_t open = SIZE_MAX;
	const struct {
		bool adapted;
		size_t given[3], settled[3];
	} cases[] = {{false, {open, open, open}, {0, 0, 0}}, {false, {9, 3, 1}, {9, 3, 1}},
		     {true, {open, open, open}, {8, 2, 1}},  {true, {0, open, open}, {0, 0, 1}},
		     {true, {9, open, 0}, {9, 2, 0}},        {true, {open, 0, 2}, {8, 0, 2}}};
	struct bench *b = bench_tiny(NULL, 16, 1);

	for (size_t i = 0; i < COUNT(cases); i++) {
		const size_t *given = cases[i].given, *settled = cases[i].settled;
		struct decoder_options options = {
		    .window = given[0], .sinks = given[1], .first_global_layers = given[2]};

		must(decoder_options_settle(&options, &b->checkpoint, cases[i].adapted ? &adapter : NULL, &err));
		assert_int_equal(options.window, settled[0]);
		assert_int_equal(options.sinks, settled[1]);
		assert_int_equal(options.first_global_layers, settled[2]);
	}
	must_fail(decoder_options_settle(&(struct decoder_options){.sinks = 1}, &b->checkpoint, NULL, &err),
		  ROSA_EINVAL, "1 sinks without a window");
}

/* A delay that is a number does not follow a window that is asked for. */
TEST(windows_beyond_the_delay_are_refused)
{
	struct tiny_model model = TINY_MODEL;
	struct bench *b = bench_open(&model, &adapters[4]);
	decoder *none;

	b->adapter.options.delay = b->options.window;
	bench_start(b, 16, 1);
	b->options.window++;
	must_fail(decoder_new(&b->checkpoint, &b->adapter, &b->options, b->backend, b->workers, &none, &err),
		  ROSA_EINVAL, "delay is 8, and attention with a window of 9");
	assert_null(none);
}

TEST(memory_stays_where_it_is_said_to_stay)
{
	struct bench *b = bench_tiny(&adapters[0], 64, 2);
	struct piece piece = {bench_sequence(b), random_tokens(4000, VOCABULARY, 70), 1000, LOGITS_NONE, NULL};
	struct sequence_memory early, late;

	must(decoder_read(b->decoder, 1, &piece, NULL, NULL, &err));
	early = sequence_memory(piece.sequence);
	piece.tokens += 1000;
	piece.count = 3000;
	must(decoder_read(b->decoder, 1, &piece, NULL, NULL, &err));
	late = sequence_memory(piece.sequence);
	assert_true(early.attention > 0 && early.attention == late.attention);
	assert_true(late.retrieval > early.retrieval);
}
