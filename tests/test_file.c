/*
 * Files that are replaced: the old content stays until the new one is complete, links are followed, permissions kept,
 * and what is not a regular file is written to, never replaced.
 */
#include "base/file.h"
#include "base/folders.h"
#include "base/mapping.h"
#include "base/paths.h"
#include "support_folder.h"
#include "support_test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static void save(const char *path, const char *text)
{
	must(file_save(path, text, strlen(text), NULL, &err));
}

static void expect(const char *path, const char *text)
{
	uint8_t *data;
	size_t size;

	must(file_read(path, NULL, &data, &size, &err));
	assert_int_equal(size, strlen(text));
	assert_memory_equal(data, text, size);
	free(data);
}

TEST_WITH(the_old_content_stays_until_the_end, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct file_writer writer;

	save(folder->file, "old");
	must(file_create(&writer, folder->file, NULL, &err));
	must(file_write(&writer, "new", 3, &err));
	must(file_close(&writer, &err));
	expect(folder->file, "old");
	must(file_commit(&writer, &err));
	expect(folder->file, "new");
	must(file_create(&writer, folder->file, NULL, &err));
	must(file_write(&writer, "newer", 5, &err));
	file_discard(&writer);
	file_discard(&writer); /* twice does no harm */
	expect(folder->file, "new");
	assert_int_equal(folder_entries(folder), 1);
}

TEST_WITH(pieces_of_any_size, folder_enter, folder_leave)
{
	static const size_t sizes[] = {1, 7, 65535, 65536, 65537, 3, 200000, 0, 1};
	struct folder *folder = *state;
	struct checksum sum;
	const struct file_options options = {.durable = true, .sum = &sum};
	struct file_writer writer;
	uint8_t *all = must_alloc(1 << 20), *data;
	size_t total = 0, size;

	for (size_t i = 0; i < 1 << 20; i++)
		all[i] = (uint8_t)(i * 31 >> 3);
	checksum_begin(&sum, 0);
	must(file_create(&writer, folder->file, &options, &err));
	for (size_t i = 0; i < COUNT(sizes); i++) {
		must(file_write(&writer, all + total, sizes[i], &err));
		total += sizes[i];
	}
	assert_int_equal(checksum_value(&sum), checksum_of(all, total));
	must(file_write_at(&writer, 5, "HEAD", 4, &err));
	must(file_write(&writer, "end", 3, &err));
	must(file_finish(&writer, ROSA_OK, &err));
	memcpy(all + 5, "HEAD", 4);
	memcpy(all + total, "end", 3);
	must(file_read(folder->file, NULL, &data, &size, &err));
	assert_int_equal(size, total + 3);
	assert_memory_equal(data, all, size);
	free(data);
	free(all);
}

TEST_WITH(links_are_followed_and_permissions_kept, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct stat about;

	save(folder->file, "old");
	assert_int_equal(chmod(folder->file, 0600), 0);
	assert_int_equal(symlink("file", folder->other), 0);
	save(folder->other, "new");
	expect(folder->file, "new");
	assert_int_equal(lstat(folder->other, &about), 0);
	assert_true(S_ISLNK(about.st_mode));
	assert_int_equal(stat(folder->file, &about), 0);
	assert_int_equal(about.st_mode & 0777, 0600);
	/* a link to a file that is not there yet makes that file, as opening it would */
	assert_int_equal(unlink(folder->file), 0);
	save(folder->other, "newer");
	assert_int_equal(lstat(folder->other, &about), 0);
	assert_true(S_ISLNK(about.st_mode));
	expect(folder->file, "newer");
	assert_int_equal(folder_entries(folder), 2);
}

static void *drain(void *path)
{
	uint8_t *data;
	size_t size;

	return file_read(path, NULL, &data, &size, NULL) == ROSA_OK ? data : NULL;
}

TEST_WITH(pipes_are_written_to, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct stat about;
	pthread_t reader;
	void *data;
	char *text = calloc(300001, 1);

	assert_non_null(text);
	memset(text, 'x', 300000);
	assert_int_equal(mkfifo(folder->file, 0600), 0);
	assert_int_equal(pthread_create(&reader, NULL, drain, folder->file), 0);
	save(folder->file, text);
	assert_int_equal(pthread_join(reader, &data), 0);
	assert_non_null(data);
	assert_memory_equal(data, text, 300000);
	free(data);
	free(text);
	assert_int_equal(lstat(folder->file, &about), 0);
	assert_true(S_ISFIFO(about.st_mode));
	assert_int_equal(folder_entries(folder), 1);
}

struct program {
	int held, holds, cancel;
};

static int cancelled(void *context)
{
	return ((struct program *)context)->cancel;
}

static void hold(void *context)
{
	((struct program *)context)->held++;
	((struct program *)context)->holds++;
}

static void release(void *context)
{
	((struct program *)context)->held--;
}

TEST_WITH(a_program_takes_part, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct program program = {0};
	const struct file_hooks hooks = {cancelled, hold, release, &program};
	const struct file_options options = {.hooks = &hooks};
	struct file_writer writer;
	uint8_t *data;
	size_t size;

	must(file_save(folder->file, "one", 3, &options, &err));
	assert_int_equal(program.held, 0);
	assert_int_equal(program.holds, 1);
	must(file_create(&writer, folder->file, &options, &err));
	assert_int_equal(program.held, 1);
	program.cancel = 1;
	must(file_write(&writer, "two", 3, &err));
	must_fail(file_finish(&writer, ROSA_OK, &err), ROSA_ECANCELLED, "interrupted while writing");
	assert_int_equal(program.held, 0);
	assert_int_equal(file_read(folder->file, &options, &data, &size, &err), ROSA_ECANCELLED);
	assert_null(data);
	expect(folder->file, "one");
	assert_int_equal(folder_entries(folder), 1);
}

TEST_WITH(what_cannot_be_written_is_named, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	char path[160];
	struct file_writer writer;

	snprintf(path, sizeof(path), "%s/none/file", folder->path);
	must_fail(file_can_create(path, &err), ROSA_EIO, path);
	assert_int_equal(file_create(&writer, path, NULL, &err), ROSA_EIO);
	must_fail(file_create(&writer, folder->path, NULL, &err), ROSA_EIO, "folder");
	assert_int_equal(file_can_create("", &err), ROSA_EINVAL);
	assert_int_equal(symlink("other", folder->other), 0); /* to itself */
	assert_int_equal(file_create(&writer, folder->other, NULL, &err), ROSA_EIO);
	if (access("/dev/full", W_OK) == 0)
		must_fail(file_save("/dev/full", "text", 4, NULL, &err), ROSA_EIO, "No space left");
}

TEST_WITH(folders_are_made_and_removed, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	char path[160], file[200];

	snprintf(path, sizeof(path), "%s/a/b//c/", folder->path);
	snprintf(file, sizeof(file), "%sfile", path);
	must(folder_make(path, &err));
	must(folder_make(path, &err));
	save(file, "text");
	must_fail(folder_make(file, &err), ROSA_EIO, file);
	snprintf(path, sizeof(path), "%s/a", folder->path);
	folder_remove(path);
	assert_false(path_is_folder(path));
}

/* Opening a pipe to map it would wait for a writer for ever; the alarm would end the test. */
TEST_WITH(mapping_a_pipe_is_refused_at_once, folder_enter, folder_leave)
{
	struct folder *folder = *state;
	struct mapping mapping;

	assert_int_equal(mkfifo(folder->file, 0600), 0);
	alarm(20);
	assert_int_equal(mapping_open(&mapping, folder->file, &err), ROSA_EIO);
	alarm(0);
	must_say("not a regular file");
	must_fail(mapping_open(&mapping, folder->path, &err), ROSA_EIO, "not a regular file");
	save(folder->other, "text");
	must(mapping_open(&mapping, folder->other, &err));
	assert_int_equal(mapping.size, 4);
	mapping_close(&mapping);
}
