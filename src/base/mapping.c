/*
 * Files mapped into memory.
 *
 * Weights are not copied: the operating system loads the pages that are used, keeps them between runs, and shares them
 * between programs. A mapped file must not shrink meanwhile, which no program can prevent; the program then ends with
 * SIGBUS, like every reader of a mapped file.
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
		return rosa_fail(err, ROSA_EIO, "%s: is not a regular file", path);
	if (about.st_size == 0)
		return rosa_fail(err, ROSA_EFORMAT, "%s: is empty", path);
	data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
	if (data == MAP_FAILED)
		return rosa_fail(err, errno == ENOMEM ? ROSA_ENOMEM : ROSA_EIO, "%s: cannot be mapped into memory: %s",
				 path, strerror(errno));
	*mapping = (struct mapping){data, (size_t)about.st_size};
	return ROSA_OK;
}

rosa_status mapping_open(struct mapping *mapping, const char *path, rosa_error *err)
{
	/* opening a pipe would otherwise wait for a writer; makes no difference to a regular file */
	const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
