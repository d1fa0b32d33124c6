/*
 * Bytes, from wherever.
 *
 * A pipe is waited for in short spells before it is read, since a signal that comes just before a blocking call is not
 * noticed by it. What a file is compressed with shows in its first bytes, so the first block is filled as far as the
 * magic numbers go before anything is given out; a pipe may hand them over one by one.
 */
#include "cli/byte_source.h"

#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK        ((size_t)1 << 17)
#define LONGEST_WAIT 100 /* milliseconds, between two looks at the interrupt */

bool source_open(struct byte_source *source, const char *path, rosa_error *why)
{
	bool standard = strcmp(path, "-") == 0;
	struct stat about;

	*source = (struct byte_source){.name = standard ? "standard input" : path, .descriptor = -1};
	source->descriptor = standard ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	if (source->descriptor < 0)
		return refuse(why, "cannot open %s: %s", source->name, strerror(errno));
	if (fstat(source->descriptor, &about) == 0 && S_ISDIR(about.st_mode)) {
		source_close(source);
		return refuse(why, "%s is a folder; give a file", path);
	}
	source->block = malloc(BLOCK);
	if (source->block)
		return true;
	source_close(source);
	return refuse(why, "not enough memory to read %s", path);
}

void source_close(struct byte_source *source)
{
	if (source->descriptor >= 0)
		close(source->descriptor);
	source->descriptor = -1;
	decompressor_free(source->decompressor);
	source->decompressor = NULL;
	free(source->block);
	source->block = NULL;
}

/* More bytes into the block, behind those that are there. */
static bool more(struct byte_source *source, rosa_error *why)
{
	struct pollfd wait = {source->descriptor, POLLIN, 0};
	ssize_t got = -1;

	while (got < 0) {
		int ready = poll(&wait, 1, LONGEST_WAIT);
		if (interrupted())
			return refuse(why, "interrupted while reading %s", source->name);
		if (ready <= 0)
			continue;
		got = read(source->descriptor, source->block + source->filled, BLOCK - source->filled);
		if (got < 0 && errno != EINTR && errno != EAGAIN)
			return refuse(why, "error while reading %s: %s", source->name, strerror(errno));
	}
	source->ended = got == 0;
	source->filled += (size_t)got;
	source->taken += (size_t)got;
	return true;
}

static bool refill(struct byte_source *source, rosa_error *why)
{
	source->at = source->filled = 0;
	return source->ended || more(source, why);
}

/* Puts the name before a reason that does not know it. */
static bool blame(const struct byte_source *source, rosa_error *why)
{
	const rosa_error reason = *why;

	return refuse(why, "%s: %s", source->name, reason.message);
}

static bool begin(struct byte_source *source, rosa_error *why)
{
	enum compression compression;

	while (source->filled < COMPRESSION_MAGIC && !source->ended) {
		if (!more(source, why))
			return false;
	}
	source->begun = true;
	compression = compression_of(source->block, source->filled);
	if (compression == COMPRESSION_NONE || decompressor_new(compression, &source->decompressor, why))
		return true;
	return blame(source, why);
}

static bool read_compressed(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *why)
{
	struct byte_span out = {to, room};

	for (;;) {
		struct byte_span in = {source->block + source->at, source->filled - source->at};
		bool last = source->ended, nothing = in.size == 0;
		if (!decompress(source->decompressor, &in, last, &out, why))
			return blame(source, why);
		source->at = source->filled - in.size;
		*got = room - out.size;
		if (*got || (last && nothing))
			return true;
		if (source->at == source->filled && !refill(source, why))
			return false;
	}
}

bool source_read(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *why)
{
	if (!source->begun && !begin(source, why))
		return false;
	if (source->decompressor)
		return read_compressed(source, to, room, got, why);
	if (source->at == source->filled && !refill(source, why))
		return false;
	*got = source->filled - source->at;
	*got = *got < room ? *got : room;
	memcpy(to, source->block + source->at, *got);
	source->at += *got;
	return true;
}
