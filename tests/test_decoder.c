/*
 * The decoder: against the same equations written out plainly, and against itself.
 *
 * Itself, because a text may be read in chunks, in pieces, one token at a time, beside other texts, on any number of
 * threads, or by a sequence that was saved and loaded half-way; and each of these has to give the same bits.
 */
#include "support_decoder.h"
#include "support_test.h"

#include "base/checksum.h"
#include "base/draw.h"
#include "base/status.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Everything of a run, opened from files in a folder that is gone afterwards. */
struct bench {
	char folder[64], model[128];
	struct checkpoint checkpoint;
	struct adapter adapter;
	bool adapted;
	struct decoder_options options;
	rosa_workers *workers;
	struct backend *backend;
	decoder *decoder;
};

static void start(struct bench *b, size_t chunk, int threads)
{
	b->options.chunk = chunk;
	must(rosa_workers_new(threads, NULL, &b->workers, &err));
	must(cpu_backend_new(b->workers, &b->backend, &err));
	must(decoder_new(&b->checkpoint, b->adapted ? &b->adapter : NULL, &b->options, b->backend, b->workers,
			 &b->decoder, &err));
}

static void stop(struct bench *b)
{
	decoder_free(b->decoder);
	cpu_backend_free(b->backend);
	rosa_workers_free(b->workers);
	b->decoder = NULL;
}

static void open_bench(struct bench *b, const struct tiny_model *model, const struct tiny_adapter *adapter)
{
	char name[192];

	memset(b, 0, sizeof(*b));
	snprintf(b->folder, sizeof(b->folder), "decoder-test-XXXXXX");
	assert_non_null(mkdtemp(b->folder));
	snprintf(b->model, sizeof(b->model), "%s/model.gguf", b->folder);
	tiny_model_save(model, b->model);
	must(checkpoint_open(b->model, &b->checkpoint, &err));
	if (adapter) {
		tiny_adapter_save(model, adapter, b->folder);
		must(adapter_open(b->folder, &b->checkpoint, &b->adapter, &err));
		b->adapted = true;
		b->options.window = b->adapter.options.window;
		b->options.sinks = b->adapter.options.sinks;
		b->options.first_global_layers = b->adapter.options.first_global_layers;
	}
	/* what is open stays readable, and a test that fails leaves nothing behind */
	unlink(b->model);
	snprintf(name, sizeof(name), "%s/adapter_config.json", b->folder);
	unlink(name);
	snprintf(name, sizeof(name), "%s/adapter_model.safetensors", b->folder);
	unlink(name);
	rmdir(b->folder);
}

static void close_bench(struct bench *b)
{
	adapter_close(&b->adapter);
	checkpoint_close(&b->checkpoint);
}

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

/* All logits of a text, from malloc. */
static float *read_text(struct bench *b, const uint32_t *tokens, size_t steps)
{
	float *logits = test_alloc(steps * decoder_vocabulary(b->decoder) * sizeof(*logits));
	sequence *s;

	must(sequence_new(b->decoder, &s, &err));
	read_some(b->decoder, s, tokens, steps, logits);
	assert_int_equal(sequence_steps(s), steps);
	sequence_free(s);
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

	start(b, 32, 2);
	logits = read_text(b, tokens, steps);
	oracle_decoder(&b->checkpoint, b->adapted ? &b->adapter : NULL, &b->options, tokens, steps, expected);
	for (size_t i = 0; i < steps * vocabulary; i++) {
		distance += (logits[i] - expected[i]) * (logits[i] - expected[i]);
		size += expected[i] * expected[i];
	}
	assert_true(size > 1);
	if (!(distance <= tolerance * tolerance * size))
		fail_msg("the logits are off by %g of their size, window %zu", distance / size, b->options.window);
	stop(b);
}

TEST(equals_the_oracle)
{
	const enum format formats[] = {FORMAT_F32,  FORMAT_F16,  FORMAT_BF16, FORMAT_Q8_0,
				       FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1};
	const size_t windows[][2] = {{0, 0}, {1, 0}, {9, 0}, {16, 3}};

	for (int architecture = 0; architecture < ARCHITECTURES; architecture++) {
		for (size_t f = 0; f < COUNT(formats); f++) {
			struct tiny_model model = TINY_MODEL;
			struct bench b;

			model.architecture = (enum architecture)architecture;
			model.format = formats[f];
			model.tied = f % 2;
			open_bench(&b, &model, NULL);
			for (size_t w = 0; w < COUNT(windows); w++) {
				b.options.window = windows[w][0];
				b.options.sinks = windows[w][1];
				b.options.first_global_layers = w == 3;
				compare(&b, 50, 1e-5);
			}
			close_bench(&b);
		}
	}
}

TEST(equals_the_oracle_in_large_blocks)
{
	const enum format formats[] = {FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K};

	for (size_t f = 0; f < COUNT(formats); f++) {
		struct tiny_model model = {LLAMA, formats[f], 2, 256, 4, 2, 64, 512, 40, true, 3};
		struct bench b;

		open_bench(&b, &model, NULL);
		compare(&b, 20, 1e-5);
		close_bench(&b);
	}
}

static const struct tiny_adapter adapters[] = {
    {.bits = 8, .window = 8, .seed = 11},
    {.bits = 4, .fusion = ROSA_PRE, .window = 16, .sinks = 4, .seed = 12},
    {.bits = 16, .window = 5, .sinks = 2, .first_global_layers = 1, .shared = true, .seed = 13},
    {.bits = 1, .fusion = ROSA_PRE, .shared = true, .seed = 14},
    {.bits = 16,
     .window = 8,
     .sinks = 2,
     .seed = 15,
     .source = "tokens",
     .chain = 4,
     .late = true,
     .gain = true,
     .gate = true,
     .units = true},
    {.bits = 8,
     .fusion = ROSA_PRE,
     .window = 8,
     .seed = 16,
     .source = "embeddings",
     .chain = 3,
     .late = true,
     .gain = true,
     .units = true},
    {.bits = 4, .window = 6, .shared = true, .seed = 17, .source = "own", .chain = 2, .late = true, .gate = true},
    {.bits = 8,
     .window = 8,
     .seed = 18,
     .source = "tokens+layer 1+own+embeddings",
     .chain = 2,
     .late = true,
     .gain = true,
     .gate = true,
     .units = true},
    {.bits = 4,
     .fusion = ROSA_PRE,
     .window = 7,
     .first_global_layers = 1,
     .shared = true,
     .seed = 19,
     .source = "layer 1",
     .chain = 3,
     .gain = true},
    {.bits = 4, .window = 0, .seed = 20, .source = "layer 2+tokens", .chain = 1, .late = true, .gate = true},
    /* with a head of tokens seen, of a rank that is no multiple of anything, and of the greatest */
    {.bits = 8, .window = 8, .seed = 23, .source = "tokens", .chain = 2, .late = true, .gain = true, .seen = 5},
    {.bits = 8, .fusion = ROSA_PRE, .seed = 24, .source = "own", .chain = 1, .seen = 64},
    /* delays at and beyond that from which on values are made later, several rows at once */
    {.bits = 8, .window = 16, .seed = 21, .source = "tokens+own", .chain = 4, .late = true, .gain = true},
    {.bits = 8, .fusion = ROSA_PRE, .window = 19, .seed = 22, .source = "tokens", .chain = 2, .late = true},
};

#define ADAPTERS (COUNT(adapters))
#define SEEING   10 /* the first with a head of tokens seen */

TEST(equals_the_oracle_with_an_adapter)
{
	for (size_t i = 0; i < ADAPTERS; i++) {
		struct tiny_model model = TINY_MODEL;
		struct bench b;

		model.architecture = (enum architecture)(i % ARCHITECTURES);
		open_bench(&b, &model, &adapters[i]);
		compare(&b, 120, 1e-5);
		close_bench(&b);
	}
}

/* No layer has an adapter, so that reads are those of the head of tokens seen alone. Ids are of several ranks, and some
 * tokens come more than 8 times. */
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
		struct bench b;

		model.vocabulary = 300;
		model.tied = i % 2;
		model.format = i < 3 ? FORMAT_F32 : FORMAT_Q4_1;
		open_bench(&b, &model, &adapter);
		b.options.reads = reads[i % 3];
		compare(&b, 600, 1e-5);
		close_bench(&b);
	}
}

/* ---------------------------------------------------------------------------------------------------- same bits -- */

#define STEPS ((size_t)140)

static void same_in_pieces(struct bench *b, const uint32_t *tokens, const float *expected, size_t chunk, int threads,
			   size_t piece)
{
	const size_t vocabulary = b->checkpoint.config.vocabulary;
	float *logits = test_alloc(STEPS * vocabulary * sizeof(*logits));
	sequence *s;

	start(b, chunk, threads);
	must(sequence_new(b->decoder, &s, &err));
	for (size_t t = 0; t < STEPS; t += piece)
		read_some(b->decoder, s, tokens + t, STEPS - t < piece ? STEPS - t : piece, logits + t * vocabulary);
	assert_same(expected, logits, STEPS * vocabulary);
	sequence_free(s);
	stop(b);
}

TEST(every_way_to_read_gives_the_same_bits)
{
	const size_t chunks[] = {1, 7, 64, 200};

	for (size_t i = 0; i < ADAPTERS; i++) {
		struct tiny_model model = TINY_MODEL;
		struct bench b;
		uint32_t *tokens;
		float *expected;

		model.architecture = (enum architecture)(i % ARCHITECTURES);
		model.format = i % 2 ? FORMAT_Q4_1 : FORMAT_BF16;
		open_bench(&b, &model, &adapters[i]);
		tokens = random_tokens(STEPS, model.vocabulary, 21);
		start(&b, 256, 1);
		expected = read_text(&b, tokens, STEPS);
		stop(&b);
		for (size_t c = 0; c < 4; c++) {
			same_in_pieces(&b, tokens, expected, chunks[c], 1, STEPS);
			same_in_pieces(&b, tokens, expected, chunks[c], 3, 11);
		}
		same_in_pieces(&b, tokens, expected, 256, 2, 1);
		close_bench(&b);
	}
}

/* Texts of different lengths, read side by side in rounds of different pieces. */
static void read_side_by_side(const struct tiny_adapter *adapter)
{
	enum { TEXTS = 5 };
	struct tiny_model model = TINY_MODEL;
	sequence *sequences[TEXTS];
	uint32_t *tokens[TEXTS];
	float *logits[TEXTS];
	size_t done[TEXTS] = {0};
	struct bench b;

	open_bench(&b, &model, adapter);
	start(&b, 48, 2);
	for (size_t i = 0; i < TEXTS; i++) {
		tokens[i] = random_tokens(STEPS, model.vocabulary, 30 + i);
		logits[i] = test_alloc(STEPS * model.vocabulary * sizeof(float));
		must(sequence_new(b.decoder, &sequences[i], &err));
	}
	for (uint64_t round = 0;; round++) {
		struct piece pieces[TEXTS];
		size_t some = 0;

		for (size_t i = 0; i < TEXTS; i++) {
			const size_t left = STEPS - 10 * i - done[i], wish = (size_t)(draw_long(5, i, round) % 40),
				     take = wish < left ? wish : left;

			pieces[i] = (struct piece){sequences[i], tokens[i] + done[i], take, LOGITS_ALL,
						   logits[i] + done[i] * model.vocabulary};
			done[i] += take;
			some += left;
		}
		if (!some)
			break;
		must(decoder_read(b.decoder, TEXTS, pieces, NULL, NULL, &err));
	}
	for (size_t i = 0; i < TEXTS; i++) {
		float *alone = read_text(&b, tokens[i], STEPS - 10 * i);

		assert_same(alone, logits[i], (STEPS - 10 * i) * model.vocabulary);
		sequence_free(sequences[i]);
	}
	stop(&b);
	close_bench(&b);
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
	struct tiny_model model = TINY_MODEL;
	uint32_t *tokens = random_tokens(STEPS, model.vocabulary, 3);
	float *all, last[50];
	struct bench b;
	struct piece piece = {NULL, tokens, STEPS, LOGITS_LAST, last};

	open_bench(&b, &model, NULL);
	start(&b, 16, 1);
	all = read_text(&b, tokens, STEPS);
	must(sequence_new(b.decoder, &piece.sequence, &err));
	must(decoder_read(b.decoder, 1, &piece, NULL, NULL, &err));
	assert_same(all + (STEPS - 1) * model.vocabulary, last, model.vocabulary);
	sequence_free(piece.sequence);
	stop(&b);
	close_bench(&b);
}

/* ---------------------------------------------------------------------------------------------- saved and loaded -- */

struct image {
	uint8_t *data;
	size_t size, most; /* most: bytes after which writing fails; 0: never */
};

static rosa_status append(void *context, const void *data, size_t size, rosa_error *why)
{
	struct image *image = context;

	if (image->most && image->size + size > image->most)
		return rosa_fail(why, ROSA_EIO, "no room");
	image->data = realloc(image->data, image->size + size + 1);
	assert_non_null(image->data);
	if (size)
		memcpy(image->data + image->size, data, size);
	image->size += size;
	return ROSA_OK;
}

TEST(a_loaded_sequence_goes_on_with_the_same_bits)
{
	const size_t cuts[] = {0, 1, 6, 17, 100};

	for (size_t i = 0; i < ADAPTERS + 1; i++) {
		struct tiny_model model = TINY_MODEL;
		struct bench b;
		uint32_t *tokens = random_tokens(STEPS, model.vocabulary, 40 + i);
		float *expected, *logits = test_alloc(STEPS * model.vocabulary * sizeof(*logits));

		open_bench(&b, &model, i < ADAPTERS ? &adapters[i] : NULL);
		start(&b, 24, 2);
		expected = read_text(&b, tokens, STEPS);
		for (size_t c = 0; c < COUNT(cuts); c++) {
			const size_t cut = cuts[c];
			struct image image = {0};
			sequence *s, *loaded;

			must(sequence_new(b.decoder, &s, &err));
			read_some(b.decoder, s, tokens, cut, logits);
			must(sequence_save(s, append, &image, &err));
			sequence_free(s);
			must(sequence_load(b.decoder, image.data, image.size, &loaded, &err));
			assert_int_equal(sequence_steps(loaded), cut);
			read_some(b.decoder, loaded, tokens + cut, STEPS - cut, logits);
			assert_same(expected + cut * model.vocabulary, logits, (STEPS - cut) * model.vocabulary);
			sequence_free(loaded);
			free(image.data);
		}
		stop(&b);
		close_bench(&b);
	}
}

/* Walks back and forth over a text of which the logits are known: in place, or by a fork that takes over. */
static void walk(struct bench *b, const uint32_t *tokens, const float *expected, size_t steps, uint64_t seed)
{
	const size_t vocabulary = decoder_vocabulary(b->decoder);
	float *logits = test_alloc(steps * vocabulary * sizeof(*logits));
	sequence *s, *other;

	must(sequence_new(b->decoder, &s, &err));
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
			assert_int_equal(sequence_steps(s), now);
			sequence_free(s);
			s = other;
		}
		assert_int_equal(sequence_steps(s), to);
		assert_true(sequence_floor(s) <= to);
	}
	sequence_free(s);
}

TEST(going_back_gives_the_same_bits)
{
	const size_t windows[][2] = {{0, 0}, {1, 0}, {9, 3}, {100, 0}}, steps = 500;
	struct tiny_model model = TINY_MODEL;
	uint32_t *tokens = random_tokens(steps, model.vocabulary, 5);

	for (size_t i = 0; i < COUNT(windows) + COUNT(adapters); i++) {
		const struct tiny_adapter *adapter = i < COUNT(windows) ? NULL : &adapters[i - COUNT(windows)];
		struct bench b;

		open_bench(&b, &model, adapter);
		if (!adapter) {
			b.options.window = windows[i][0];
			b.options.sinks = windows[i][1];
		}
		start(&b, 16, 1);
		float *expected = read_text(&b, tokens, steps);

		for (uint64_t seed = 0; seed < 3; seed++)
			walk(&b, tokens, expected, steps, 100 * i + seed);
		stop(&b);
		close_bench(&b);
	}
}

/* What was taken back leaves nothing behind: another text goes on as if it had been read from the start. */
TEST(another_end_gives_the_same_bits)
{
	struct tiny_model model = TINY_MODEL;

	for (size_t i = SEEING; i < SEEING + 2; i++) {
		uint32_t *tokens = random_tokens(STEPS, model.vocabulary, 60),
			 *other = test_alloc(STEPS * sizeof(*other));
		float *logits = test_alloc(STEPS * model.vocabulary * sizeof(*logits)), *expected;
		sequence *s, *forked;
		struct bench b;

		open_bench(&b, &model, &adapters[i]);
		start(&b, 32, 2);
		must(sequence_new(b.decoder, &s, &err));
		read_some(b.decoder, s, tokens, 100, logits);
		const size_t floor = sequence_floor(s);

		assert_true(floor < 100 - 8 - 4); /* tokens that were counted go */
		for (size_t t = 0; t < STEPS; t++)
			other[t] = t < floor ? tokens[t] : (tokens[t] + 1) % (uint32_t)model.vocabulary;
		expected = read_text(&b, other, STEPS);
		must(sequence_fork(s, floor, &forked, &err));
		must(sequence_rewind(s, floor, &err));
		read_some(b.decoder, s, other + floor, STEPS - floor, logits);
		assert_same(expected + floor * model.vocabulary, logits, (STEPS - floor) * model.vocabulary);
		read_some(b.decoder, forked, other + floor, STEPS - floor, logits);
		assert_same(expected + floor * model.vocabulary, logits, (STEPS - floor) * model.vocabulary);
		sequence_free(s);
		sequence_free(forked);
		stop(&b);
		close_bench(&b);
	}
}

static void refuse_load(decoder *d, const uint8_t *data, size_t size, const char *word)
{
	sequence *s;

	assert_int_equal(sequence_load(d, data, size, &s, &err), ROSA_EFORMAT);
	assert_null(s);
	must_say(word);
}

static struct image saved(struct bench *b, size_t steps)
{
	uint32_t *tokens = random_tokens(steps, b->checkpoint.config.vocabulary, 50);
	float *logits = test_alloc(steps * b->checkpoint.config.vocabulary * sizeof(*logits));
	struct image image = {0};
	sequence *s;

	must(sequence_new(b->decoder, &s, &err));
	read_some(b->decoder, s, tokens, steps, logits);
	must(sequence_save(s, append, &image, &err));
	sequence_free(s);
	return image;
}

static void damage(const struct tiny_adapter *adapter)
{
	struct tiny_model model = TINY_MODEL;
	struct bench b;
	struct image image;

	open_bench(&b, &model, adapter);
	start(&b, 16, 1);
	image = saved(&b, 20);
	for (size_t size = 0; size < image.size; size += 1 + size / 7)
		refuse_load(b.decoder, image.data, size, "");
	for (size_t at = 0; at < image.size; at += 1 + at / 9) {
		image.data[at] ^= 0x10;
		refuse_load(b.decoder, image.data, image.size, "");
		image.data[at] ^= 0x10;
	}
	/* even where the checksum is right, nothing in it is believed */
	for (size_t at = 64; at + 16 <= image.size; at += 8) {
		uint64_t old, bad = UINT64_C(0x7fffffffffff0001), sum;
		sequence *s;

		memcpy(&old, image.data + at, sizeof(old));
		memcpy(image.data + at, &bad, sizeof(bad));
		sum = checksum_of(image.data, image.size - 8);
		memcpy(image.data + image.size - 8, &sum, sizeof(sum));
		if (sequence_load(b.decoder, image.data, image.size, &s, NULL) == ROSA_OK) { /* another number */
			const uint32_t tokens[] = {1, 2, 3};
			float logits[3 * 50];

			read_some(b.decoder, s, tokens, 3, logits); /* what was loaded can be read on from */
		}
		sequence_free(s);
		memcpy(image.data + at, &old, sizeof(old));
	}
	stop(&b);
	close_bench(&b);
	free(image.data);
}

TEST(damaged_sequences_are_refused)
{
	damage(&adapters[0]);
	damage(&adapters[4]);
	damage(&adapters[7]);
	damage(&adapters[SEEING]);
}

static void put_number(struct image *image, size_t at, uint64_t number)
{
	uint64_t sum;

	memcpy(image->data + at, &number, sizeof(number));
	sum = checksum_of(image->data, image->size - sizeof(sum));
	memcpy(image->data + image->size - sizeof(sum), &sum, sizeof(sum));
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
		struct bench b;
		struct image image;
		struct rlimit limit;
		uint64_t kept;

		open_bench(&b, &model, NULL);
		b.options.window = windows[w];
		b.options.sinks = windows[w] ? 2 : 0;
		start(&b, 16, 1);
		image = saved(&b, 20);
		memcpy(&kept, image.data + KEPT_AT, sizeof(kept));
		assert_int_equal(kept, windows[w] ? 9 : 20);
		limit = limit_memory();
		for (size_t i = 0; i < COUNT(steps); i++) {
			/* beyond the window any number of steps keeps the same positions */
			if (windows[w] && steps[i] > 8)
				continue;
			put_number(&image, STEPS_AT, steps[i]);
			refuse_load(b.decoder, image.data, image.size, "cut short");
		}
		put_number(&image, STEPS_AT, 20);
		for (uint64_t other = 0; other <= 2 * kept; other++) {
			put_number(&image, KEPT_AT, other);
			if (other != kept)
				refuse_load(b.decoder, image.data, image.size, "cut short");
		}
		assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
		stop(&b);
		close_bench(&b);
		free(image.data);
	}
}

/* Beyond the window the adapter alone knows how many steps there were: its values and its finders. */
TEST(adapters_count_the_steps_too)
{
	static const uint64_t steps[] = {19, 21, 1000, 1 << 20, ROSA_MAX_STEPS, UINT64_C(1) << 31};
	struct tiny_model model = TINY_MODEL;

	for (size_t a = 0; a < ADAPTERS; a++) {
		struct bench b;
		struct image image;
		struct rlimit limit;

		open_bench(&b, &model, &adapters[a]);
		start(&b, 16, 1);
		image = saved(&b, 20);
		limit = limit_memory();
		for (size_t i = 0; i < COUNT(steps); i++) {
			put_number(&image, STEPS_AT, steps[i]);
			refuse_load(b.decoder, image.data, image.size, "");
		}
		assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
		stop(&b);
		close_bench(&b);
		free(image.data);
	}
}

TEST(sequences_of_others_are_refused)
{
	struct tiny_model model = TINY_MODEL, other = TINY_MODEL;
	struct bench b, c;
	struct image image;

	other.seed = 2;
	open_bench(&b, &model, NULL);
	b.options.window = 8;
	start(&b, 16, 1);
	image = saved(&b, 20);
	stop(&b);
	b.options.window = 9;
	start(&b, 16, 1);
	refuse_load(b.decoder, image.data, image.size, "window 8");
	stop(&b);
	open_bench(&c, &other, NULL);
	c.options.window = 8;
	start(&c, 16, 1);
	refuse_load(c.decoder, image.data, image.size, "another model");
	stop(&c);
	close_bench(&c);
	open_bench(&c, &model, &adapters[0]);
	start(&c, 16, 1);
	refuse_load(c.decoder, image.data, image.size, "without an adapter");
	stop(&c);
	close_bench(&c);
	close_bench(&b);
	free(image.data);
}

TEST(a_failed_write_is_reported)
{
	struct tiny_model model = TINY_MODEL;
	struct bench b;
	struct image full = {0};
	sequence *s;

	open_bench(&b, &model, &adapters[0]);
	start(&b, 16, 1);
	must(sequence_new(b.decoder, &s, &err));
	must(sequence_save(s, append, &full, &err));
	for (size_t most = 1, whole = full.size; most < whole; most += 1 + whole / 30) {
		full.size = 0;
		full.most = most;
		assert_int_equal(sequence_save(s, append, &full, &err), ROSA_EIO);
	}
	free(full.data);
	sequence_free(s);
	stop(&b);
	close_bench(&b);
}

/* -------------------------------------------------------------------------------------------------------- misuse -- */

static int stop_after(void *context, uint64_t done, uint64_t total)
{
	(void)total;
	return done >= *(uint64_t *)context;
}

TEST(reading_can_be_cancelled_and_resumed)
{
	struct tiny_model model = TINY_MODEL;
	uint32_t *tokens = random_tokens(STEPS, model.vocabulary, 60);
	float *expected, last[50];
	uint64_t most = 40;
	struct bench b;
	struct piece piece = {NULL, tokens, STEPS, LOGITS_LAST, last};

	open_bench(&b, &model, &adapters[0]);
	start(&b, 16, 1);
	expected = read_text(&b, tokens, STEPS);
	must(sequence_new(b.decoder, &piece.sequence, &err));
	assert_int_equal(decoder_read(b.decoder, 1, &piece, stop_after, &most, &err), ROSA_ECANCELLED);
	const size_t read = sequence_steps(piece.sequence);

	assert_int_equal(read, 48);
	piece.tokens += read;
	piece.count -= read;
	must(decoder_read(b.decoder, 1, &piece, NULL, NULL, &err));
	assert_same(expected + (STEPS - 1) * model.vocabulary, last, model.vocabulary);
	sequence_free(piece.sequence);
	stop(&b);
	close_bench(&b);
}

TEST(what_cannot_be_read_is_refused)
{
	struct tiny_model model = TINY_MODEL;
	uint32_t tokens[3] = {1, 50, 2};
	struct bench b;
	struct piece pieces[2] = {{NULL, tokens, 3, LOGITS_NONE, NULL}, {NULL, tokens, 1, LOGITS_NONE, NULL}};
	struct decoder_options wrong[] = {
	    {.sinks = 4}, {.window = 8, .first_global_layers = 4}, {.window = 8, .chunk = (size_t)1 << 40}};
	decoder *none;

	open_bench(&b, &model, NULL);
	start(&b, 16, 1);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(decoder_new(&b.checkpoint, NULL, &wrong[i], b.backend, b.workers, &none, &err),
				 ROSA_EINVAL);
		assert_null(none);
	}
	must(sequence_new(b.decoder, &pieces[0].sequence, &err));
	must_fail(decoder_read(b.decoder, 1, pieces, NULL, NULL, &err), ROSA_EINVAL, "token 50 at place 1");
	assert_int_equal(sequence_steps(pieces[0].sequence), 0);
	pieces[0].count = 1;
	pieces[1].sequence = pieces[0].sequence;
	assert_int_equal(decoder_read(b.decoder, 2, pieces, NULL, NULL, &err), ROSA_EINVAL);
	sequence_free(pieces[0].sequence);
	stop(&b);
	close_bench(&b);
}

/* A delay that is a number does not follow a window that is asked for. */
TEST(windows_beyond_the_delay_are_refused)
{
	struct tiny_model model = TINY_MODEL;
	struct bench b;
	decoder *none;

	open_bench(&b, &model, &adapters[4]);
	b.adapter.options.delay = b.options.window;
	start(&b, 16, 1);
	b.options.window++;
	must_fail(decoder_new(&b.checkpoint, &b.adapter, &b.options, b.backend, b.workers, &none, &err), ROSA_EINVAL,
		  "delay is 8, and attention with a window of 9");
	assert_null(none);
	stop(&b);
	close_bench(&b);
}

TEST(memory_stays_where_it_is_said_to_stay)
{
	struct tiny_model model = TINY_MODEL;
	uint32_t *tokens = random_tokens(4000, model.vocabulary, 70);
	struct bench b;
	struct piece piece = {NULL, tokens, 1000, LOGITS_NONE, NULL};
	struct sequence_memory early, late;

	open_bench(&b, &model, &adapters[0]);
	start(&b, 64, 2);
	must(sequence_new(b.decoder, &piece.sequence, &err));
	must(decoder_read(b.decoder, 1, &piece, NULL, NULL, &err));
	early = sequence_memory(piece.sequence);
	piece.tokens += 1000;
	piece.count = 3000;
	must(decoder_read(b.decoder, 1, &piece, NULL, NULL, &err));
	late = sequence_memory(piece.sequence);
	assert_true(early.attention > 0 && early.attention == late.attention);
	assert_true(late.retrieval > early.retrieval);
	sequence_free(piece.sequence);
	stop(&b);
	close_bench(&b);
}
