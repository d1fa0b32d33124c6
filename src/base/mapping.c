/*
 * Files mapped into memory.
 *
 * Weights are read where they lie: the operating system brings in what is used, keeps it between runs, and shares it
 * between programs. What is mapped must not shrink meanwhile, which no program can prevent; it then ends with SIGBUS,
 * like every reader of a mapped file.
 */
#include "base/mapping.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static rosa_status map(struct mapping *mapping, int descriptor, const char *path, rosa_error *err)
{
	struct stat about;
	void *data;

	if (fstat(descriptor, &about) != 0)
		return rosa_fail(err, ROSA_EIO, "%s: %s", path, strerror(errno));
	if (!S_ISREG(about.st_mode))
		return rosa_fail(err, ROSA_EIO, "%s: is not a file", path);
	if (about.st_size == 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: is empty", path);
	data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
	if (data == MAP_FAILED)
		return rosa_fail(err, ROSA_EIO, "%s: cannot be mapped into memory: %s", path, strerror(errno));
	*mapping = (struct mapping){data, (size_t)about.st_size};
	return ROSA_OK;
}

rosa_status mapping_open(struct mapping *mapping, const char *path, rosa_error *err)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	rosa_status status;

	*mapping = (struct mapping){NULL, 0};
	if (descriptor < 0)
		return rosa_fail(err, ROSA_EIO, "%s: %s", path, strerror(errno));
	status = map(mapping, descriptor, path, err);
	close(descriptor);
	return status;
}

void mapping_close(struct mapping *mapping)
{
	if (mapping->data)
		munmap((void *)mapping->data, mapping->size);
	*mapping = (struct mapping){NULL, 0};
}
