/*
 * Saved states: what is damaged is refused, and what is there is kept.
 *
 * A state is read back after a crash, a full disk or a bad copy, so the test does to a small image what those do: it
 * cuts it at every length, alters every byte in several ways, adds to it, and feeds things that never were one. Each
 * must give ROSA_EFORMAT and leave nothing allocated. Then it alters images and seals them again, as only malice would,
 * to reach the checks behind the checksum. For files, a save that fails halfway is made with a limit on the
 * size of files, which even root is bound by; the older file must come out of it untouched and alone in its folder.
 */
#include "retrieval/engine.h"
#include "support_folder.h"
#include "support_image.h"
#include "support_memory.h"
#include "support_test.h"
#include "support_trial.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const rosa_engine engines[] = {ROSA_ENGINE_CHAINS, ROSA_ENGINE_ORDERED};

TEST_CLOSER(close_stream, rosa_stream_free)

static rosa_stream *small_stream(size_t steps, rosa_engine engine)
{
	struct trial trial = {.options = ROSA_OPTIONS_INIT, .seed = 2, .routes = 2, .steps = steps ? steps : 1};
	rosa_stream *stream = NULL;

	trial.options.bits = 3;
	trial_make(&trial);
	must(rosa_stream_new(&trial.options, trial.routes, &stream, &err));
	test_later(close_stream, stream);
	rosa_stream_set_engine(stream, engine);
	if (steps)
		must(rosa_stream_push(stream, steps, trial.query, trial.key, 0, NULL, NULL, NULL, &err));
	return stream;
}

static unsigned char *image_of(rosa_stream *stream, size_t *size)
{
	unsigned char *image;
	void *data;

	must(rosa_stream_save_memory(stream, &data, size, &err));
	assert_true(*size > 0);
	image = test_alloc(*size);
	memcpy(image, data, *size);
	rosa_stream_free_memory(stream, data);
	return image;
}

static unsigned char *small_image(size_t steps, rosa_engine engine, size_t *size)
{
	return image_of(small_stream(steps, engine), size);
}

/* A stream from an image, which must be good, and what it says of itself. */
static rosa_stream *loaded(const unsigned char *image, size_t size, rosa_stream_info *info)
{
	rosa_stream *stream = NULL;

	must(rosa_stream_load_memory(NULL, image, size, &stream, &err));
	test_later(close_stream, stream);
	*info = (rosa_stream_info){.size = sizeof(*info)};
	must(rosa_stream_describe(stream, info, &err));
	return stream;
}

/* The image is copied to a block of its very size, so that a sanitizer sees the first byte read beyond it. */
static void expect_refused(const char *how, size_t detail, const unsigned char *image, size_t size)
{
	unsigned char *exact = test_alloc(size);
	rosa_options options = ROSA_OPTIONS_INIT;
	struct test_memory memory;
	rosa_stream *stream = NULL;
	rosa_status status;

	test_memory_init(&memory);
	options.allocator = test_memory_allocator(&memory);
	if (size)
		memcpy(exact, image, size);
	status = rosa_stream_load_memory(&options, exact, size, &stream, &err);
	if (status != ROSA_EFORMAT)
		fail_msg("%s (%zu): got %d (%s), want %d", how, detail, (int)status, rosa_status_name(status),
			 (int)ROSA_EFORMAT);
	expect_status(how, status, ROSA_EFORMAT, &err);
	assert_null(stream);
	if (atomic_load(&memory.blocks) != 0)
		fail_msg("%s (%zu): %ld blocks leaked", how, detail, atomic_load(&memory.blocks));
}

TEST(test_cut_short)
{
	for (size_t e = 0; e < COUNT(engines); e++) {
		size_t size;
		unsigned char *image = small_image(40, engines[e], &size);

		for (size_t cut = 0; cut < size; cut++)
			expect_refused("cut at byte", cut, image, cut);
	}
}

TEST(test_altered)
{
	static const unsigned char changes[] = {0x01, 0x80, 0xff};

	for (size_t e = 0; e < COUNT(engines); e++) {
		size_t size;
		unsigned char *image = small_image(40, engines[e], &size);

		for (size_t i = 0; i < size; i++) {
			for (size_t c = 0; c < COUNT(changes); c++) {
				image[i] ^= changes[c];
				expect_refused("altered at byte", i, image, size);
				image[i] ^= changes[c];
			}
		}
	}
}

TEST(test_added_to)
{
	size_t size;
	unsigned char *image = small_image(40, ROSA_ENGINE_CHAINS, &size);
	unsigned char *longer = test_alloc(2 * size);

	memcpy(longer, image, size);
	memcpy(longer + size, image, size);
	expect_refused("twice", 0, longer, 2 * size);
	for (size_t more = 1; more <= 16; more++)
		expect_refused("with more of itself behind it", more, longer, size + more);
	memset(longer + size, 0, size);
	expect_refused("with a zero behind it", 1, longer, size + 1);
}

TEST(test_never_a_state)
{
	uint64_t turn = 1;
	unsigned char bytes[4096];

	memset(bytes, 0, sizeof(bytes));
	expect_refused("nothing", 0, bytes, 0);
	expect_refused("zeros", sizeof(bytes), bytes, sizeof(bytes));
	memset(bytes, 0xff, sizeof(bytes));
	expect_refused("ones", sizeof(bytes), bytes, sizeof(bytes));
	for (size_t i = 0; i < 200; i++) {
		size_t size = 1 + test_random(&turn, sizeof(bytes));

		for (size_t j = 0; j < size; j++)
			bytes[j] = (unsigned char)test_random(&turn, 256);
		expect_refused("random bytes", size, bytes, size);
	}
}

TEST(test_other_version)
{
	size_t size;
	unsigned char *image = small_image(40, ROSA_ENGINE_CHAINS, &size);
	rosa_stream *stream = NULL;
	rosa_stream_info info;

	image[IMAGE_VERSION]++;
	expect_refused("of a later version", image[IMAGE_VERSION], image, size);
	image_seal(image, size);
	expect_refused("of a later version, sealed", image[IMAGE_VERSION], image, size);
	must_fail(rosa_stream_load_memory(NULL, image, size, &stream, &err), ROSA_EFORMAT, "version");
	image[IMAGE_VERSION]--;
	image_seal(image, size);
	loaded(image, size, &info);
}

/* States of version 2 had no delay, and are the same otherwise. */
TEST(test_older_version)
{
	size_t size, again_size;
	unsigned char *image = small_image(40, ROSA_ENGINE_CHAINS, &size), *again;
	rosa_stream_info info;

	assert_int_equal(image[IMAGE_VERSION], 3);
	image[IMAGE_VERSION] = 2;
	image_seal(image, size);
	again = image_of(loaded(image, size, &info), &again_size);
	assert_int_equal(info.delay, 0);
	assert_int_equal(info.steps, 40);
	image[IMAGE_VERSION] = 3;
	image_seal(image, size);
	assert_int_equal(again_size, size);
	assert_memory_equal(again, image, size);
	/* a delay, which version 2 did not know */
	image[IMAGE_DELAY] = 9;
	image_seal(image, size);
	loaded(image, size, &info);
	assert_int_equal(info.delay, 9);
	image[IMAGE_VERSION] = 2;
	image_seal(image, size);
	expect_refused("version 2 with a delay", 9, image, size);
}

/* Altered and sealed again, so that only the checks behind the checksum are left. Most must be refused. What is not is
 * another stream; it has to take steps and to lead nowhere outside its history. */
TEST(test_forged)
{
	size_t refused = 0, accepted = 0;

	for (size_t e = 0; e < COUNT(engines); e++) {
		size_t size;
		unsigned char *image = small_image(70, engines[e], &size);

		for (size_t i = 0; i < (size - IMAGE_SEAL) * 8; i++) {
			unsigned char *exact = test_alloc(size);
			rosa_options options = ROSA_OPTIONS_INIT;
			rosa_stream_info info = {.size = sizeof(info)};
			struct test_memory memory;
			rosa_stream *stream = NULL;
			uint16_t *zeros;
			int32_t *tau;
			rosa_status status;

			test_memory_init(&memory);
			options.allocator = test_memory_allocator(&memory);
			memcpy(exact, image, size);
			exact[i / 8] ^= (unsigned char)(1u << i % 8);
			image_seal(exact, size);
			status = rosa_stream_load_memory(&options, exact, size, &stream, &err);
			if (status != ROSA_OK) {
				must_refuse(status, ROSA_EFORMAT);
				assert_null(stream);
				assert_int_equal(atomic_load(&memory.blocks), 0);
				refused++;
				continue;
			}
			accepted++;
			must(rosa_stream_describe(stream, &info, &err));
			/* as many bytes as the widest symbols need */
			zeros = test_alloc(info.routes * 4 * sizeof(uint32_t));
			tau = test_alloc(info.routes * 4 * sizeof(*tau));
			memset(zeros, 0, info.routes * 4 * sizeof(uint32_t));
			must(rosa_stream_push(stream, 4, zeros, zeros, 0, tau, NULL, NULL, &err));
			for (size_t j = 0; j < info.routes * 4; j++)
				assert_true(tau[j] >= -1 && tau[j] < (int32_t)info.steps + 4);
			rosa_stream_free(stream);
			assert_int_equal(atomic_load(&memory.blocks), 0);
		}
	}
	assert_true(refused > 0);
	assert_true(accepted > 0);
}

/* What was saved comes back whole, the empty state too. */
TEST(test_round_trip)
{
	static const size_t lengths[] = {0, 1, 2, 40, 1000};

	for (size_t e = 0; e < COUNT(engines); e++) {
		for (size_t i = 0; i < COUNT(lengths); i++) {
			size_t size, again_size;
			unsigned char *image = small_image(lengths[i], engines[e], &size);
			rosa_stream_info info;
			unsigned char *again = image_of(loaded(image, size, &info), &again_size);

			assert_int_equal(info.steps, lengths[i]);
			assert_int_equal(info.routes, 2);
			assert_int_equal(info.bits, 3);
			assert_int_equal(again_size, size);
			assert_memory_equal(again, image, size);
		}
	}
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static void expect_file(const char *path, const unsigned char *want, size_t size)
{
	unsigned char *got = test_alloc(size + 1);
	FILE *file = fopen(path, "rb");

	assert_non_null(file);
	assert_int_equal(fread(got, 1, size + 1, file), size);
	assert_memory_equal(got, want, size);
	fclose(file);
}

static void expect_naming(const char *how, rosa_status got, rosa_status want, const rosa_error *err, const char *path)
{
	expect_status(how, got, want, err);
	if (!strstr(err->message, path))
		fail_msg("%s: \"%s\" does not name %s", how, err->message, path);
}

TEST_WITH(test_file_round_trip, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	rosa_stream *stream = small_stream(40, ROSA_ENGINE_AUTO), *loaded = NULL;
	const char *path = folder->file;
	size_t size;
	unsigned char *data = image_of(stream, &size);

	must(rosa_stream_save(stream, path, &err));
	must(rosa_stream_save(stream, path, &err));
	assert_int_equal(folder_entries(folder), 1);
	expect_file(path, data, size);
	must(rosa_stream_load(NULL, path, &loaded, &err));
	rosa_stream_free(loaded);

	/* Damage in a file is damage, not a failure to read. */
	loaded = NULL;
	file_put(path, data, size - 1);
	expect_naming("cut file", rosa_stream_load(NULL, path, &loaded, &err), ROSA_EFORMAT, &err, path);
	file_put(path, data, 0);
	expect_naming("empty file", rosa_stream_load(NULL, path, &loaded, &err), ROSA_EFORMAT, &err, path);
	assert_null(loaded);
	assert_int_equal(unlink(path), 0);
}

static void *load_pipe(void *path)
{
	rosa_stream *stream = NULL;

	return rosa_stream_load(NULL, path, &stream, NULL) == ROSA_OK ? stream : NULL;
}

/* Links are followed, permissions kept, and pipes written to: nothing but a regular file is ever replaced. */
TEST_WITH(test_special_files, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	rosa_stream *stream = small_stream(40, ROSA_ENGINE_AUTO);
	const char *path = folder->file, *link = folder->other;
	char pipe[128];
	struct stat about;
	pthread_t reader;
	void *loaded;

	snprintf(pipe, sizeof(pipe), "%s/pipe", folder->path);
	file_put(path, "old", 3);
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(symlink("file", link), 0);
	must(rosa_stream_save(stream, link, &err));
	assert_int_equal(lstat(link, &about), 0);
	assert_true(S_ISLNK(about.st_mode));
	assert_int_equal(stat(path, &about), 0);
	assert_int_equal(about.st_mode & 0777, 0600);
	assert_true(about.st_size > 3);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	assert_int_equal(pthread_create(&reader, NULL, load_pipe, pipe), 0);
	must(rosa_stream_save(stream, pipe, &err));
	assert_int_equal(pthread_join(reader, &loaded), 0);
	assert_non_null(loaded);
	rosa_stream_free(loaded);
	assert_int_equal(lstat(pipe, &about), 0);
	assert_true(S_ISFIFO(about.st_mode));
	assert_int_equal(folder_entries(folder), 3);
	unlink(pipe);
}

TEST_WITH(test_unreadable, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	rosa_stream *stream = NULL;

	expect_naming("missing", rosa_stream_load(NULL, folder->file, &stream, &err), ROSA_EIO, &err, folder->file);
	assert_null(stream);
	expect_naming("a folder", rosa_stream_load(NULL, folder->path, &stream, &err), ROSA_EIO, &err, folder->path);
	assert_null(stream);
}

TEST_WITH(test_unwritable, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	rosa_stream *stream = small_stream(40, ROSA_ENGINE_AUTO);
	char path[128];

	snprintf(path, sizeof(path), "%s/missing/state", folder->path);
	expect_naming("a missing folder", rosa_stream_save(stream, path, &err), ROSA_EIO, &err, path);
	snprintf(path, sizeof(path), "%s", folder->other);
	assert_int_equal(mkdir(path, 0700), 0);
	expect_naming("a folder", rosa_stream_save(stream, path, &err), ROSA_EIO, &err, path);
	assert_int_equal(folder_entries(folder), 1);
	assert_int_equal(rmdir(path), 0); /* it is empty */
}

TEST_WITH(test_full_disk, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	static const unsigned char old[] = "what was here before";
	rosa_stream *stream = small_stream(1000, ROSA_ENGINE_AUTO);
	struct rlimit limit, low;
	void (*handler)(int);
	rosa_status status;
	const char *path = folder->file;

	file_put(path, old, sizeof(old));
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	low = limit;
	low.rlim_cur = 64;
	handler = signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
	status = rosa_stream_save(stream, path, &err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	signal(SIGXFSZ, handler);
	expect_naming("a full disk", status, ROSA_EIO, &err, path);
	expect_file(path, old, sizeof(old));
	assert_int_equal(folder_entries(folder), 1);

	/* With room again, the same stream is saved over it. */
	must(rosa_stream_save(stream, path, &err));
	assert_int_equal(unlink(path), 0);
}
