/*
 * The files that are packed.
 *
 * All of them are found before the first is read: a missing file is noticed at once and not after an hour, and a
 * progress bar knows how much there is. The order is that of the bytes of the names, folder by folder, which does not
 * depend on the machine, so that the same files give the same shards.
 */
#include "train/pack_inputs.h"

#include "base/array.h"
#include "base/file_wait.h"
#include "base/paths.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEEPEST 32 /* folders in folders; more is a link to itself */

static bool ends_with(const char *name, size_t length, const char *end)
{
	size_t end_length = strlen(end);

	return length >= end_length && strncmp(name + length - end_length, end, end_length) == 0;
}

static bool is_jsonl(const char *path)
{
	static const char *const packed[] = {".xz", ".zst", ".gz"}, *const lines[] = {".jsonl", ".ndjson", ".json"};
	size_t length = strlen(path);

	for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++) {
		if (ends_with(path, length, packed[i])) {
			length -= strlen(packed[i]);
			break;
		}
	}
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (ends_with(path, length, lines[i]))
			return true;
	}
	return false;
}

/* A search for files: what all its steps need. */
struct search {
	struct pack_inputs *inputs;
	enum pack_format format;
	struct file_options options;
	rosa_error *err;
};

static rosa_status add_file(const struct search *search, const char *path, const struct stat *about)
{
	const enum pack_format format = search->format;
	struct pack_inputs *inputs = search->inputs;
	struct pack_input input = {strdup(path), format == PACK_BY_NAME ? is_jsonl(path) : format == PACK_JSONL};

	if (!input.path || !ARRAY_RESERVE(inputs->all, inputs->room, inputs->count + 1)) {
		free(input.path);
		return rosa_fail(search->err, ROSA_ENOMEM, "not enough memory for the names of %zu files",
				 inputs->count + 1);
	}
	inputs->all[inputs->count++] = input;
	if (about && S_ISREG(about->st_mode))
		inputs->bytes += (uint64_t)about->st_size;
	else
		inputs->endless = true;
	return ROSA_OK;
}

static rosa_status add(const struct search *search, const char *path, int depth);

static int visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **left, const struct dirent **right)
{
	return strcmp((*left)->d_name, (*right)->d_name);
}

static rosa_status add_folder(const struct search *search, const char *path, int depth)
{
	struct dirent **entries;
	const int count = depth < DEEPEST ? scandir(path, &entries, visible, by_bytes) : -1;
	rosa_status status = ROSA_OK;

	if (depth == DEEPEST)
		return rosa_fail(search->err, ROSA_EIO,
				 "%s: more than %d folders in each other; is one a link to itself?", path, DEEPEST);
	if (count < 0)
		return rosa_fail(search->err, ROSA_EIO, "cannot open %s: %s", path, strerror(errno));
	for (int i = 0; i < count; i++) {
		if (status == ROSA_OK)
			status = add(search, path_join(path, entries[i]->d_name).text, depth + 1);
		free(entries[i]);
	}
	free(entries);
	return status;
}

static rosa_status add(const struct search *search, const char *path, int depth)
{
	struct stat about;

	if (file_cancelled(&search->options))
		return rosa_fail(search->err, ROSA_ECANCELLED, "interrupted");
	if (strcmp(path, "-") == 0)
		return add_file(search, path, NULL);
	if (stat(path, &about) != 0)
		return rosa_fail(search->err, ROSA_EIO, "cannot open %s: %s", path, strerror(errno));
	if (S_ISDIR(about.st_mode))
		return add_folder(search, path, depth);
	if (depth > 0 && !S_ISREG(about.st_mode))
		return ROSA_OK; /* a pipe in a folder is not meant */
	return add_file(search, path, &about);
}

rosa_status pack_inputs_add(struct pack_inputs *inputs, const char *path, enum pack_format format,
			    const struct file_hooks *hooks, rosa_error *err)
{
	const struct search search = {inputs, format, {.hooks = hooks}, err};
	const size_t before = inputs->count;
	rosa_status status = add(&search, path, 0);

	if (status == ROSA_OK && inputs->count == before)
		status = rosa_fail(err, ROSA_EINVAL, "%s: there are no files in it", path);
	return status;
}

void pack_inputs_free(struct pack_inputs *inputs)
{
	for (size_t i = 0; i < inputs->count; i++)
		free(inputs->all[i].path);
	free(inputs->all);
	memset(inputs, 0, sizeof(*inputs));
}
