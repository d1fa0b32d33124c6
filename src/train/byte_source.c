/*
 * Bytes from a file, a pipe or standard input.
 *
 * A pipe is waited for in short spells before it is read: a signal that arrives just before a blocking call would not
 * interrupt it. How a file is compressed shows in its first bytes, so the first block is filled up to the length of the
 * longest magic number before anything is given out; a pipe may deliver them one by one.
 */
#include "train/byte_source.h"

#include "base/file_wait.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK        ((size_t)1 << 17)
#define LONGEST_WAIT 100 /* milliseconds, between two looks at the hook */

rosa_status source_open(struct byte_source *source, const char *path, const struct file_hooks *hooks, rosa_error *err)
{
	const bool standard = strcmp(path, "-") == 0;
	struct stat about;

	*source = (struct byte_source){
	    .name = standard ? "standard input" : path, .options = {.hooks = hooks}, .descriptor = -1};
	source->descriptor = standard ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	if (source->descriptor < 0 && file_cancelled(&source->options))
		return rosa_fail(err, ROSA_ECANCELLED, "interrupted while opening %s", source->name);
	if (source->descriptor < 0)
		return rosa_fail(err, ROSA_EIO, "cannot open %s: %s", source->name, strerror(errno));
	if (fstat(source->descriptor, &about) == 0 && S_ISDIR(about.st_mode)) {
		source_close(source);
		return rosa_fail(err, ROSA_EIO, "%s is a folder; give a file", path);
	}
	source->block = malloc(BLOCK);
	if (source->block)
		return ROSA_OK;
	source_close(source);
	return rosa_fail(err, ROSA_ENOMEM, "not enough memory to read %s", path);
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

/* Reads more bytes into the block, behind those that are there. */
static rosa_status more(struct byte_source *source, rosa_error *err)
{
	struct pollfd wait = {source->descriptor, POLLIN, 0};
	ssize_t got = -1;

	while (got < 0) {
		const int ready = poll(&wait, 1, LONGEST_WAIT);
		rosa_status status;

		if (ready > 0)
			got = read(source->descriptor, source->block + source->filled, BLOCK - source->filled);
		/* poll() was interrupted, or there is nothing to read yet */
		status = file_wait(source->descriptor, POLLIN, ready > 0 && got < 0 ? errno : 0, &source->options,
				   source->name, "reading", err);
		if (status != ROSA_OK)
			return status;
	}
	source->ended = got == 0;
	source->filled += (size_t)got;
	source->taken += (size_t)got;
	return ROSA_OK;
}

static rosa_status refill(struct byte_source *source, rosa_error *err)
{
	source->at = source->filled = 0;
	return source->ended ? ROSA_OK : more(source, err);
}

/* Puts the name of the source before a message of the decompressor, which does not know it. */
static rosa_status name_it(const struct byte_source *source, rosa_status status, rosa_error *err)
{
	return status == ROSA_OK || !err ? status : rosa_fail(err, status, "%s: %s", source->name, err->message);
}

static rosa_status begin(struct byte_source *source, rosa_error *err)
{
	rosa_status status = ROSA_OK;
	enum compression compression;

	while (source->filled < COMPRESSION_MAGIC && !source->ended && status == ROSA_OK)
		status = more(source, err);
	if (status != ROSA_OK)
		return status;
	source->begun = true;
	compression = compression_of(source->block, source->filled);
	if (compression == COMPRESSION_NONE)
		return ROSA_OK;
	return name_it(source, decompressor_new(compression, &source->decompressor, err), err);
}

static rosa_status read_compressed(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *err)
{
	struct byte_span out = {to, room};

	for (;;) {
		struct byte_span in = {source->block + source->at, source->filled - source->at};
		const bool last = source->ended, nothing = in.size == 0;
		rosa_status status = decompress(source->decompressor, &in, last, &out, err);

		if (status != ROSA_OK)
			return name_it(source, status, err);
		source->at = source->filled - in.size;
		*got = room - out.size;
		if (*got || (last && nothing))
			return ROSA_OK;
		if (source->at == source->filled)
			status = refill(source, err);
		if (status != ROSA_OK)
			return status;
	}
}

rosa_status source_read(struct byte_source *source, void *to, size_t room, size_t *got, rosa_error *err)
{
	rosa_status status = source->begun ? ROSA_OK : begin(source, err);

	if (status == ROSA_OK && source->decompressor)
		return read_compressed(source, to, room, got, err);
	if (status == ROSA_OK && source->at == source->filled)
		status = refill(source, err);
	if (status != ROSA_OK)
		return status;
	*got = source->filled - source->at;
	*got = *got < room ? *got : room;
	memcpy(to, source->block + source->at, *got);
	source->at += *got;
	return ROSA_OK;
}
