/*
 * Reading whole files.
 *
 * Files are not mapped here: reading a mapped file that another program truncates kills the process, and pipes cannot
 * be mapped. The size from fstat is only used for the first allocation; the file is read until its end.
 */
#include "base/file_wait.h"
#include "base/memory.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BLOCK  ((size_t)1 << 16) /* for pipes, whose size is not known */
#define LONGEST_WAIT 100               /* milliseconds, between two looks at the hook */

bool file_cancelled(const struct file_options *options)
{
	const struct file_hooks *hooks = options ? options->hooks : NULL;

	return hooks && hooks->cancelled && hooks->cancelled(hooks->context);
}

void file_never_block(int descriptor)
{
	int flags = fcntl(descriptor, F_GETFL);

	if (flags >= 0)
		fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

rosa_status file_wait(int descriptor, short events, int error, const struct file_options *options, const char *path,
		      const char *doing, rosa_error *err)
{
	struct pollfd wait = {descriptor, events, 0};

	if (file_cancelled(options))
		return rosa_fail(err, ROSA_ECANCELLED, "interrupted while %s %s", doing, path);
	if (error == EAGAIN)
		poll(&wait, 1, LONGEST_WAIT);
	if (!error || error == EINTR || error == EAGAIN)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EIO, "error while %s %s: %s", doing, path, strerror(error));
}

static rosa_status read_all(int descriptor, const char *path, size_t room, const struct file_options *options,
			    const rosa_allocator *allocator, uint8_t **data, size_t *size, rosa_error *err)
{
	uint8_t *buffer = NULL;
	size_t used = 0, have = 0;
	rosa_status status = ROSA_OK;

	while (status == ROSA_OK) {
		if (used == have) {
			const size_t more = have == 0 ? room : have + have / 2;
			uint8_t *bigger = more > have ? memory_resize(allocator, buffer, more) : NULL;

			if (!bigger) {
				status = rosa_fail(err, ROSA_ENOMEM, "not enough memory to read %s (%zu bytes wanted)",
						   path, more);
				break;
			}
			buffer = bigger;
			have = more;
		}
		const ssize_t got = read(descriptor, buffer + used, have - used);

		if (got == 0)
			break;
		used += got > 0 ? (size_t)got : 0;
		status = file_wait(descriptor, POLLIN, got < 0 ? errno : 0, options, path, "reading", err);
	}
	if (status != ROSA_OK) {
		memory_free(allocator, buffer);
		return status;
	}
	*data = buffer;
	*size = used;
	return ROSA_OK;
}

rosa_status file_read(const char *path, const struct file_options *options, uint8_t **data, size_t *size,
		      rosa_error *err)
{
	static const rosa_allocator plain;
	const rosa_allocator *allocator = options && options->allocator ? options->allocator : &plain;
	struct stat about;
	const int descriptor = open(path, O_RDONLY | O_CLOEXEC);

	*data = NULL;
	*size = 0;
	if (descriptor < 0 && file_cancelled(options))
		return rosa_fail(err, ROSA_ECANCELLED, "interrupted while opening %s", path);
	if (descriptor < 0)
		return rosa_fail(err, ROSA_EIO, "cannot open %s: %s", path, strerror(errno));
	const bool known = fstat(descriptor, &about) == 0;

	if (known && S_ISDIR(about.st_mode)) {
		close(descriptor);
		return rosa_fail(err, ROSA_EIO, "%s is a folder; give a file", path);
	}
	file_never_block(descriptor);
	/* one byte more than the file has, so that its end is seen without growing */
	const bool sized = known && S_ISREG(about.st_mode) && about.st_size > 0;
	const rosa_status status = read_all(descriptor, path, sized ? (size_t)about.st_size + 1 : FIRST_BLOCK, options,
					    allocator, data, size, err);

	close(descriptor);
	return status;
}
