/* Folders of tests: whatever a test leaves behind is a fault. */
#include "support_folder.h"
#include "support_test.h"

#include <dirent.h>
#include <unistd.h>

int folder_enter(void **state)
{
	struct folder *folder = calloc(1, sizeof(*folder));

	if (!folder)
		return -1;
	snprintf(folder->path, sizeof(folder->path), "/tmp/rosatune-test-XXXXXX");
	if (!mkdtemp(folder->path))
		return -1;
	snprintf(folder->file, sizeof(folder->file), "%s/file", folder->path);
	snprintf(folder->other, sizeof(folder->other), "%s/other", folder->path);
	*state = folder;
	return 0;
}

int folder_leave(void **state)
{
	struct folder *folder = *state;
	int result;

	unlink(folder->file);
	unlink(folder->other);
	result = rmdir(folder->path);
	free(folder);
	return result;
}

size_t folder_entries(const struct folder *folder)
{
	DIR *dir = opendir(folder->path);
	size_t count = 0;

	if (!dir)
		return (size_t)-1;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2;
}

void file_put(const char *path, const void *data, size_t size)
{
	FILE *file = fopen(path, "wb");

	if (!file || (size && fwrite(data, 1, size, file) != size) || fclose(file) != 0)
		fail_msg("%s cannot be written", path);
}
