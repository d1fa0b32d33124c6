/*
 * Reading and replacing whole files.
 *
 * Reading does not map: a file cut short by somebody else while it is mapped kills the reader, and pipes cannot be
 * mapped at all. The size a file claims is only a hint for the first allocation; what counts is what could be read.
 *
 * Writing goes to a new file in the same folder (a rename across file systems is not atomic), which takes the name at
 * the end. Where the system can, the new file has no name at all until then, so that a program that is killed leaves
 * nothing behind; such a file lasts as long as it is open, and is closed only when it has got its name. Elsewhere (NFS,
 * for one) it has a hidden name, and only a kill leaves it there. It is not synchronised to the disk: the results are
 * the output of a deterministic program and can be made again after a power failure, while waiting for the disk would
 * dominate small jobs. Closing and naming are separate steps, so that a command with several outputs can close them all
 * before it names the first.
 */
#ifdef __linux__
#define _GNU_SOURCE /* O_TMPFILE */
#endif

#include "cli/file.h"

#include "cli/interrupt.h"
#include "base/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BLOCK  ((size_t)1 << 16) /* for pipes, whose size is not known */
#define WRITE_BLOCK  ((size_t)1 << 22) /* between two looks at the interrupt */
#define LONGEST_WAIT 100               /* milliseconds, between two looks at the interrupt */

/* A pipe is read and written without blocking, and waited for in short spells: a signal that comes just before a
 * blocking call is not noticed by that call. Regular files do not care. */
static void never_block(int descriptor)
{
	int flags = fcntl(descriptor, F_GETFL);

	if (flags >= 0)
		fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

/* What follows a read() or write() that moved nothing: whether to give up. */
static bool must_stop(struct pollfd wait, int error, const char *path, const char *doing, rosa_error *why)
{
	if (interrupted()) {
		refuse(why, "interrupted while %s %s", doing, path);
		return true;
	}
	if (error == EAGAIN)
		poll(&wait, 1, LONGEST_WAIT);
	if (error == EINTR || error == EAGAIN)
		return false;
	refuse(why, "error while %s %s: %s", doing, path, strerror(error));
	return true;
}

static bool read_all(int descriptor, const char *path, size_t room, uint8_t **data, size_t *size, rosa_error *why)
{
	uint8_t *buffer = NULL;
	size_t used = 0, have = 0;

	for (;;) {
		if (used == have) {
			size_t more = have == 0 ? room : have + have / 2;
			uint8_t *bigger = more > have ? realloc(buffer, more) : NULL;
			if (!bigger) {
				free(buffer);
				return refuse(why, "not enough memory to read %s (%zu bytes wanted)", path, more);
			}
			buffer = bigger;
			have = more;
		}
		ssize_t got = read(descriptor, buffer + used, have - used);
		if (got == 0)
			break;
		if (got > 0)
			used += (size_t)got;
		if ((got < 0 || interrupted()) &&
		    must_stop((struct pollfd){descriptor, POLLIN, 0}, errno, path, "reading", why)) {
			free(buffer);
			return false;
		}
	}
	*data = buffer;
	*size = used;
	return true;
}

bool file_read(const char *path, uint8_t **data, size_t *size, rosa_error *why)
{
	struct stat status;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);

	if (descriptor < 0) {
		if (interrupted())
			return refuse(why, "interrupted while opening %s", path);
		return refuse(why, "cannot open %s: %s", path, strerror(errno));
	}
	bool known = fstat(descriptor, &status) == 0;
	if (known && S_ISDIR(status.st_mode)) {
		close(descriptor);
		return refuse(why, "%s is a folder; give a file", path);
	}
	never_block(descriptor);
	/* One byte more than the file has, so that its end is seen without growing. */
	bool sized = known && S_ISREG(status.st_mode) && status.st_size > 0;
	bool done = read_all(descriptor, path, sized ? (size_t)status.st_size + 1 : FIRST_BLOCK, data, size, why);
	close(descriptor);
	return done;
}

/* True if path exists; then *regular says whether it can be replaced. */
static bool exists(const char *path, struct stat *status, bool *regular)
{
	bool there = stat(path, status) == 0;

	*regular = there && S_ISREG(status->st_mode);
	return there;
}

bool file_can_create(const char *path, rosa_error *why)
{
	struct stat status;
	bool regular, there = exists(path, &status, &regular);

	if (path[0] == '\0')
		return refuse(why, "cannot write to a file with an empty name; give one");
	if (there && S_ISDIR(status.st_mode))
		return refuse(why, "cannot write %s: it is a folder; give a file name", path);
	if (there && !regular)
		return true;
	char *folder = path_folder(path);
	if (!folder)
		return refuse(why, "not enough memory");
	bool can = access(folder, W_OK | X_OK) == 0;
	if (!can)
		refuse(why, "cannot write %s: folder %s: %s", path, folder, strerror(errno));
	free(folder);
	return can;
}

/* A hidden name beside the target, from malloc. The number of a process is not its own for ever, nor on all machines
 * that see the folder, so `attempt` makes others. */
static char *hidden_name(const char *target, unsigned attempt)
{
	char *folder = path_folder(target);
	size_t room = (folder ? strlen(folder) : 0) + 64;
	char *name = folder ? malloc(room) : NULL;

	if (name)
		snprintf(name, room, "%s/.rosatune-%ld-%u.tmp", folder, (long)getpid(), attempt);
	free(folder);
	return name;
}

/* Calls `make` with hidden names until there is one that is free; that is *name then, from malloc. */
static int make_hidden(const char *target, int (*make)(const char *name, int descriptor), int descriptor, char **name)
{
	static unsigned attempt;
	int made = -1;

	do {
		*name = hidden_name(target, attempt++);
		made = *name ? make(*name, descriptor) : -1;
		if (made < 0) {
			int error = *name ? errno : ENOMEM;
			free(*name);
			*name = NULL;
			errno = error;
		}
	} while (made < 0 && errno == EEXIST);
	return made;
}

static int open_named(const char *name, int descriptor)
{
	(void)descriptor;
	return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

#ifdef O_TMPFILE

#define LINKS "/proc/self/fd"

/* A file without a name in the target's folder, or -1. */
static int open_nameless(const char *target)
{
	char *folder = path_folder(target);
	int descriptor = -1;

	if (folder && access(LINKS, X_OK) == 0)
		descriptor = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
	free(folder);
	return descriptor;
}

static int link_named(const char *name, int descriptor)
{
	char from[64];

	snprintf(from, sizeof(from), LINKS "/%d", descriptor);
	return linkat(AT_FDCWD, from, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

#else

static int open_nameless(const char *target)
{
	(void)target;
	return -1;
}

static int link_named(const char *name, int descriptor)
{
	(void)name, (void)descriptor;
	return -1;
}

#endif

/* `old` is what the file replaces, or NULL; the new one takes its permissions. */
static bool open_temporary(struct file_writer *writer, const struct stat *old, rosa_error *why)
{
	interrupt_hold(); /* until the file has its name or is gone */
	writer->held = true;
	writer->descriptor = open_nameless(writer->target);
	writer->nameless = writer->descriptor >= 0;
	if (!writer->nameless)
		writer->descriptor = make_hidden(writer->target, open_named, -1, &writer->temporary);
	if (writer->descriptor < 0)
		return refuse(why, "cannot write %s: %s", writer->path, strerror(errno));
	if (old && fchmod(writer->descriptor, old->st_mode & 0777) != 0)
		return refuse(why, "cannot give %s its permissions: %s", writer->path, strerror(errno));
	return true;
}

bool file_create(struct file_writer *writer, const char *path, rosa_error *why)
{
	struct stat status;
	bool regular, there = exists(path, &status, &regular);
	bool done;

	*writer = (struct file_writer)FILE_WRITER_INIT;
	writer->path = path;
	if (!file_can_create(path, why))
		return false;
	if (there && !regular) {
		writer->descriptor = open(path, O_WRONLY | O_CLOEXEC);
		if (writer->descriptor < 0)
			return refuse(why, "cannot write %s: %s", path, strerror(errno));
		never_block(writer->descriptor);
		return true;
	}
	writer->target = there ? realpath(path, NULL) : strdup(path);
	if (!writer->target)
		return refuse(why, "cannot write %s: %s", path, strerror(errno));
	done = open_temporary(writer, there ? &status : NULL, why);
	if (!done)
		file_discard(writer);
	return done;
}

bool file_write(struct file_writer *writer, const void *data, size_t size, rosa_error *why)
{
	const uint8_t *from = data;

	while (size > 0) {
		size_t piece = size < WRITE_BLOCK ? size : WRITE_BLOCK;
		ssize_t put = write(writer->descriptor, from, piece);
		if (put > 0) {
			from += put;
			size -= (size_t)put;
		}
		if ((put < 0 || interrupted()) &&
		    must_stop((struct pollfd){writer->descriptor, POLLOUT, 0}, errno, writer->path, "writing", why))
			return false;
	}
	return true;
}

/* Are so many files open that the next ones may find no descriptor? */
static bool descriptors_run_short(int descriptor)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)descriptor >= limit.rlim_cur / 2;
}

bool file_close(struct file_writer *writer, rosa_error *why)
{
	int closing = writer->descriptor;

	/* Closing a file without a name would remove it. A copy of its descriptor is closed, which tells as much; or,
	 * where many wait for their names, it gets a hidden one. */
	if (writer->nameless && descriptors_run_short(writer->descriptor)) {
		if (make_hidden(writer->target, link_named, writer->descriptor, &writer->temporary) != 0)
			return refuse(why, "cannot keep %s: %s", writer->path, strerror(errno));
		writer->nameless = false;
	} else if (writer->nameless) {
		closing = dup(writer->descriptor);
		if (closing < 0)
			return refuse(why, "cannot finish %s: %s", writer->path, strerror(errno));
	}
	if (!writer->nameless)
		writer->descriptor = -1;
	if (close(closing) != 0 && errno != EINTR)
		return refuse(why, "error while writing %s: %s", writer->path, strerror(errno));
	return true;
}

/* A file without a name gets the one it shall have, or, where there is something to replace, a hidden one. */
static bool name_it(struct file_writer *writer)
{
	if (!writer->nameless || link_named(writer->target, writer->descriptor) == 0)
		return true;
	return errno == EEXIST && make_hidden(writer->target, link_named, writer->descriptor, &writer->temporary) == 0;
}

bool file_commit(struct file_writer *writer, rosa_error *why)
{
	if (!name_it(writer) || (writer->temporary && rename(writer->temporary, writer->target) != 0))
		return refuse(why, "cannot give %s its name: %s", writer->path, strerror(errno));
	free(writer->temporary);
	writer->temporary = NULL;
	file_discard(writer);
	return true;
}

void file_discard(struct file_writer *writer)
{
	if (writer->descriptor >= 0)
		close(writer->descriptor);
	if (writer->temporary)
		unlink(writer->temporary);
	if (writer->held)
		interrupt_release();
	free(writer->temporary);
	free(writer->target);
	*writer = (struct file_writer)FILE_WRITER_INIT;
}
