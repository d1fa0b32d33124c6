/* One file without a name for all inputs. */
#define _GNU_SOURCE /* memfd_create */
#include "support_fuzz_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char *fuzz_file(const void *data, size_t size)
{
	static int descriptor = -1;
	static char path[32];

	if (descriptor < 0) {
		descriptor = memfd_create("fuzz", MFD_CLOEXEC);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
	}
	if (descriptor < 0 || ftruncate(descriptor, 0) != 0 || pwrite(descriptor, data, size, 0) != (ssize_t)size)
		abort();
	return path;
}
