/*
 * Runs on disk: checkpoints are whole or not there, damage is found wherever it is, and the log has every step once.
 */
#include "base/paths.h"
#include "train/run_folder.h"
#include "model/safetensors.h"
#include "train/safetensors_write.h"
#include "support_checkpoint.h"
#include "support_test.h"
#include "support_trial.h"
#include "train/training_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef ROSATUNE_JANSSON

static void close_run(void *folder)
{
	run_folder_close(folder);
}

static struct run_folder *open_run(const char *name)
{
	struct run_folder *folder = test_zeros(1, sizeof(*folder));

	must(run_folder_open(scratch_path(name), folder, &err));
	test_later(close_run, folder);
	return folder;
}

static void save(struct run_folder *folder, uint64_t step, size_t keep)
{
	const struct run_state state = {step,
					step / 10,
					step % 10,
					step * 100,
					0.1 * (double)step,
					0xfedcba9876543210,
					0x8123456789abcdef,
					1700000000123456789};
	struct checkpoint_writer writer;
	struct file_writer file;

	must(checkpoint_begin(&writer, folder, step, &err));
	must(checkpoint_file_save(&writer, "small.json", "{}\n", 3, &err));
	must(checkpoint_file_open(&writer, "large.bin", &file, &err));
	for (uint64_t i = 0; i < 300; i++)
		must(file_write(&file, &i, 7, &err));
	must(checkpoint_file_done(&writer, &file, ROSA_OK, &err));
	must(checkpoint_commit(&writer, &state, keep, &err));
	checkpoint_abandon(&writer); /* does no harm */
}

static size_t notes;
static char last_note[256];

static void hear(void *context, const char *message)
{
	notes++;
	snprintf(last_note, sizeof(last_note), "%s", message);
}

/* The step of the newest whole checkpoint; -1: none, -2: an error. */
static long latest(struct run_folder *folder, rosa_error *err)
{
	struct checkpoint_found found;
	long step = -1;

	notes = 0;
	if (run_folder_latest(folder, hear, NULL, &found, err) != ROSA_OK)
		return -2;
	if (*found.path.text)
		step = (long)found.state.step;
	return step;
}

static bool there(const char *path)
{
	return path_is_file(scratch_path(path)) || path_is_folder(scratch_path(path));
}

/* ---------------------------------------------------------------------------------------------------- checkpoints --
 */

TEST(keeps_the_last_ones)
{
	struct run_folder *folder = open_run("a/b/keep");
	struct checkpoint_found found;

	assert_true(run_folder_newest(folder) == UINT64_MAX);
	assert_int_equal(latest(folder, &err), -1);
	for (uint64_t step = 1; step <= 25; step += 6)
		save(folder, step, 2);
	assert_true(run_folder_newest(folder) == 25);
	assert_int_equal(run_folder_check_new(folder, &err), ROSA_EINVAL);
	assert_false(there("a/b/keep/checkpoints/step-00000013"));
	assert_true(there("a/b/keep/checkpoints/step-00000019"));
	must(run_folder_latest(folder, NULL, NULL, &found, &err));
	assert_int_equal(found.state.step, 25);
	assert_int_equal(found.state.stage, 2);
	assert_int_equal(found.state.stage_step, 5);
	assert_int_equal(found.state.tokens, 2500);
	assert_true(found.state.seconds == 0.1 * 25);
	assert_true(found.state.model == 0xfedcba9876543210);
	assert_int_equal(found.count, 2);
	assert_int_equal(found.files[1].bytes, 2100);
	assert_true(checkpoint_has(&found, "large.bin"));
	assert_false(checkpoint_has(&found, "other.bin"));
	save(folder, 25, 2); /* the same step again takes its place */
	assert_int_equal(latest(folder, &err), 25);
}

TEST(what_is_half_written_is_swept)
{
	const size_t mark = test_mark();
	struct run_folder *folder = open_run("swept");
	struct checkpoint_writer writer;

	save(folder, 3, 0);
	must(checkpoint_begin(&writer, folder, 9, &err));
	must(checkpoint_file_save(&writer, "small.json", "{}\n", 3, &err));
	/* as if killed here */
	test_release(mark);
	assert_true(there("swept/checkpoints/.writing-00000009"));
	folder = open_run("swept");
	assert_false(there("swept/checkpoints/.writing-00000009"));
	assert_int_equal(latest(folder, &err), 3);
}

TEST(one_run_a_folder)
{
	const size_t mark = test_mark();
	struct run_folder second;

	open_run("locked");
	must_fail(run_folder_open(scratch_path("locked"), &second, &err), ROSA_EIO, "another run");
	test_release(mark);
	open_run("locked");
	scratch_write("plain", "");
	assert_int_equal(run_folder_open(scratch_path("plain"), &second, &err), ROSA_EIO);
}

static void change_byte(const char *path, size_t at)
{
	int file = open(path, O_RDWR);
	uint8_t byte;

	assert_true(file >= 0);
	assert_int_equal(pread(file, &byte, 1, (off_t)at), 1);
	byte ^= 0x04;
	assert_int_equal(pwrite(file, &byte, 1, (off_t)at), 1);
	close(file);
}

/* Every byte of every file, and every length. */
TEST(any_damage_is_found)
{
	static const char *const names[] = {"state.json", "small.json", "large.bin"};
	struct run_folder *folder = open_run("damage");

	save(folder, 1, 0);
	for (size_t i = 0; i < COUNT(names); i++) {
		char path[256];
		struct stat about;

		snprintf(path, sizeof(path), "%s/%s", scratch_path("damage/checkpoints/step-00000001"), names[i]);
		assert_int_equal(stat(path, &about), 0);
		for (size_t at = 0; at < (size_t)about.st_size; at += i == 2 ? 37 : 1) {
			change_byte(path, at);
			assert_int_equal(latest(folder, &err), -2);
			if (!strstr(err.message, "format: is")) /* it looks like another version's */
				assert_int_equal(notes, 1);
			change_byte(path, at);
		}
		assert_int_equal(latest(folder, &err), 1);
		assert_int_equal(truncate(path, about.st_size - 1), 0);
		assert_int_equal(latest(folder, &err), -2);
		must_say("none of its 1 checkpoints is whole");
		save(folder, 1, 0);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(latest(folder, &err), -2);
		save(folder, 1, 0);
	}
}

/* Ways to make a file one that this process cannot read, whoever runs it. */

static void make_pipe(const char *path)
{
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
}

static void make_loop(const char *path)
{
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink(strrchr(path, '/') + 1, path), 0);
}

static void forbid(const char *path)
{
	assert_int_equal(chmod(path, 0), 0);
}

/* More than the address space that is left under limit_address_space. */
static void make_huge(const char *path)
{
	assert_int_equal(truncate(path, (off_t)4 << 30), 0);
}

/* Leaves the process 1 GB of address space more than it has. Returns the limit that it had. */
static struct rlimit limit_address_space(void)
{
	struct rlimit before, limit;
	unsigned long long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%llu", &pages), 1);
	fclose(file);
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	limit = before;
	limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)1 << 30);
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	return before;
}

/* A checkpoint that cannot be opened may well be whole: nothing is renamed, and no older one is taken. Only a wrong
 * format or checksum and a missing file are damage. */
TEST(what_cannot_be_opened_is_not_damaged)
{
	static const struct {
		void (*close)(const char *path);
		const char *message;
	} ways[] = {{make_pipe, "is not a regular file"},
		    {make_loop, "symbolic link"},
		    {make_huge, "cannot be mapped into memory"},
		    {forbid, "Permission denied"}};
	static const char *const names[] = {"large.bin", "state.json"};

	for (size_t i = 0; i < 2 * COUNT(ways); i++) {
		struct run_folder *folder;
		char run[32], newest[96], damaged[96], path[256];
		struct rlimit limit;
		long step;

		if (ways[i / 2].close == forbid && geteuid() == 0)
			continue; /* permissions do not hold for the super-user */
		snprintf(run, sizeof(run), "closed-%zu", i);
		folder = open_run(run);
		save(folder, 1, 0);
		save(folder, 2, 0);
		snprintf(newest, sizeof(newest), "%s/checkpoints/step-00000002", run);
		snprintf(damaged, sizeof(damaged), "%s/checkpoints/damaged-step-00000002", run);
		snprintf(path, sizeof(path), "%s/%s", scratch_path(newest), names[i % 2]);
		ways[i / 2].close(path);
		limit = limit_address_space();
		step = latest(folder, &err);
		assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
		assert_int_equal(step, -2);
		must_say(names[i % 2]);
		must_say(ways[i / 2].message);
		assert_int_equal(notes, 0);
		assert_true(there(newest));
		assert_false(there(damaged));
	}
}

TEST(the_one_before_is_taken)
{
	struct run_folder *folder = open_run("before");

	save(folder, 1, 0);
	save(folder, 2, 0);
	save(folder, 3, 0);
	change_byte(scratch_path("before/checkpoints/step-00000003/large.bin"), 1000);
	change_byte(scratch_path("before/checkpoints/step-00000002/state.json"), 30);
	assert_int_equal(latest(folder, &err), 1);
	assert_int_equal(notes, 2);
	assert_non_null(strstr(last_note, "step-00000002/state.json"));
	assert_true(there("before/checkpoints/damaged-step-00000003"));
	assert_int_equal(latest(folder, &err), 1);
	assert_int_equal(notes, 0); /* told once */
}

TEST(other_versions_are_not_passed_over)
{
	static const char *const texts[] = {"{\n  \"format\": 3,\n  \"step\": 2\n}\n",
					    "{\n  \"format\": 1,\n  \"step\": 2\n}\n"};
	static const char *const messages[] = {"format: is 3", "format: is 1"};
	struct run_folder *folder = open_run("later");

	save(folder, 1, 0);
	save(folder, 2, 0);
	for (size_t i = 0; i < 2; i++) {
		scratch_write("later/checkpoints/step-00000002/state.json", texts[i]);
		assert_int_equal(latest(folder, &err), -2);
		must_say(messages[i]);
		assert_true(there("later/checkpoints/step-00000002"));
	}
}

TEST(failed_writes_leave_the_old_one)
{
	struct run_folder *folder = open_run("full");
	struct checkpoint_writer writer;
	struct file_writer file;
	rosa_error err = {ROSA_OK, ""};

	save(folder, 1, 0);
	must(checkpoint_begin(&writer, folder, 2, &err));
	must(checkpoint_file_open(&writer, "large.bin", &file, &err));
	must(file_write(&file, "some", 4, &err));
	close(file.descriptor); /* the disk goes away */
	file.descriptor = open("/dev/full", O_WRONLY);
	if (file.descriptor >= 0) {
		must_fail(checkpoint_file_done(&writer, &file, ROSA_OK, &err), ROSA_EIO, strerror(ENOSPC));
	} else {
		file_discard(&file);
	}
	checkpoint_abandon(&writer);
	assert_false(there("full/checkpoints/.writing-00000002"));
	assert_int_equal(latest(folder, &err), 1);
}

/* -------------------------------------------------------------------------------------------------------- tensors --
 */

static void fetch(void *context, const struct tensor_source *tensor, size_t first, size_t count, float *numbers)
{
	(*(size_t *)context)++;
	memcpy(numbers, (const float *)tensor->from + first, count * sizeof(*numbers));
}

TEST(tensors_read_back)
{
	static float matrix[300 * 301], vector[3] = {1, -2, NAN};
	const struct tensor_source tensors[] = {{"b.vector", 1, {3, 0}, vector},
						{"a \"matrix\"", 2, {300, 301}, matrix}};
	static const char *const metadata[] = {"format", "pt", "tensors", "0123", NULL};
	struct safetensors read;
	struct mapping mapping;
	struct file_writer file;
	struct checksum sum;
	size_t pieces = 0;

	checksum_begin(&sum, 0);
	for (size_t i = 0; i < COUNT(matrix); i++)
		matrix[i] = (float)i * 0.1f;
	must(file_create(&file, scratch_path("t.safetensors"), &(struct file_options){.sum = &sum}, &err));
	must(safetensors_write(&file, tensors, 2, FORMAT_F32, metadata, fetch, &pieces, &err));
	must(file_finish(&file, ROSA_OK, &err));
	assert_true(pieces > 2);
	must(mapping_open(&mapping, scratch_path("t.safetensors"), &err));
	assert_int_equal(mapping.size, sum.bytes);
	assert_int_equal(checksum_of(mapping.data, mapping.size), checksum_value(&sum));
	must(safetensors_read(mapping.data, mapping.size, "t", &read, &err));
	assert_string_equal(safetensors_metadata(&read, "tensors"), "0123");
	assert_int_equal(read.tensors.count, 2);
	assert_memory_equal(tensors_find(&read.tensors, "b.vector")->data, vector, sizeof(vector));
	assert_memory_equal(tensors_find(&read.tensors, "a \"matrix\"")->data, matrix, sizeof(matrix));
	assert_int_equal(tensors_find(&read.tensors, "a \"matrix\"")->shape[1], 301);
	safetensors_free(&read);
	mapping_close(&mapping);
}

/* ------------------------------------------------------------------------------------------------------------ log --
 */

static void add_lines(struct training_log *log, uint64_t from, uint64_t to)
{
	for (uint64_t step = from; step <= to; step++) {
		const struct training_entry entry = {.step = step,
						     .stage = "warm \"up\"",
						     .loss = step == 2 ? NAN : 1.0 / (double)step,
						     .tokens = step,
						     .has_valid = step == 3,
						     .valid_loss = 2,
						     .far_loss = 1.5,
						     .far_random_loss = NAN, /* not measured */
						     .far_off_loss = 1.75};
		must(training_log_add(log, &entry, &err));
	}
	must(training_log_sync(log, &err));
}

static size_t count_lines(const char *path, char *last, size_t room)
{
	FILE *file = fopen(path, "r");
	size_t lines = 0;

	assert_non_null(file);
	while (fgets(last, (int)room, file))
		lines++;
	fclose(file);
	return lines;
}

TEST(log_has_every_step_once)
{
	char path[256], line[512];
	struct training_log log;
	FILE *file;

	snprintf(path, sizeof(path), "%s", scratch_path("log.jsonl"));
	must(training_log_open(&log, path, 0, &err));
	add_lines(&log, 1, 5);
	training_log_close(&log);
	training_log_close(&log); /* twice does no harm */
	file = fopen(path, "a");
	fputs("{\"step\": 3, \"sta", file); /* killed in the middle of a line */
	fclose(file);
	must(training_log_open(&log, path, 3, &err));
	assert_int_equal(count_lines(path, line, sizeof(line)), 3);
	assert_string_equal(
	    line, "{\"step\": 3, \"stage\": \"warm \\\"up\\\"\", \"loss\": 0.3333333333333333, \"rate\": 0, "
		  "\"backbone_rate\": 0, \"grad_norm\": 0, \"tokens\": 3, \"seconds\": 0.000, "
		  "\"tokens_per_second\": 0.0, \"valid_loss\": 2, \"far_loss\": 1.5, \"far_off_loss\": 1.75}\n");
	add_lines(&log, 4, 4);
	training_log_close(&log);
	assert_int_equal(count_lines(path, line, sizeof(line)), 4);
	must(training_log_open(&log, path, 0, &err)); /* anew */
	training_log_close(&log);
	assert_int_equal(count_lines(path, line, sizeof(line)), 0);
	assert_int_equal(training_log_open(&log, scratch_path("no/such/log"), 0, &err), ROSA_EIO);
}

TEST_GROUP(scratch_enter, scratch_leave)

#else

#endif
